"""Trees as msgpack in memory, against Orbax's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from orbax.checkpoint import msgpack_utils as orbax

from orbit_ckpt import msgpack_utils
from orbit_ckpt._src.formats.flax_msgpack import memory
from tests.support import assert_same_tree

pytestmark = pytest.mark.interop

TREES: dict[str, Any] = {
    "numbers": {"a": 1, "b": -(2**40), "c": 1.5, "d": True, "e": None, "f": 2 + 3j},
    "text": {"a": "text", "b": b"bytes", "c": "ünïcode" * 50},
    "arrays": {"a": np.arange(6).reshape(2, 3), "b": np.ones(3, np.float32), "c": np.ones(())},
    "strided": {"a": np.arange(12).reshape(3, 4).T, "b": np.zeros((0, 2), np.int8)},
    "jax": {"a": jnp.arange(3), "b": jnp.ones((2, 2), jnp.bfloat16)},
    "ml_dtypes": {"a": np.arange(4).astype(ml_dtypes.bfloat16)},
    "scalars": {"a": np.float32(2.5), "b": np.int8(3), "c": np.bool_(True)},
    "containers": {"a": [1, [2, {"b": (3, (4, np.ones(2)))}]], "b": (), "c": [], "d": {}},
    "array": np.arange(5),
    "list": [np.arange(2), "a"],
}


@pytest.mark.parametrize("name", TREES)
def test_bytes_are_those_of_orbax(name: str) -> None:
    encoded = msgpack_utils.msgpack_serialize(TREES[name])
    assert encoded == orbax.msgpack_serialize(TREES[name])
    assert_same_tree(msgpack_utils.msgpack_restore(encoded), orbax.msgpack_restore(encoded))
    assert msgpack_utils.MAX_CHUNK_SIZE == orbax.MAX_CHUNK_SIZE


def test_large_arrays_are_split_as_by_orbax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_PART_BYTES", 30)
    monkeypatch.setattr(orbax, "MAX_CHUNK_SIZE", 30)
    for tree in ({"a": np.arange(20).reshape(4, 5), "b": np.ones(2)}, np.arange(20)):
        encoded = msgpack_utils.msgpack_serialize(tree)
        assert encoded == orbax.msgpack_serialize(tree)
        assert_same_tree(msgpack_utils.msgpack_restore(encoded), tree)
    tree = [np.arange(20), (np.arange(9),)]  # which Orbax does not split
    encoded = msgpack_utils.msgpack_serialize(tree)
    assert_same_tree(msgpack_utils.msgpack_restore(encoded), tree)


def test_big_endian_array_keeps_its_values() -> None:
    encoded = msgpack_utils.msgpack_serialize({"a": np.arange(3, dtype=">i4")})
    assert msgpack_utils.msgpack_restore(encoded)["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "leaf",
    [object(), {1}, np.array([None]), np.array(["a"]), jax.random.key(0)],
    ids=lambda leaf: type(leaf).__name__ + str(getattr(leaf, "dtype", "")),
)
def test_leaf_that_msgpack_lacks_is_refused(leaf: Any) -> None:
    with pytest.raises(ValueError, match="msgpack has no"):
        msgpack_utils.msgpack_serialize({"a": leaf})


def test_damaged_bytes_are_refused() -> None:
    encoded = msgpack_utils.msgpack_serialize(TREES["arrays"])
    with pytest.raises(ValueError, match="not a valid msgpack tree"):
        msgpack_utils.msgpack_restore(encoded[:-5])


def test_changing_the_tree_in_place_is_not_needed() -> None:
    with pytest.warns(UserWarning, match="in_place=True does nothing here"):
        msgpack_utils.msgpack_serialize({"a": jnp.ones(2)}, in_place=True)

"""A handler keeps the plan of its last save, and uses it for trees that are stored alike only."""

from __future__ import annotations

import gc
import itertools
import json
import os
import weakref
from collections import namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.pytree.save import kept
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.value_read import read_value
from orbit_ckpt.errors import UnsupportedLeafError
from orbit_ckpt.type_handlers import NumpyHandler, create_type_handler_registry
from tests.support import assert_same_tree, put, scratch

Pair = namedtuple("Pair", "a b")
Empty = namedtuple("Empty", "")
Other = namedtuple("Other", "")

NOT_COMPARED = {"manifest.ocdbt", "orbit_manifest.json", "_CHECKPOINT_METADATA"}
"""Files with times, or names of data files, which are random."""


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list that each tree is added to that is planned from scratch."""
    trees: list[object] = []
    plan_save = kept.plan_save

    def spy(tree: object, *args: Any, **options: Any) -> object:
        trees.append(tree)
        return plan_save(tree, *args, **options)

    monkeypatch.setattr(kept, "plan_save", spy)
    return trees


def contents(path: Path) -> dict[str, object]:
    """Return the documents of a checkpoint of a tree, and what its database holds."""
    files = {
        file.name: file.read_bytes()
        for file in path.iterdir()
        if file.is_file() and file.name not in NOT_COMPARED | {"commit_success.txt"}
    }
    return {**files, "values": {k: read_value(v) for k, v in read_index(path).items()}}


def assert_saved_as_alone(
    trees: Sequence[object], save_args: Sequence[object], **options: Any
) -> None:
    """Assert that trees saved one after the other are each stored as by a handler of its own."""
    rich = ocp.PyTreeMetadataOptions(support_rich_types=True)
    with scratch() as directory, _checkpointer(rich, options) as shared:
        for i, (tree, args) in enumerate(zip(trees, save_args, strict=True)):
            shared.save(directory / f"shared{i}", args=ocp.args.PyTreeSave(tree, args))
            with _checkpointer(rich, options) as alone:
                alone.save(directory / f"alone{i}", args=ocp.args.PyTreeSave(tree, args))
            assert contents(directory / f"shared{i}") == contents(directory / f"alone{i}")


def _checkpointer(rich: Any, options: dict[str, Any]) -> ocp.Checkpointer:
    return ocp.Checkpointer(ocp.PyTreeHandler(pytree_metadata_options=rich, **options))


def tree(**leaves: object) -> dict[str, object]:
    """Return a tree of many kinds of leaves, some of them replaced."""
    return {
        "w": jnp.arange(6.0).reshape(2, 3),
        "n": np.arange(4, dtype=np.int32),
        "half": jnp.ones((3, 5), jnp.bfloat16),
        "large": np.arange(5000.0),
        "count": 3,
        "rate": 0.5,
        "name": "adam",
        "raw": b"abc",
        "split": put(np.ones((8, 2), np.float32), "x", x=8),
        "none": None,
        "inner": [{}, (), Empty(), Pair(np.float32(1), [2])],
    } | leaves


def test_tree_that_is_stored_alike_is_planned_once(planned: list[object], tmp_path: Path) -> None:
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) as checkpointer:
        for step in range(3):
            saved = tree(w=jnp.full((2, 3), step), n=np.full(4, step, np.int32), count=step)
            checkpointer.save(tmp_path / str(step), args=ocp.args.PyTreeSave(saved))
            checkpointer.wait_until_finished()
            assert_same_tree(ocp.load(tmp_path / str(step), like=saved), saved)
    assert len(planned) == 1


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"w": jnp.arange(6).reshape(2, 3)}, id="dtype of a JAX array"),
        pytest.param({"w": jnp.arange(6.0).reshape(3, 2)}, id="shape of a JAX array"),
        pytest.param({"w": np.arange(6, dtype=np.float32).reshape(2, 3)}, id="numpy for JAX"),
        pytest.param({"w": [jnp.arange(6.0)]}, id="structure"),
        pytest.param({"n": np.arange(4, dtype=np.int64)}, id="dtype of a numpy array"),
        pytest.param({"n": np.arange(4, dtype=">i4")}, id="byte order"),
        pytest.param({"n": np.arange(5, dtype=np.int32)}, id="shape of a numpy array"),
        pytest.param({"n": 4}, id="scalar for an array"),
        pytest.param({"count": True}, id="bool for int"),
        pytest.param({"count": np.int64(3)}, id="numpy scalar for int"),
        pytest.param({"name": np.str_("adam")}, id="numpy string"),
        pytest.param({"raw": b"abcd"}, id="length of bytes"),
        pytest.param({"raw": np.bytes_(b"abc")}, id="numpy bytes"),
        pytest.param({"none": {}}, id="empty dict for None"),
        pytest.param({"none": 1}, id="leaf for None"),
        pytest.param({"inner": [{}, (), Other(), Pair(np.float32(1), [2])]}, id="empty namedtuple"),
        pytest.param({"inner": [{}, (), Empty(), (np.float32(1), [2])]}, id="tuple for namedtuple"),
    ],
)
def test_changed_leaf_is_planned_anew(changed: dict[str, object]) -> None:
    trees = [tree(), tree(**changed), tree()]
    assert_saved_as_alone(trees, [None] * 3)


def test_changed_sharding_is_planned_anew() -> None:
    value = np.ones((8, 2), np.float32)
    shardings = [put(value, "x", x=8), put(value, "x", x=4), put(value, x=8), jnp.asarray(value)]
    on_others = [jax.device_put(value, device) for device in jax.devices()[:2]]
    trees = [tree(split=split) for split in [*shardings, *on_others]]
    assert_saved_as_alone(trees, [None] * len(trees))


@pytest.mark.parametrize(
    ("first", "second"), [({1: 2.0}, {True: 2.0}), ({1: 2.0}, {"1": 2.0}), ({0: 2.0}, [2.0])]
)
def test_equal_keys_of_other_types_are_planned_anew(first: object, second: object) -> None:
    assert_saved_as_alone([first, second, first], [None] * 3)


def test_changed_save_args_are_planned_anew() -> None:
    saved = {"a": jnp.ones((4, 4)), "b": np.ones((4, 4), np.float32)}
    args = [
        None,
        {"a": ocp.SaveArgs(dtype=jnp.bfloat16), "b": ocp.SaveArgs()},
        {"a": ocp.SaveArgs(dtype=jnp.float16), "b": ocp.SaveArgs()},
        {"a": ocp.SaveArgs(chunk_byte_size=16), "b": ocp.SaveArgs(shard_axes=(0,))},
        None,
    ]
    assert_saved_as_alone([saved] * len(args), args)


def test_save_args_that_the_caller_changes_are_planned_anew(tmp_path: Path) -> None:
    saved, args = {"a": jnp.ones(4)}, {"a": ocp.SaveArgs()}
    with ocp.Checkpointer(ocp.PyTreeHandler()) as checkpointer:
        for dtype in (np.float32, np.float16):
            args["a"].dtype = dtype
            path = tmp_path / dtype.__name__
            checkpointer.save(path, args=ocp.args.PyTreeSave(saved, args))
            assert ocp.load(path)["a"].dtype == dtype


def test_custom_metadata_are_those_of_each_save(tmp_path: Path) -> None:
    with ocp.Checkpointer(ocp.PyTreeHandler()) as checkpointer:
        for metadata in ({"step": 1}, {"step": True}, {"step": 1.0}):
            path = tmp_path / json.dumps(metadata["step"])
            checkpointer.save(path, args=ocp.args.PyTreeSave({"a": 1}, custom_metadata=metadata))
            found = ocp.metadata(path).custom_metadata
            assert repr(found) == repr(metadata)


class Doubled(NumpyHandler):
    """Stores the double of arrays, and restores what is stored."""

    @override
    async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
        return await super().serialize([2 * np.asarray(value) for value in values], infos, args)


def test_handler_registered_later_is_used(tmp_path: Path) -> None:
    registry = create_type_handler_registry()
    with ocp.Checkpointer(ocp.PyTreeHandler(type_handler_registry=registry)) as checkpointer:
        checkpointer.save(tmp_path / "1", {"a": np.ones(3)})
        registry.add(np.ndarray, Doubled(), override=True)
        checkpointer.save(tmp_path / "2", {"a": np.ones(3)})
    assert ocp.load(tmp_path / "1")["a"].tolist() == [1, 1, 1]
    assert ocp.load(tmp_path / "2")["a"].tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("leaf", "message"), [("deleted", "has been deleted"), (2**63, "64 bits")], ids=str
)
def test_leaf_that_cannot_be_saved_is_found(leaf: object, message: str, tmp_path: Path) -> None:
    array = jnp.ones(3)
    with ocp.Checkpointer(ocp.PyTreeHandler()) as checkpointer:
        checkpointer.save(tmp_path / "1", {"a": array, "b": 1})
        if leaf == "deleted":
            array.delete()
        bad = {"a": array, "b": 1 if leaf == "deleted" else leaf}
        with pytest.raises(UnsupportedLeafError, match=message):
            checkpointer.save(tmp_path / "2", bad)


def test_container_changed_after_a_save_returns_is_saved_as_it_was(tmp_path: Path) -> None:
    saved: dict[str, Any] = {"empty": [], "a": np.ones(3)}
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) as checkpointer:
        for step in range(2):
            checkpointer.save(tmp_path / str(step), saved)
            saved["empty"].append(1)
            checkpointer.wait_until_finished()
            assert ocp.load(tmp_path / str(step))["empty"] == [1] * step


def _close(checkpointer: ocp.Checkpointer, _: pytest.MonkeyPatch) -> None:
    checkpointer.close()


def _fork(_: ocp.Checkpointer, monkeypatch: pytest.MonkeyPatch) -> None:
    process = os.getpid()
    monkeypatch.setattr(kept.os, "getpid", lambda: process + 1)


@pytest.mark.parametrize("event", [_close, _fork])
def test_plan_is_dropped(
    event: Callable[[ocp.Checkpointer, pytest.MonkeyPatch], None],
    planned: list[object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    checkpointer = ocp.Checkpointer(ocp.StandardHandler())
    for step in range(2):
        checkpointer.save(tmp_path / f"a{step}", args=ocp.args.StandardSave(tree()))
    assert len(planned) == 1
    event(checkpointer, monkeypatch)
    checkpointer.save(tmp_path / "b", args=ocp.args.StandardSave(tree()))
    assert len(planned) == 2


def test_functions_keep_no_plan(planned: list[object], tmp_path: Path) -> None:
    for step in range(2):
        ocp.save(tmp_path / str(step), tree())
    assert len(planned) == 2


def test_no_leaf_is_kept_alive(tmp_path: Path) -> None:
    arrays = {"a": np.ones(3), "b": np.ones(9000), "c": jnp.ones(4), "d": jnp.ones(9000)}
    references = [weakref.ref(array) for array in arrays.values()]
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) as checkpointer:
        for step in range(2):
            checkpointer.save(tmp_path / str(step), arrays)
            checkpointer.wait_until_finished()
        del arrays
        gc.collect()
        assert [reference() for reference in references] == [None] * 4


def leaves() -> st.SearchStrategy[object]:
    """Return leaves of few forms, so that two trees often have the same ones."""
    arrays = [jnp.ones((2, 3)), jnp.zeros((2, 3)), jnp.ones(2, jnp.int8), np.ones(2), np.zeros(2)]
    others = [np.float32(1), 1, 2, True, 1.5, "a", "b", b"x", b"yz", None, jax.random.key(0)]
    return st.sampled_from([*arrays, *others, np.ones((40, 50)), np.asfortranarray(np.eye(3))])


@given(st.data(), st.sampled_from([{}, {"use_zarr3": False}]))
def test_trees_saved_in_turn_are_stored_as_alone(
    data: st.DataObject, options: dict[str, Any]
) -> None:
    names = data.draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True))
    first = data.draw(st.fixed_dictionaries({name: leaves() for name in names}))
    changes = data.draw(st.lists(st.dictionaries(st.sampled_from(names), leaves()), max_size=3))
    trees = list(itertools.accumulate(changes, lambda last, change: last | change, initial=first))
    assert_saved_as_alone(trees, [None] * len(trees), **options)

"""What is known of leaves: when two of them are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.metadata.values import (
    ArrayMetadata,
    Metadata,
    ScalarMetadata,
    StorageMetadata,
    StringMetadata,
)

TREE = {"w": jnp.ones((2, 3)), "n": np.ones(3), "s": 1, "text": "a"}
ARRAY = ArrayMetadata(
    "w", Path("a"), (2,), None, np.dtype("f4"), StorageMetadata((2,), (2,), "zstd")
)


def test_metadata_of_two_checkpoints_of_the_same_kind_of_tree_are_equal(tmp_path: Path) -> None:
    for library in (ocp, orbax):
        trees: Any = library.PyTreeCheckpointer()
        for name, change in (("1", {}), ("2", {"s": 2, "text": "b"}), ("3", {"n": np.ones(4)})):
            trees.save(tmp_path / library.__name__ / name, {**TREE, **change})
        one, two, other = (
            trees.metadata(tmp_path / library.__name__ / name).item_metadata for name in "123"
        )
        assert all(one[key] == two[key] for key in TREE)
        assert one["n"] != other["n"]
        assert one["w"] == other["w"]


@pytest.mark.parametrize(
    "other",
    [
        replace(ARRAY, shape=(3,)),
        replace(ARRAY, dtype=np.dtype("f8")),
        replace(ARRAY, storage=None),
        replace(ARRAY, storage=StorageMetadata((1,), (2,))),
        StringMetadata("w", Path("a")),
        ScalarMetadata("w", Path("a"), (2,), None, np.dtype("f4"), ARRAY.storage),
        None,
    ],
)
def test_arrays_differ_by_what_they_hold_and_how_it_is_stored(other: object) -> None:
    assert other != ARRAY
    assert other != ARRAY


def test_names_and_directories_do_not_count() -> None:
    assert replace(ARRAY, name="b", directory=None) == ARRAY
    assert hash(replace(ARRAY, name="b")) == hash(ARRAY)
    assert StringMetadata("a", None) == StringMetadata("b", Path("x"))
    scalar = ScalarMetadata("s", None, (), None, np.dtype("i8"))
    assert scalar == replace(scalar, name="t")
    assert scalar != replace(scalar, dtype=np.dtype("f8"))
    assert Metadata("a", None) == Metadata("b", None)

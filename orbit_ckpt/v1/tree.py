"""Types of trees and their leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.tree.flat_dict import PyTree, PyTreeKey
    from orbit_ckpt._src.tree.flat_dict import PyTreePath as PyTreeKeyPath
    from orbit_ckpt._src.tree.structure import merge_trees as merge
    from orbit_ckpt._src.v1.types import (
        AbstractLeaf,
        JsonType,
        Leaf,
        PyTreeOf,
    )

__all__ = [
    "AbstractLeaf",
    "JsonType",
    "Leaf",
    "PyTree",
    "PyTreeKey",
    "PyTreeKeyPath",
    "PyTreeOf",
    "merge",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "v1.types": "AbstractLeaf, JsonType, Leaf, PyTreeOf",
        "tree.flat_dict": "PyTree, PyTreeKey, PyTreePath as PyTreeKeyPath",
        "tree.structure": "merge_trees as merge",
    },
)

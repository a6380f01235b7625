"""Functions of trees, under Orbax's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.pytree.restore.abstract import to_shape_dtype_struct
    from orbit_ckpt._src.tree.flat_dict import (
        JsonType,
        PyTree,
        PyTreeKey,
        PyTreeOf,
        PyTreePath,
        deserialize_tree,
        from_flat_dict,
        get_param_names,
        is_flat_dict,
        serialize_tree,
        str_keypath,
        to_flat_dict,
    )
    from orbit_ckpt._src.tree.structure import merge_trees, tree_difference, tree_trim

__all__ = [
    "JsonType",
    "PyTree",
    "PyTreeKey",
    "PyTreeOf",
    "PyTreePath",
    "deserialize_tree",
    "from_flat_dict",
    "get_param_names",
    "is_flat_dict",
    "merge_trees",
    "serialize_tree",
    "str_keypath",
    "to_flat_dict",
    "to_shape_dtype_struct",
    "tree_difference",
    "tree_trim",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "pytree.restore.abstract": "to_shape_dtype_struct",
        "tree.flat_dict": (
            "deserialize_tree, from_flat_dict, get_param_names, is_flat_dict, JsonType, PyTree, "
            "PyTreeKey, PyTreeOf, PyTreePath, serialize_tree, str_keypath, to_flat_dict"
        ),
        "tree.structure": "merge_trees, tree_difference, tree_trim",
    },
)

"""Merge and intersect trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orbit_ckpt._src.errors import TreeMismatchError
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.flatten import flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import NamePath, format_path


def merge_trees(*trees: object, target: object = None) -> Any:  # a tree of any type
    """Merge the leaves of all trees; later trees win.

    Args:
        *trees: The trees. Empty containers are omitted.
        target: Tree that gives the structure of the result; None for dicts.

    Raises:
        TreeMismatchError: A leaf of the target is in no tree, or a leaf of one tree is a container
            in another.

    Example:
        >>> merge_trees({"a": 1, "b": {"c": 2}}, {"b": {"c": 3, "d": 4}})
        {'a': 1, 'b': {'c': 3, 'd': 4}}
    """
    merged: dict[NamePath, object] = {}
    for tree in trees:
        merged |= _leaves(tree)
    return _build(merged, target)


def intersect_trees(*trees: object, target: object = None) -> Any:  # a tree of any type
    """Return the leaves of the last tree that exist in all others too.

    Args:
        *trees: The trees, at least one. Empty containers are omitted.
        target: Tree that gives the structure of the result; None for dicts.

    Raises:
        TreeMismatchError: A leaf of the target is not in all trees.
        ValueError: There are no trees.

    Example:
        >>> intersect_trees({"a": 1, "b": 2}, {"b": 3, "c": 4})
        {'b': 3}
    """
    if not trees:
        raise ValueError("There are no trees to intersect; give at least one.")
    leaves = [_leaves(tree) for tree in trees]
    common = set(leaves[0]).intersection(*leaves[1:])
    return _build({names: leaves[-1][names] for names in leaves[-1] if names in common}, target)


def _leaves(tree: object) -> dict[NamePath, object]:
    flat = flatten(tree)
    pairs = zip(flat.names, flat.values, strict=True)
    return {names: value for names, value in pairs if not is_empty_node(value)}


def _build(leaves: Mapping[NamePath, object], target: object) -> object:
    if target is None:
        try:
            return build_tree(leaves.items())
        except ValueError as error:
            raise TreeMismatchError(
                f"The trees do not fit together: {error}. Rename one of them.", paths=[]
            ) from error
    flat = flatten(target)
    missing = [
        format_path(names)
        for names in flat.names
        if names not in leaves and names not in flat.empty_names
    ]
    if missing:
        raise TreeMismatchError(
            f"The target has leaves that the trees lack: {shorten_list(missing)}. Leave them "
            "out of the target.",
            paths=missing,
        )
    return flat.unflatten(
        [
            value if names in flat.empty_names else leaves[names]
            for names, value in zip(flat.names, flat.values, strict=True)
        ]
    )

"""Helpers for contenders that support only arrays on one device."""

from __future__ import annotations

from typing import Any

import jax

from benchmarks.contenders import UnsupportedTree


def flatten_named(tree: object) -> dict[str, Any]:
    """Return the leaves by their keys joined by dots."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def require_arrays(tree: object) -> None:
    """Refuse trees with leaves other than arrays.

    Raises:
        UnsupportedTree: The tree has such a leaf.
    """
    others = {type(x).__name__ for x in jax.tree.leaves(tree) if not isinstance(x, jax.Array)}
    if others:
        raise UnsupportedTree(f"stores only arrays, found {' and '.join(sorted(others))}")


def require_one_device(tree: object) -> None:
    """Refuse arrays on several devices.

    Raises:
        UnsupportedTree: The tree has such an array.
    """
    arrays = (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    if any(len(array.devices()) > 1 for array in arrays):
        raise UnsupportedTree("does not support arrays on several devices")

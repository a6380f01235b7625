"""Placeholders of leaves in the structure of old checkpoints, under Orbax's names."""

from __future__ import annotations

import os
from typing import Any

import jax

from orbit_ckpt._src.storage.layout import RESERVED
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.keypath import DictKey

_PLACEHOLDER, _AGGREGATED = "PLACEHOLDER://", "AGGREGATED://"


def leaf_is_placeholder(leaf: object) -> bool:
    """Return whether a leaf stands for an array that is stored by itself."""
    return isinstance(leaf, str) and leaf.startswith((_PLACEHOLDER, _AGGREGATED))


def leaf_placeholder(name: str) -> str:
    """Return the placeholder of a leaf with a storage name."""
    return _PLACEHOLDER + name


def name_from_leaf_placeholder(placeholder: str) -> str:
    """Return the storage name of the leaf for which a placeholder stands.

    Raises:
        ValueError: It is not a placeholder.
    """
    if not leaf_is_placeholder(placeholder):
        raise ValueError(f"{placeholder!r:.80} is not a placeholder: {_PLACEHOLDER!r} begins one.")
    return placeholder.partition("://")[2]


def all_leaves_are_placeholders(tree: object) -> bool:
    """Return whether all leaves of a tree are placeholders."""
    return all(map(leaf_is_placeholder, jax.tree_util.tree_leaves(tree)))


def pytree_structure(directory: str | os.PathLike[str]) -> Any:  # nested dicts
    """Return the structure that the names in a directory of arrays imply.

    Args:
        directory: A directory with a folder for each array, named like `params.dense.kernel`.

    Raises:
        ValueError: An array has the name of a dict.
    """
    names = sorted(entry.name for entry in resolve_path(directory).iterdir())
    return build_tree(
        (tuple(map(DictKey, name.split("."))), leaf_placeholder(name))
        for name in names
        if name not in RESERVED
    )

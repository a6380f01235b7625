"""The containers of a tree being saved, in the form that `metadata.rich_types` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

import msgspec
from jax.tree_util import PyTreeDef, tree_unflatten

from orbit_ckpt._src.metadata.rich_types import LEAF_CLASS
from orbit_ckpt._src.tree.build import is_namedtuple
from orbit_ckpt._src.tree.flatten import FlatTree, children_of, is_leaf
from orbit_ckpt._src.tree.keypath import is_sequence_key, key_name

Outline = object
"""The containers of a tree in the form of `value_metadata_tree`, with `LEAF` for every leaf; or its
structure, if it has no other containers than lists and dicts with string keys."""

LEAF = object()


def outline_of(tree: object, flat: FlatTree) -> Outline:
    """Return the containers of a tree being saved; later changes to it do not matter.

    Args:
        tree: The tree.
        flat: The same, flattened.
    """
    return flat.treedef if flat.places.is_plain else _outline_of(tree)


def _outline_of(tree: object) -> Outline:
    kind = type(tree)
    if kind is dict or kind is list:  # true of nearly all containers
        plain = _plain_outline(cast("dict[object, object] | list[object]", tree))
        if plain is not None:
            return plain
    if is_leaf(tree):
        return LEAF
    children = children_of(tree)
    below = {key_name(key): _outline_of(child) for key, child in children}
    if is_namedtuple(tree):
        return {
            "category": "namedtuple",
            "module": type(tree).__module__,
            "clazz": type(tree).__qualname__,
            "entries": [{"key": name, "value": value} for name, value in below.items()],
        }
    if isinstance(tree, tuple):
        return {"category": "custom", "clazz": "tuple", "entries": list(below.values())}
    if all(is_sequence_key(key) for key, _ in children):
        return list(below.values())
    return below


def _plain_outline(tree: dict[object, object] | list[object]) -> Outline | None:
    """Return the outline of a list or a dict with string keys; None for anything else."""
    if not tree:
        return None
    if isinstance(tree, list):
        return [_outline_of(child) for child in tree]
    if not all(type(key) is str for key in tree):
        return None
    return {key: _outline_of(tree[key]) for key in sorted(cast(dict[str, object], tree))}


def encode_rich_types(outline: Outline, values: Iterable[object]) -> str:
    """Return the text of `value_metadata_tree`.

    Args:
        outline: The containers.
        values: JSON form of every leaf, in JAX's order.
    """
    if isinstance(outline, PyTreeDef):
        leaves = [{"category": "custom", "clazz": LEAF_CLASS, "data": value} for value in values]
        tree: object = tree_unflatten(outline, leaves)
        text = msgspec.json.encode(tree)
        return text.decode() if text.isascii() else json.dumps(tree, separators=(",", ":"))
    remaining = iter(values)

    def leaf(_: object) -> object:
        return {"category": "custom", "clazz": LEAF_CLASS, "data": next(remaining)}

    return json.dumps(outline, separators=(",", ":"), default=leaf)

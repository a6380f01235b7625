"""The containers of a tree being saved, in the form that `metadata.rich_types` reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import cast

from orbit_ckpt._src.metadata.rich_types import LEAF_CLASS
from orbit_ckpt._src.tree.build import is_namedtuple
from orbit_ckpt._src.tree.flatten import children_of, is_leaf
from orbit_ckpt._src.tree.keypath import is_sequence_key, key_name

Outline = object
"""The containers of a tree in the form of `value_metadata_tree`, with `LEAF` for every leaf."""

LEAF = object()


def outline_of(tree: object) -> Outline:
    """Return the containers of a tree being saved; later changes to it do not matter."""
    kind = type(tree)
    if kind is dict or kind is list:  # true of nearly all containers
        plain = _plain_outline(cast("dict[object, object] | list[object]", tree))
        if plain is not None:
            return plain
    if is_leaf(tree):
        return LEAF
    children = children_of(tree)
    below = {key_name(key): outline_of(child) for key, child in children}
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
        return [outline_of(child) for child in tree]
    if not all(type(key) is str for key in tree):
        return None
    return {key: outline_of(tree[key]) for key in sorted(cast(dict[str, object], tree))}


def encode_rich_types(outline: Outline, values: Iterable[object]) -> str:
    """Return the text of `value_metadata_tree`.

    Args:
        outline: The containers.
        values: JSON form of every leaf, in JAX's order.
    """
    remaining = iter(values)

    def leaf(_: object) -> object:
        return {"category": "custom", "clazz": LEAF_CLASS, "data": next(remaining)}

    return json.dumps(outline, separators=(",", ":"), default=leaf)

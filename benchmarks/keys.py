"""Leaves of nested dictionaries by their keys."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from typing import Any

Keys = tuple[str, ...]


def leaf_at(tree: Any, keys: Keys) -> Any:
    """Return the leaf with the given keys."""
    return reduce(getitem, keys, tree)


def nest(keys: Keys, leaf: object) -> Any:
    """Return nested dictionaries with one leaf."""
    return reduce(lambda inner, key: {key: inner}, reversed(keys), leaf)

"""Tuples and namedtuples, container types that `_METADATA` otherwise loses.

The encoding is Orbax's `value_metadata_tree`: the tree as JSON, with tuples, namedtuples and leaves
as objects that have a `category`. `metadata.outline` writes it.
"""

from __future__ import annotations

import collections
import functools
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.guards import is_list
from orbit_ckpt._src.tree.keypath import (
    DictKey,
    KeyPath,
    NamePath,
    key_class,
    key_value,
)

LEAF_CLASS = "ValueMetadataEntry"


def has_rich_types(text: str) -> bool:
    """Return whether a text may describe containers other than dicts and lists."""
    return '"namedtuple"' in text or '"tuple"' in text


def decode_rich_types(
    text: str,
    where: str,
    leaf: Callable[[NamePath], object],
    paths: Mapping[NamePath, KeyPath],
) -> object:
    """Return the tree that a text describes.

    Namedtuples become instances of their own class if it has been imported in this process and has
    the same fields, otherwise of a generic class; nothing is imported.

    Args:
        text: `value_metadata_tree`.
        where: The file, for errors.
        leaf: Returns the value of the leaf at a path.
        paths: By names, the paths of the leaves that have dict keys of types other than str.

    Raises:
        FormatError: The text is not valid.
    """
    try:
        return _decode(json.loads(text), (), leaf, _keys_by_prefix(paths))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{where}: value_metadata_tree: {type(error).__name__}: {error}"
        ) from error


def class_name(kind: type) -> str:
    """Return the name under which `find_namedtuple` finds a class."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_namedtuple(name: str, fields: tuple[str, ...]) -> type | None:
    """Return a namedtuple class by its `module:qualname`, None if it is not usable here.

    Finds only classes that this process has imported, and only namedtuples with exactly these
    fields: a checkpoint must not choose what else is called.
    """
    module, _, qualname = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        # not getattr, which may run a module's code
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    if not isinstance(found, type) or not issubclass(found, tuple):
        return None
    cls = cast(type, found)
    return cls if getattr(cls, "_fields", None) == fields else None


def _decode(
    node: Any,  # decoded JSON
    path: NamePath,
    leaf: Callable[[NamePath], object],
    keys: Mapping[NamePath, object],
) -> object:
    def child(name: str, below: object) -> object:
        return _decode(below, (*path, name), leaf, keys)

    if is_list(node):
        return [child(str(i), below) for i, below in enumerate(node)]
    if not isinstance(node, dict):
        raise TypeError(f"expected an object or a list, found {node!r}")
    fields = cast(dict[str, Any], node)
    category = fields.get("category")
    if category == "custom" and fields["clazz"] == LEAF_CLASS:
        return leaf(path)
    if category == "custom" and fields["clazz"] == "tuple":
        return tuple(child(str(i), below) for i, below in enumerate(fields["entries"]))
    if category == "namedtuple":
        names = [str(entry["key"]) for entry in fields["entries"]]
        make = _namedtuple_class(str(fields["module"]), str(fields["clazz"]), tuple(names))
        return make(*(child(entry["key"], entry["value"]) for entry in fields["entries"]))
    if isinstance(category, str):
        raise ValueError(f"unknown category {category!r}")
    return {keys.get((*path, name), name): child(name, below) for name, below in fields.items()}


def _namedtuple_class(module: str, name: str, fields: tuple[str, ...]) -> type:
    known = find_namedtuple(f"{module}:{name}", fields)
    return known or _generic_namedtuple(f"{module}_{name}_{len(fields)}", fields)


@functools.lru_cache(maxsize=256)
def _generic_namedtuple(name: str, fields: tuple[str, ...]) -> type:
    valid = "".join(c if c.isidentifier() or c.isdigit() else "_" for c in name)
    return collections.namedtuple(valid, fields, rename=True)  # pyright: ignore[reportUntypedNamedTuple] - dynamic


def _keys_by_prefix(paths: Mapping[NamePath, KeyPath]) -> dict[NamePath, object]:
    keys: dict[NamePath, object] = {}
    for names, path in paths.items():
        for depth, key in enumerate(path):
            if key_class(key) is DictKey:
                keys[names[: depth + 1]] = key_value(key)
    return keys

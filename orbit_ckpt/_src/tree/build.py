"""Build nested dicts and lists from leaves and their paths, and list the leaves of such trees.

Does not need JAX; `tree.flatten` handles trees with nodes of any kind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from typing_extensions import TypeIs

from orbit_ckpt._src.guards import is_dict, is_list_or_tuple, is_tuple
from orbit_ckpt._src.tree.keypath import (
    DictKey,
    GetAttrKey,
    KeyPath,
    NamePath,
    SequenceKey,
    format_path,
    is_sequence_key,
    key_value,
    name_path,
)

PLACEHOLDER = ...
"""Stands for a leaf of a target that is not to be restored."""


def is_namedtuple(value: object) -> TypeIs[tuple[object, ...]]:
    """Return whether a value is an instance of a namedtuple class."""
    return is_tuple(value) and hasattr(value, "_fields")


def is_empty_container(node: object) -> bool:
    """Return whether a value is a container without children, as in `flatten.is_empty_node`."""
    kind = type(node)
    if kind is dict or kind is list or kind is tuple:
        return not node
    if node is None:
        return True
    # other node classes exist only once JAX is loaded
    registry: Any = getattr(sys.modules.get("jax.tree_util"), "default_registry", None)
    if registry is None:
        return is_namedtuple(node) and not node
    children = registry.flatten_one_level(node)
    return children is not None and not any(True for _ in children[0])


def leaves_of(tree: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Yield the leaves of nested dicts, lists and tuples with their paths, in JAX's order.

    None, empty containers and objects of all other classes count as leaves.
    """
    if is_dict(tree) and tree:
        for key in _sorted(tree):
            yield from leaves_of(tree[key], (*path, DictKey(key)))
    elif is_list_or_tuple(tree) and tree:
        fields: Sequence[str] | None = getattr(tree, "_fields", None)
        for index, child in enumerate(tree):
            key = GetAttrKey(fields[index]) if fields else SequenceKey(index)
            yield from leaves_of(child, (*path, key))
    else:
        yield path, tree


def _sorted(keys: Iterable[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of several types, for which JAX has no order
        return sorted(keys, key=str)


def build_tree(
    leaves: Iterable[tuple[KeyPath, object]],
    names: Iterable[NamePath] | None = None,
    *,
    lenient: bool = False,
) -> object:
    """Return nested dicts and lists holding the leaves at their paths.

    Sequence keys give lists, all others dicts. An empty container at a path that also has children
    is
    dropped: old Orbax versions recorded both.

    Args:
        leaves: Paths and values.
        names: The names of the paths' keys, if known.
        lenient: Whether sequences may lack elements, which become PLACEHOLDER, and containers may
            mix positions and names as keys; they are sequences if all names are positions.

    Raises:
        ValueError: Two leaves share a path, one lies below another, or a sequence has a gap.
    """
    containers = _Containers(lenient=lenient)
    if names is None:
        for path, value in leaves:
            containers.place(path, name_path(path), value)
    else:
        for (path, value), known in zip(leaves, names, strict=True):
            containers.place(path, known, value)
    return containers.build()


class _Containers:
    """Containers under construction, by the names of the keys that lead to them.

    All are dicts of children by name until `build`, even those that become lists.
    """

    __slots__ = ("_children", "_keys", "_lenient", "_sequences", "_top")

    def __init__(self, *, lenient: bool) -> None:
        self._lenient = lenient
        self._top: dict[str, object] = {}
        """Holds the root, under an empty name."""
        self._children: dict[NamePath, dict[str, object]] = {}
        self._keys: dict[NamePath, dict[str, object]] = {}
        """Keys that are not strings, by name."""
        self._sequences: set[NamePath] = set()

    def place(self, path: KeyPath, names: NamePath, value: object) -> None:
        """Add a leaf."""
        if not names:
            name, children = "", self._top
        else:
            name, above = names[-1], names[:-1]
            children = self._children.get(above)
            if children is None:
                children = self._add(path[:-1], above)
            key: Any = path[-1]
            # nearly all keys are strings of dicts; JAX's keys are rare
            if type(key) is not DictKey or type(key.key) is not str or above in self._sequences:
                self._note(path, names)
        if name not in children:
            children[name] = value
        elif names not in self._children:
            raise ValueError(f"{format_path(path)} occurs twice")
        elif not is_empty_container(value):
            raise ValueError(f"{format_path(path)} is a leaf and has children")

    def build(self) -> object:
        """Return the root."""
        for names in sorted({*self._keys, *self._sequences}, key=len, reverse=True):
            children = self._children[names]
            parent = self._children[names[:-1]] if names else self._top
            if names in self._sequences and not (self._lenient and _has_names(children)):
                built: object = _list_of(children, names, fill_gaps=self._lenient)
            else:
                keys = self._keys.get(names, {})
                built = {keys.get(name, name): child for name, child in children.items()}
            parent[names[-1] if names else ""] = built
        return self._top.get("", {})

    def _add(self, path: KeyPath, names: NamePath) -> dict[str, object]:
        """Add the container at `path`."""
        parent = self._top
        if names:
            above = self._children.get(names[:-1])
            parent = self._add(path[:-1], names[:-1]) if above is None else above
            self._note(path, names)
        name = names[-1] if names else ""
        if not is_empty_container(parent.get(name)):
            raise ValueError(f"{format_path(path)} is a leaf and has children")
        children: dict[str, object] = {}
        parent[name] = self._children[names] = children
        return children

    def _note(self, path: KeyPath, names: NamePath) -> None:
        """Record the kind of container that the last key of a path implies."""
        above = names[:-1]
        is_sequence = is_sequence_key(path[-1])
        if is_sequence is not (above in self._sequences):
            if self._children[above] and not self._lenient:
                raise ValueError(f"{format_path(path[:-1])} has both positions and names as keys")
            self._sequences.add(above)
        value = key_value(path[-1])
        if not is_sequence and type(value) is not str:
            self._keys.setdefault(above, {})[names[-1]] = value


def _has_names(children: Iterable[str]) -> bool:
    return not all(name.isdecimal() and name == str(int(name)) for name in children)


def _list_of(children: dict[str, object], names: NamePath, *, fill_gaps: bool) -> list[object]:
    if fill_gaps:
        return [children.get(str(i), PLACEHOLDER) for i in range(max(map(int, children)) + 1)]
    try:
        return [children[str(index)] for index in range(len(children))]
    except KeyError as error:
        raise ValueError(
            f"{format_path(names)} has {len(children)} elements but none at index {error}"
        ) from None

"""Take trees apart into leaves with key paths, and put them together again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import jax
from jax.tree_util import DictKey
from msgspec import Struct
from typing_extensions import TypeIs

from orbit_ckpt._src.tree.keypath import (
    KeyPath,
    NamePath,
    format_path,
    is_sequence_key,
    key_value,
    name_path,
)

_registry = jax.tree_util.default_registry

PLACEHOLDER = ...
"""Stands for a leaf of a target that is not to be restored."""


class FlatTree(Struct, frozen=True, dict=True):
    """A tree taken apart; empty containers and None count as leaves.

    Attributes:
        paths: Where each leaf sits, in JAX's order.
        values: The leaves, in the same order.
        treedef: What `unflatten` needs to rebuild the containers.
        names: The names of the keys of every path.
    """

    paths: list[KeyPath]
    values: list[object]
    treedef: jax.tree_util.PyTreeDef
    names: list[NamePath]

    def with_values(self, values: list[object]) -> FlatTree:
        """Return the same structure with other leaves."""
        return FlatTree(self.paths, values, self.treedef, self.names)

    @functools.cached_property
    def empty_names(self) -> frozenset[NamePath]:
        """The names of the leaves that are empty containers or None."""
        pairs = zip(self.names, self.values, strict=True)
        return frozenset(names for names, value in pairs if is_empty_node(value))

    def values_of(self, tree: object) -> list[object] | None:
        """Return the leaves of a tree in the order of `paths`, None if its structure differs."""
        # without empty containers there is nothing to ask of every node
        is_leaf = is_empty_node if self.empty_names else None
        try:
            values, treedef = jax.tree_util.tree_flatten(tree, is_leaf)
        except (TypeError, ValueError):
            return None
        return values if treedef == self.treedef else None

    def unflatten(self, values: Sequence[object]) -> object:
        """Return a tree of this structure with other leaves."""
        return jax.tree_util.tree_unflatten(self.treedef, values)


def flatten(tree: object) -> FlatTree:
    """Take a tree apart.

    Raises:
        ValueError: A container cannot be flattened, such as a dict whose keys do not sort.
    """
    try:
        values, treedef = jax.tree_util.tree_flatten(tree, is_empty_node)
        paths = _paths_in(treedef)
        if paths is None:
            paths = _Paths([path for path, _ in _flatten(tree, is_empty_node)[0]])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The tree cannot be flattened: {error}. JAX sorts the keys of every dict; give keys "
            "of one type, for example all str."
        ) from error
    return FlatTree(paths.paths, values, treedef, paths.names)


def is_empty_node(node: object) -> bool:
    """Whether a value is a container without children: None, `{}`, `()`, an empty namedtuple."""
    kind = type(node)
    if kind is dict or kind is list or kind is tuple:
        return not node
    if node is None:
        return True
    children = _registry.flatten_one_level(node)
    return children is not None and not any(True for _ in children[0])


def is_leaf(node: object) -> bool:
    """Whether a value is a leaf, empty containers and None included."""
    return is_empty_node(node) or _registry.flatten_one_level(node) is None


def children_of(node: object) -> list[tuple[object, object]]:
    """Return the children of a container with their keys, None and empty containers included."""
    return [(path[0], child) for path, child in _flatten(node, lambda x: x is not node)[0]]


def is_namedtuple(value: object) -> TypeIs[tuple[object, ...]]:
    """Whether a value is an instance of a namedtuple class."""
    return isinstance(value, tuple) and hasattr(cast(object, value), "_fields")


def build_tree(
    leaves: Iterable[tuple[KeyPath, object]],
    names: Iterable[NamePath] | None = None,
    *,
    lenient: bool = False,
) -> object:
    """Return nested dicts and lists holding the leaves at their paths.

    Keys of sequences give lists, all others dicts. An empty container at a path that also has
    children is dropped in their favour: old Orbax versions recorded both.

    Args:
        leaves: Paths and values.
        names: The names of the paths' keys, if they are known.
        lenient: Whether sequences may lack elements, which are PLACEHOLDER then, and containers may
            have positions and names as keys; they are sequences if all names are positions.

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


class _Paths:
    """Where the leaves of a tree sit, with the names of the keys."""

    __slots__ = ("names", "paths")

    def __init__(self, paths: list[KeyPath]) -> None:
        self.paths = paths
        self.names = list(map(name_path, paths))


def _paths_in(treedef: jax.tree_util.PyTreeDef) -> _Paths | None:
    """Return where the leaves of a structure sit, None if the structure alone does not tell.

    A training saves trees of one structure over and over; its paths are worked out once.
    """
    try:
        # keys that are equal but not the same, as 1 and True, look different
        return _known_paths(treedef, str(treedef))
    except Exception:  # noqa: BLE001 - classes of others, which may not take numbers for leaves
        return None


@functools.lru_cache(maxsize=2)
def _known_paths(treedef: jax.tree_util.PyTreeDef, text: str) -> _Paths:
    del text  # part of the key only
    tree = jax.tree_util.tree_unflatten(treedef, range(treedef.num_leaves))
    pairs, again = _flatten(tree, lambda _: False)
    if again != treedef:
        raise ValueError("the structure changes when it is rebuilt")
    return _Paths([path for path, _ in pairs])


def _flatten(
    tree: object, is_leaf: Callable[[object], bool]
) -> tuple[list[tuple[KeyPath, object]], jax.tree_util.PyTreeDef]:
    flatten_with_path = getattr(jax.tree_util, "tree_flatten_with_path")  # noqa: B009 - loosely typed
    return flatten_with_path(tree, is_leaf=is_leaf)


class _Containers:
    """Containers under construction, by the names of the keys that lead to them.

    All are dicts of children by name, of those that will be lists too.
    """

    __slots__ = ("_children", "_keys", "_lenient", "_sequences", "_top")

    def __init__(self, *, lenient: bool) -> None:
        self._lenient = lenient
        self._top: dict[str, object] = {}
        """Holds the root, under an empty name."""
        self._children: dict[NamePath, dict[str, object]] = {}
        self._keys: dict[NamePath, dict[str, object]] = {}
        """Keys that are no strings, by name."""
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
            key: Any = path[-1]  # JAX's keys have no types
            # nearly all keys are strings of dicts
            if type(key) is not DictKey or type(key.key) is not str or above in self._sequences:
                self._note(path, names)
        if name not in children:
            children[name] = value
        elif names not in self._children:
            raise ValueError(f"{format_path(path)} occurs twice")
        elif not is_empty_node(value):
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
        if not is_empty_node(parent.get(name)):
            raise ValueError(f"{format_path(path)} is a leaf and has children")
        children: dict[str, object] = {}
        parent[name] = self._children[names] = children
        return children

    def _note(self, path: KeyPath, names: NamePath) -> None:
        """Note what the last key of a path says of the container that it belongs to."""
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

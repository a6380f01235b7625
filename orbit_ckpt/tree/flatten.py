"""Take trees apart into leaves with key paths, and put them together again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.tree_util import DictKey
from typing_extensions import TypeIs

from orbit_ckpt.tree.keypath import (
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


@dataclass(frozen=True)
class FlatTree:
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
        try:
            values, treedef = jax.tree_util.tree_flatten(tree, is_empty_node)
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


def build_tree(leaves: Iterable[tuple[KeyPath, object]]) -> object:
    """Return nested dicts and lists holding the leaves at their paths.

    Keys of sequences give lists, all others dicts. An empty container at a path that also has
    children is dropped in their favour: old Orbax versions recorded both.

    Raises:
        ValueError: Two leaves share a path, one lies below another, or a sequence has a gap.
    """
    top = _Node()  # holds the root
    nodes: list[_Node] = []
    above: KeyPath = ()
    """Path of the last of `nodes`, which are those on the way there."""
    for path, value in leaves:
        if not path:
            top.place(_ROOT, value, path)
            continue
        if path[:-1] != above or not nodes:  # most leaves follow one beside them
            shared = _count_shared(path[:-1], above)
            nodes = nodes[: shared + 1] or [top.child(_ROOT, ())]
            above = path[:-1]
            for depth in range(shared, len(above)):
                nodes.append(nodes[-1].child(path[depth], path[: depth + 1]))
        nodes[-1].place(path[-1], value, path)
    root = top.nodes.get(_ROOT.key)
    return top.children.get(_ROOT.key, {}) if root is None else root.build(())


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


class _Node:
    """A container under construction: leaves and containers by name."""

    __slots__ = ("children", "is_sequence", "keys", "nodes")

    def __init__(self) -> None:
        self.children: dict[str, object] = {}
        """All children by name; containers are put in at the end, what stands there keeps order."""
        self.nodes: dict[str, _Node] = {}
        self.keys: dict[str, object] = {}
        """Keys of a dict that are no strings, by name."""
        self.is_sequence = False

    def place(self, key: object, value: object, path: KeyPath) -> None:
        """Add the leaf at `path`, whose last key is `key`."""
        name = self._name(key, path)
        if name not in self.children:
            self.children[name] = value
        elif name not in self.nodes:
            raise ValueError(f"{format_path(path)} occurs twice")
        elif not is_empty_node(value):
            raise ValueError(f"{format_path(path)} is a leaf and has children")

    def child(self, key: object, path: KeyPath) -> _Node:
        """Return the container at `path`, whose last key is `key`."""
        name = self._name(key, path)
        node = self.nodes.get(name)
        if node is None:
            if not is_empty_node(self.children.get(name)):
                raise ValueError(f"{format_path(path)} is a leaf and has children")
            node = self.nodes[name] = _Node()
            self.children[name] = node
        return node

    def build(self, path: KeyPath) -> object:
        """Return the container, which is at `path`."""
        children = self.children
        for name, node in self.nodes.items():
            children[name] = node.build((*path, name))
        if not self.is_sequence:
            keys = self.keys
            return {keys.get(n, n): v for n, v in children.items()} if keys else children
        try:
            return [children[str(index)] for index in range(len(children))]
        except KeyError as error:
            raise ValueError(
                f"{format_path(path)} has {len(children)} elements but none at index {error}"
            ) from None

    def _name(self, key: Any, path: KeyPath) -> str:  # JAX's keys have no types
        if type(key) is DictKey and type(key.key) is str and not self.is_sequence:
            return key.key  # what nearly all keys are
        is_sequence = is_sequence_key(key)
        if is_sequence is not self.is_sequence:
            if self.children:
                where = format_path(path[:-1])
                raise ValueError(f"{where} has both positions and names as keys")
            self.is_sequence = is_sequence
        value = key_value(key)
        if type(value) is str:
            return value
        name = str(value)
        self.keys[name] = value
        return name


def _count_shared(path: KeyPath, other: KeyPath) -> int:
    """Return how many keys two paths have in common at their beginning."""
    most = min(len(path), len(other))
    count = 0
    while count < most and path[count] == other[count]:
        count += 1
    return count


_ROOT = DictKey("")

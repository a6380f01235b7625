"""Take trees apart into leaves with key paths, and put them together again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

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
    """

    paths: list[KeyPath]
    values: list[object]
    treedef: jax.tree_util.PyTreeDef

    @functools.cached_property
    def names(self) -> list[NamePath]:
        """The names of the keys of every path."""
        return list(map(name_path, self.paths))

    def with_values(self, values: list[object]) -> FlatTree:
        """Return the same structure with other leaves."""
        other = FlatTree(self.paths, values, self.treedef)
        vars(other)["names"] = self.names
        return other

    def unflatten(self, values: Sequence[object]) -> object:
        """Return a tree of this structure with other leaves."""
        return jax.tree_util.tree_unflatten(self.treedef, values)


def flatten(tree: object) -> FlatTree:
    """Take a tree apart.

    Raises:
        ValueError: A container cannot be flattened, such as a dict whose keys do not sort.
    """
    try:
        pairs, treedef = _flatten(tree, is_empty_node)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The tree cannot be flattened: {error}. JAX sorts the keys of every dict; give keys "
            "of one type, for example all str."
        ) from error
    return FlatTree([path for path, _ in pairs], [value for _, value in pairs], treedef)


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
    above: KeyPath | None = None
    node = top
    for path, value in leaves:
        if not path:
            top.place(_ROOT, value, path)
            continue
        if path[:-1] != above:  # most leaves follow one beside them
            above, node = path[:-1], top.child(_ROOT, ())
            for depth, key in enumerate(above, 1):
                node = node.child(key, path[:depth])
        node.place(path[-1], value, path)
    root = top.children.get(_ROOT.key, _UNSET)
    if isinstance(root, _Node):
        return root.build(())
    return {} if root is _UNSET else root


def _flatten(
    tree: object, is_leaf: Callable[[object], bool]
) -> tuple[list[tuple[KeyPath, object]], jax.tree_util.PyTreeDef]:
    flatten_with_path = getattr(jax.tree_util, "tree_flatten_with_path")  # noqa: B009 - loosely typed
    return flatten_with_path(tree, is_leaf=is_leaf)


class _Node:
    """A container under construction: leaves and containers by name."""

    __slots__ = ("children", "is_sequence", "keys")

    def __init__(self) -> None:
        self.children: dict[str, object] = {}
        self.keys: dict[str, object] = {}
        """Keys of a dict that are no strings, by name."""
        self.is_sequence = False

    def place(self, key: object, value: object, path: KeyPath) -> None:
        """Add the leaf at `path`, whose last key is `key`."""
        name = self._name(key, path)
        if name not in self.children:
            self.children[name] = value
        elif not isinstance(self.children[name], _Node):
            raise ValueError(f"{format_path(path)} occurs twice")
        elif not is_empty_node(value):
            raise ValueError(f"{format_path(path)} is a leaf and has children")

    def child(self, key: object, path: KeyPath) -> _Node:
        """Return the container at `path`, whose last key is `key`."""
        name = self._name(key, path)
        child = self.children.get(name, _UNSET)
        if not isinstance(child, _Node):
            if child is not _UNSET and not is_empty_node(child):
                raise ValueError(f"{format_path(path)} is a leaf and has children")
            child = self.children[name] = _Node()
        return child

    def build(self, path: KeyPath) -> object:
        """Return the container, which is at `path`."""
        built = {
            name: value.build((*path, name)) if isinstance(value, _Node) else value
            for name, value in self.children.items()
        }
        if not self.is_sequence:
            keys = self.keys
            return {keys.get(n, n): v for n, v in built.items()} if keys else built
        try:
            return [built[str(index)] for index in range(len(built))]
        except KeyError as error:
            raise ValueError(
                f"{format_path(path)} has {len(built)} elements but none at index {error}"
            ) from None

    def _name(self, key: object, path: KeyPath) -> str:
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


_ROOT = DictKey("")
_UNSET = object()

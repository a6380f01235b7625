"""Take trees apart into leaves with key paths, and put them together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import jax
from typing_extensions import TypeIs

from orbit_ckpt.tree.keypath import KeyPath, format_path, is_sequence_key, key_name

_registry = jax.tree_util.default_registry

PLACEHOLDER = ...
"""Stands for a leaf of a target that is not to be restored."""


@dataclass(frozen=True, slots=True)
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
    root = _Node()
    for path, value in leaves:
        node = root
        for depth, key in enumerate(path):
            node = node.child(key, path[:depth])
        node.set_value(value, path)
    return root.build(())


def _flatten(
    tree: object, is_leaf: Callable[[object], bool]
) -> tuple[list[tuple[KeyPath, object]], jax.tree_util.PyTreeDef]:
    flatten_with_path = getattr(jax.tree_util, "tree_flatten_with_path")  # noqa: B009 - loosely typed
    return flatten_with_path(tree, is_leaf=is_leaf)


class _Node:
    """A position in a tree under construction: a leaf, or children by name."""

    __slots__ = ("children", "is_sequence", "value")

    def __init__(self) -> None:
        self.children: dict[str, tuple[object, _Node]] = {}
        self.is_sequence = False
        self.value: object = _UNSET

    def child(self, key: object, path: KeyPath) -> _Node:
        name = key_name(key)
        if name in self.children:
            return self.children[name][1]
        sequence = is_sequence_key(key)
        if self.children and sequence != self.is_sequence:
            raise ValueError(f"{format_path(path)} has both positions and names as keys")
        if self.value is not _UNSET and not is_empty_node(self.value):
            raise ValueError(f"{format_path(path)} is a leaf and has children")
        self.is_sequence = sequence
        node = _Node()
        self.children[name] = (key, node)
        return node

    def set_value(self, value: object, path: KeyPath) -> None:
        if self.value is not _UNSET:
            raise ValueError(f"{format_path(path)} occurs twice")
        if self.children and not is_empty_node(value):
            raise ValueError(f"{format_path(path)} is a leaf and has children")
        self.value = value

    def build(self, path: KeyPath) -> object:
        if not self.children:
            return {} if self.value is _UNSET else self.value
        built = {
            name: (key, node.build((*path, key))) for name, (key, node) in self.children.items()
        }
        if not self.is_sequence:
            return {getattr(key, "key", name): value for name, (key, value) in built.items()}
        try:
            return [built[str(index)][1] for index in range(len(built))]
        except KeyError as error:
            raise ValueError(
                f"{format_path(path)} has {len(built)} elements but none at index {error}"
            ) from None


_UNSET = object()

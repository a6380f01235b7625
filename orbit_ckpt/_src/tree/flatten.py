"""Flatten trees into leaves with key paths, and rebuild them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain

import jax
from msgspec import Struct

from orbit_ckpt._src.tree.keypath import (
    DictKey,
    KeyPath,
    NamePath,
    SequenceKey,
    key_class,
    key_value,
    name_path,
    storage_name,
)

_registry = jax.tree_util.default_registry

_LEAF_MARK = "is_checkpoint_leaf"
"""Attribute of classes of pytree nodes that are leaves of checkpoints; see `LeafNode`."""


class LeafPlaces(Struct, frozen=True, dict=True):
    """Where the leaves of a tree sit, and what follows from that; for reading only.

    Attributes:
        paths: The path of each leaf, in JAX's order.
        text: The structure as text, empty if it does not determine them.
    """

    paths: list[KeyPath]
    text: str

    @functools.cached_property
    def names(self) -> list[NamePath]:
        """The names of the keys of every path."""
        return list(map(name_path, self.paths))

    @functools.cached_property
    def storage_names(self) -> list[str]:
        """The storage name of every leaf."""
        return list(map(storage_name, self.names))

    @functools.cached_property
    def has_only_names(self) -> bool:
        """Whether all keys are strings of dicts, or positions in lists and tuples."""
        keys = list(chain.from_iterable(self.paths))
        kinds = {kind: key_class(key) for kind, key in {type(key): key for key in keys}.items()}
        named = [key for key in keys if kinds[type(key)] is DictKey]
        return set(kinds.values()) <= {DictKey, SequenceKey} and (
            set(map(type, map(key_value, named))) <= {str}
        )

    @property
    def is_plain(self) -> bool:
        """Whether all containers are lists, and dicts whose keys are strings."""
        inner = self.text.removeprefix("PyTreeDef(").removesuffix(")")
        return bool(inner) and "(" not in inner and self.has_only_names


class FlatTree(Struct, frozen=True, dict=True):
    """A flattened tree; empty containers, None and marked nodes count as leaves.

    Attributes:
        values: The leaves, in JAX's order.
        treedef: The structure from which `unflatten` rebuilds the containers.
        places: Where the leaves sit, in the same order.
    """

    values: list[object]
    treedef: jax.tree_util.PyTreeDef
    places: LeafPlaces

    @property
    def paths(self) -> list[KeyPath]:
        """The path of each leaf."""
        return self.places.paths

    @property
    def names(self) -> list[NamePath]:
        """The names of the keys of every path."""
        return self.places.names

    def with_values(self, values: list[object]) -> FlatTree:
        """Return the same structure with other leaves."""
        return FlatTree(values, self.treedef, self.places)

    @functools.cached_property
    def empty_positions(self) -> frozenset[int]:
        """The positions of the leaves that are empty containers or None."""
        nodes = {kind for kind, value in self._classes.items() if not is_jax_leaf(value)}
        if not nodes:
            return frozenset()
        pairs = enumerate(self.values)
        return frozenset(i for i, value in pairs if type(value) in nodes and is_empty_node(value))

    @functools.cached_property
    def empty_names(self) -> frozenset[NamePath]:
        """The names of the leaves that are empty containers or None."""
        return frozenset(self.names[position] for position in self.empty_positions)

    @functools.cached_property
    def _classes(self) -> dict[type, object]:
        """The classes of the leaves, each with a leaf."""
        return {type(value): value for value in self.values}

    @functools.cached_property
    def _has_leaf_nodes(self) -> bool:
        return any(map(is_leaf_node, self._classes.values()))

    def values_of(self, tree: object) -> list[object] | None:
        """Return the leaves of a tree in the order of `paths`, None if its structure differs."""
        # without empty containers and nodes that are leaves no node needs a check
        is_leaf = ends_here if self.empty_names or self._has_leaf_nodes else None
        try:
            values, treedef = jax.tree_util.tree_flatten(tree, is_leaf)
        except (TypeError, ValueError):
            return None
        return values if treedef == self.treedef else None

    def unflatten(self, values: Sequence[object]) -> object:
        """Return a tree of this structure with other leaves."""
        return jax.tree_util.tree_unflatten(self.treedef, values)


def flatten(tree: object) -> FlatTree:
    """Flatten a tree.

    Raises:
        ValueError: A container cannot be flattened, such as a dict whose keys do not sort.
    """
    try:
        values, treedef = jax.tree_util.tree_flatten(tree)
        text = _text_of(treedef)
        if text is None or any(mark in text for mark in _ENDS):
            values, treedef = jax.tree_util.tree_flatten(tree, ends_here)
            text = _text_of(treedef)
        places = _places_in(treedef, text)
        if places is None:
            pairs = flatten_with_paths(tree, ends_here)[0]
            places = LeafPlaces([path for path, _ in pairs], "")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The tree cannot be flattened: {error}. JAX sorts the keys of every dict; give keys "
            "of one type, for example all str."
        ) from error
    return FlatTree(values, treedef, places)


def is_empty_node(node: object) -> bool:
    """Return whether a value is None or a container without children, such as `{}` or `()`."""
    kind = type(node)
    if kind is dict or kind is list or kind is tuple:
        return not node
    if node is None:
        return True
    children = _registry.flatten_one_level(node)
    return children is not None and not any(True for _ in children[0])


def is_leaf_node(node: object) -> bool:
    """Return whether a value is a pytree node that is one leaf of checkpoints."""
    return getattr(type(node), _LEAF_MARK, False) is True


def is_jax_leaf(node: object) -> bool:
    """Return whether JAX takes a value for a leaf, which None and empty containers are not."""
    return _registry.flatten_one_level(node) is None


def ends_here(node: object) -> bool:
    """Return whether a node counts as a leaf, although JAX would flatten it."""
    return is_empty_node(node) or is_leaf_node(node)


def is_leaf(node: object) -> bool:
    """Return whether a value is a leaf, empty containers and None included."""
    return ends_here(node) or is_jax_leaf(node)


def children_of(node: object) -> list[tuple[object, object]]:
    """Return the children of a node with their keys, None and empty containers included.

    A leaf has none.
    """
    pairs = flatten_with_paths(node, lambda x: x is not node)[0]
    return [(path[0], child) for path, child in pairs if path]


_ENDS = ("None", "{}", "[]", "()", "CustomNode")
"""The text of a structure without any of these has no empty containers and no nodes of classes."""


def _text_of(treedef: jax.tree_util.PyTreeDef) -> str | None:
    """Return a structure as text, None if a key or a class has none."""
    try:
        return str(treedef)
    except Exception:  # noqa: BLE001 - third-party classes
        return None


def _places_in(treedef: jax.tree_util.PyTreeDef, text: str | None) -> LeafPlaces | None:
    """Return the places of the leaves of a structure, None if the structure alone is not enough.

    A training saves trees of one structure repeatedly; its paths are computed once.
    """
    if text is None:
        return None
    try:
        # equal but different keys, such as 1 and True, differ as text
        return _known_places(treedef, text)
    except Exception:  # noqa: BLE001 - third-party classes, which may not accept numbers as leaves
        return None


@functools.lru_cache(maxsize=2)
def _known_places(treedef: jax.tree_util.PyTreeDef, text: str) -> LeafPlaces:
    tree = jax.tree_util.tree_unflatten(treedef, range(treedef.num_leaves))
    pairs, again = flatten_with_paths(tree, lambda _: False)
    if again != treedef:
        raise ValueError("the structure changes when it is rebuilt")
    return LeafPlaces([path for path, _ in pairs], text)


def flatten_with_paths(
    tree: object, is_leaf: Callable[[object], bool] | None = None
) -> tuple[list[tuple[KeyPath, object]], jax.tree_util.PyTreeDef]:
    """Return the leaves of a tree with their paths, and its structure, as JAX sees them."""
    return jax.tree_util.tree_flatten_with_path(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - JAX's keys have no types
        tree, is_leaf=is_leaf
    )

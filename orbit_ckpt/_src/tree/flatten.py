"""Flatten trees into leaves with key paths, and rebuild them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax
from msgspec import Struct

from orbit_ckpt._src.tree.keypath import KeyPath, NamePath, name_path

_registry = jax.tree_util.default_registry

_LEAF_MARK = "is_checkpoint_leaf"
"""Attribute of classes of pytree nodes that are leaves of checkpoints; see `LeafNode`."""


class FlatTree(Struct, frozen=True, dict=True):
    """A flattened tree; empty containers, None and marked nodes count as leaves.

    Attributes:
        paths: The path of each leaf, in JAX's order.
        values: The leaves, in the same order.
        treedef: The structure from which `unflatten` rebuilds the containers.
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

    @functools.cached_property
    def _has_leaf_nodes(self) -> bool:
        return any(map(is_leaf_node, self.values))

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
        values, treedef = jax.tree_util.tree_flatten(tree, ends_here)
        paths = _paths_in(treedef)
        if paths is None:
            paths = _Paths([path for path, _ in flatten_with_paths(tree, ends_here)[0]])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The tree cannot be flattened: {error}. JAX sorts the keys of every dict; give keys "
            "of one type, for example all str."
        ) from error
    return FlatTree(paths.paths, values, treedef, paths.names)


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


class _Paths:
    """The paths of the leaves of a tree, with the names of the keys."""

    __slots__ = ("names", "paths")

    def __init__(self, paths: list[KeyPath]) -> None:
        self.paths = paths
        self.names = list(map(name_path, paths))


def _paths_in(treedef: jax.tree_util.PyTreeDef) -> _Paths | None:
    """Return the paths of the leaves of a structure, None if the structure alone is not enough.

    A training saves trees of one structure repeatedly; its paths are computed once.
    """
    try:
        # equal but different keys, such as 1 and True, differ as text
        return _known_paths(treedef, str(treedef))
    except Exception:  # noqa: BLE001 - third-party classes, which may not accept numbers as leaves
        return None


@functools.lru_cache(maxsize=2)
def _known_paths(treedef: jax.tree_util.PyTreeDef, text: str) -> _Paths:
    del text  # part of the key only
    tree = jax.tree_util.tree_unflatten(treedef, range(treedef.num_leaves))
    pairs, again = flatten_with_paths(tree, lambda _: False)
    if again != treedef:
        raise ValueError("the structure changes when it is rebuilt")
    return _Paths([path for path, _ in pairs])


def flatten_with_paths(
    tree: object, is_leaf: Callable[[object], bool] | None = None
) -> tuple[list[tuple[KeyPath, object]], jax.tree_util.PyTreeDef]:
    """Return the leaves of a tree with their paths, and its structure, as JAX sees them."""
    return jax.tree_util.tree_flatten_with_path(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - JAX's keys have no types
        tree, is_leaf=is_leaf
    )

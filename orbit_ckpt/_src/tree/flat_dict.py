"""Trees as flat dicts and as dicts and lists, under Orbax's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from orbit_ckpt._src.errors import TreeMismatchError
from orbit_ckpt._src.guards import is_dict, is_list_or_tuple, is_mapping, is_tuple
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.flatten import (
    children_of,
    flatten_with_paths,
    is_empty_node,
    is_jax_leaf,
)
from orbit_ckpt._src.tree.keypath import (
    DictKey,
    GetAttrKey,
    KeyPath,
    NamePath,
    SequenceKey,
    format_path,
    is_sequence_key,
    key_class,
    key_name,
    key_value,
    name_path,
    storage_name,
)

_MISSING = object()

PyTree = Any
"""A tree of any type."""

_T = TypeVar("_T")

PyTreeOf = PyTree | _T
"""A tree whose leaves are of one type, as in `PyTreeOf[T]`; for annotations."""

PyTreeKey = (
    jax.tree_util.SequenceKey
    | jax.tree_util.DictKey
    | jax.tree_util.GetAttrKey
    | jax.tree_util.FlattenedIndexKey
)
"""A key of JAX's key paths."""

PyTreePath = tuple[PyTreeKey, ...]
"""A key path of JAX."""

JsonType = list["JsonType"] | dict[str, "JsonType"] | str | int | float | bool | None
"""What JSON can represent."""


class _MissingLeafError(TreeMismatchError, KeyError):
    """A leaf of the target is missing; Orbax raises a KeyError."""


def is_empty_or_leaf(node: object) -> bool:
    """Return whether a value is a leaf, None or a container without children."""
    return is_empty_node(node) or is_jax_leaf(node)


def is_dict_key(key: object) -> bool:
    """Return whether a key of a path is a dict's key or an attribute."""
    return key_class(key) in (DictKey, GetAttrKey)


def get_key_name(key: object) -> int | str:
    """Return the index of a sequence's key, the text of any other.

    Raises:
        ValueError: It is not a key of a path.
    """
    if is_sequence_key(key):
        value = key_value(key)
        return value if isinstance(value, int) else str(value)
    if not is_dict_key(key):
        raise ValueError(f"{key!r} ({type(key).__name__}) is not a key of a JAX key path.")
    return key_name(key)


def str_keypath(keypath: KeyPath) -> NamePath:
    """Return the names of a path's keys."""
    return name_path(keypath)


def get_param_names(item: PyTree, *, include_empty_nodes: bool = True) -> PyTree:
    """Return a tree with the storage name of each leaf.

    Args:
        item: A tree.
        include_empty_nodes: Whether None and empty containers get a name, too.
    """
    flat, treedef = flatten_with_paths(item, is_empty_or_leaf if include_empty_nodes else None)
    names = [storage_name(name_path(path)) for path, _ in flat]
    return jax.tree_util.tree_unflatten(treedef, names)


def from_flattened_with_keypath(flat_with_keys: Sequence[tuple[KeyPath, object]]) -> PyTree:
    """Return nested dicts and lists of leaves at JAX's key paths.

    Tuples become lists, namedtuples and other nodes with named children become dicts, and keys of
    dicts become text.

    Raises:
        ValueError: There are no leaves, or they do not make a tree.
    """
    if not flat_with_keys:
        raise ValueError(
            "There are no leaves to build a tree from; give a tree that has some, or keep its "
            "empty nodes with keep_empty_nodes=True."
        )
    paths = [tuple(map(_named, path)) for path, _ in flat_with_keys]
    values = [value for _, value in flat_with_keys]
    return build_tree(zip(paths, values, strict=True), map(name_path, paths))


def _named(key: object) -> object:
    name = get_key_name(key)
    return SequenceKey(name) if isinstance(name, int) else DictKey(name)


def serialize_tree(tree: PyTree, keep_empty_nodes: bool = False) -> PyTree:
    """Return a tree as nested dicts and lists; see `from_flattened_with_keypath`.

    Args:
        tree: A tree.
        keep_empty_nodes: Whether to keep None and empty containers.

    Raises:
        ValueError: The tree has no leaves.
    """
    is_leaf = is_empty_or_leaf if keep_empty_nodes else None
    return from_flattened_with_keypath(flatten_with_paths(tree, is_leaf)[0])


def deserialize_tree(serialized: PyTree, target: PyTree, keep_empty_nodes: bool = False) -> PyTree:
    """Return the leaves of a serialized tree in a target's structure.

    Args:
        serialized: Usually a result of `serialize_tree`.
        target: Tree with the structure of the result.
        keep_empty_nodes: Whether to look up its empty nodes too.

    Raises:
        TreeMismatchError: A leaf of the target does not exist.
    """
    is_leaf = is_empty_or_leaf if keep_empty_nodes else None
    flat, treedef = flatten_with_paths(target, is_leaf)
    return jax.tree_util.tree_unflatten(treedef, [_look_up(serialized, path) for path, _ in flat])


def _look_up(tree: object, path: KeyPath) -> object:
    for depth, key in enumerate(path):
        child = _child(tree, key)
        if child is _MISSING:
            known = shorten_list([key_name(k) for k, _ in children_of(tree)]) or "no children"
            raise _MissingLeafError(
                f"{format_path(path)}: there is no {key_name(key)!r} in "
                f"{format_path(path[:depth])} of the serialized tree, which has {known}. Give a "
                "target with the same keys.",
                paths=[format_path(path)],
            )
        tree = child
    return tree


def _child(node: object, key: object) -> object:
    """Return the child of a node under a key; serialized dicts have the key's name instead."""
    value = key_value(key)
    if is_list_or_tuple(node) and isinstance(value, int):
        return node[value] if 0 <= value < len(node) else _MISSING
    if not is_mapping(node):
        node = {key_value(k): child for k, child in children_of(node)}
    return node[value] if value in node else node.get(key_name(key), _MISSING)


def is_flat_dict(tree: PyTree) -> bool:
    """Return whether a tree is a dict of leaves."""
    return is_dict(tree) and jax.tree_util.all_leaves(tree.values())


def to_flat_dict(
    tree: PyTree,
    sep: str | None = None,
    keep_empty_nodes: bool = False,
    is_leaf: Callable[[Any], bool] | None = None,
) -> dict[Any, Any]:
    """Return the leaves of a tree by the names of their keys.

    Args:
        tree: A tree.
        sep: Joins the names to a string; None for tuples of names.
        keep_empty_nodes: Whether None and empty containers count as leaves.
        is_leaf: Returns whether a node is a leaf; replaces `keep_empty_nodes`.

    Example:
        >>> to_flat_dict({"a": 1, "b": {"c": [2], "d": {}}}, sep="/")
        {'a': 1, 'b/c/0': 2}
    """
    is_leaf = is_leaf or (is_empty_or_leaf if keep_empty_nodes else None)
    flat = flatten_with_paths(tree, is_leaf)[0]
    names = {name_path(path): value for path, value in flat}
    return names if sep is None else {sep.join(path): value for path, value in names.items()}


def from_flat_dict(
    flat_dict: Mapping[Any, Any],
    target: PyTree | None = None,
    sep: str | None = None,
    *,
    inplace: bool = False,
) -> PyTree:
    """Return the tree that `to_flat_dict` flattened.

    Args:
        flat_dict: Leaves by names.
        target: Tree with the structure of the result; None for nested dicts.
        sep: Separates the names in the keys; None if the keys are tuples.
        inplace: Whether to remove the leaves from `flat_dict`, so that memory does not hold both.

    Raises:
        TreeMismatchError: A leaf of the target is missing.
        ValueError: The keys do not make a tree, or `inplace` is given for anything but a dict.
    """
    take: Callable[[object], object] = flat_dict.__getitem__
    if inplace:
        if not is_dict(flat_dict):
            raise ValueError(f"inplace=True needs a dict, found {type(flat_dict).__name__}.")
        take = flat_dict.pop
    if target is None:
        return _nested({_split(key, sep): key for key in flat_dict}, take)
    keys = to_flat_dict(target, sep)
    missing = [key for key in keys if key not in flat_dict]
    if missing:
        names = [key if isinstance(key, str) else format_path(key) for key in missing]
        raise _MissingLeafError(
            f"The target has leaves that the flat dict lacks: {shorten_list(names)}. Leave them "
            "out of the target, or add them.",
            paths=names,
        )
    structure = jax.tree_util.tree_structure(target)
    return jax.tree_util.tree_unflatten(structure, [take(key) for key in keys])


def _nested(keys: Mapping[tuple[object, ...], object], take: Callable[[object], object]) -> PyTree:
    if () in keys and len(keys) > 1:
        raise ValueError(f"<root> is a leaf, and there are others: {shorten_list(list(keys))}")
    return build_tree((tuple(map(DictKey, path)), take(key)) for path, key in keys.items())


def _split(key: object, sep: str | None) -> tuple[object, ...]:
    if sep is None and is_tuple(key):
        return key
    if sep is not None and isinstance(key, str):
        return tuple(key.split(sep))
    raise ValueError(
        f"The key {key!r} of a flat dict is not {'a tuple' if sep is None else 'text'}. Give the "
        "same `sep` as to `to_flat_dict`."
    )

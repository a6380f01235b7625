"""Compare, trim and merge trees node by node, under Orbax's names.

A node's children have JAX's keys; children of nodes of different classes correspond if the names of
their keys are equal.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax

from orbit_ckpt._src.errors import TreeMismatchError
from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.build import PLACEHOLDER, is_namedtuple
from orbit_ckpt._src.tree.flat_dict import PyTree, to_flat_dict
from orbit_ckpt._src.tree.flatten import children_of, flatten_with_paths, is_jax_leaf
from orbit_ckpt._src.tree.keypath import format_path, key_name, key_value, name_path

IsLeaf = Callable[[Any], bool]
Children = dict[Any, Any]
TreePath = tuple[Any, ...]

Wanted = dict[Any, object]
"""The children of a template's node by the key or name that identifies them."""

Found = dict[Any, tuple[Any, object]]
"""The children of a tree's node, likewise, with their keys for the callback."""


class Diff(NamedTuple):
    """The values of two trees in one place.

    Attributes:
        lhs: Of the first tree: the leaf, the class of a node, or class and length of a sequence.
        rhs: The same of the second tree. None for a child that one of them lacks.
    """

    lhs: Any
    rhs: Any


def tree_difference(
    a: PyTree,
    b: PyTree,
    *,
    is_leaf: IsLeaf | None = None,
    leaves_equal: Callable[[Any, Any], bool] | None = None,
) -> PyTree:
    """Return where two trees differ, as a tree of `Diff`; None if they do not.

    The result has the nodes above the differences: a dict has the children that differ, a sequence
    and any other node None for those that do not.

    Args:
        a: A tree.
        b: Another.
        is_leaf: Returns whether a node is a leaf, instead of JAX's rule.
        leaves_equal: Returns whether two leaves are equal; by default those of one class are.

    Example:
        >>> tree_difference({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": "x"})
        {'b': Diff(lhs=2, rhs='x'), 'c': Diff(lhs=3, rhs=None)}
    """
    ends = is_leaf or is_jax_leaf
    if ends(a) and ends(b):
        same = leaves_equal(a, b) if leaves_equal is not None else type(a) is type(b)
        return None if same else Diff(a, b)
    if type(a) is not type(b):
        return Diff(type(a), type(b))
    differ = functools.partial(tree_difference, is_leaf=is_leaf, leaves_equal=leaves_equal)
    if is_list_or_tuple(a):
        if len(a) != len(b):
            return Diff((type(a), len(a)), (type(b), len(b)))
        found = list(map(differ, a, b))
        return None if all(diff is None for diff in found) else _sequence_like(a, found)
    left, right = _children(a), _children(b)
    common = {key: differ(left[key], right[key]) for key in left if key in right}
    diffs = {key: diff for key, diff in common.items() if diff is not None}
    diffs |= {key: Diff(child, None) for key, child in left.items() if key not in right}
    diffs |= {key: Diff(None, child) for key, child in right.items() if key not in left}
    if is_mapping(a) or not diffs:
        return diffs or None
    return _with_children(a, [diffs.get(key) for key in left])


def _children(node: object) -> Children:
    """Return the children of a node by key: that of a mapping itself, else JAX's."""
    if is_mapping(node):
        return dict(node)
    return dict(children_of(node))


def _named_children(node: object) -> Children:
    """Return the children of a node by the value of a mapping's key, else by a key's name."""
    if is_mapping(node):
        return dict(node)
    return {key_name(key): child for key, child in children_of(node)}


def _sequence_like(node: Any, children: Sequence[Any]) -> Any:
    return type(node)(*children) if is_namedtuple(node) else type(node)(children)


def _with_children(node: object, children: Sequence[object]) -> object:
    structure = flatten_with_paths(node, lambda child: child is not node)[1]
    return jax.tree_util.tree_unflatten(structure, children)


@dataclass(frozen=True)
class PartialTree:
    """A tree whose leaves may be missing; the result of `tree_trim(strict=False)`.

    Attributes:
        unsafe_structure: The tree, with PLACEHOLDER for leaves that are missing.
    """

    unsafe_structure: PyTree

    @property
    def full_structure(self) -> PyTree:
        """The tree.

        Raises:
            TreeMismatchError: It lacks a leaf.
        """
        flat = flatten_with_paths(self.unsafe_structure)[0]
        missing = [format_path(name_path(path)) for path, leaf in flat if leaf is PLACEHOLDER]
        if missing:
            raise TreeMismatchError(
                f"The tree lacks leaves of the template: {shorten_list(missing)}. Leave them out "
                "of the template.",
                paths=missing,
            )
        return self.unsafe_structure

    def is_empty(self) -> bool:
        """Return whether all leaves are missing."""
        leaves = jax.tree_util.tree_leaves(self.unsafe_structure)
        return all(leaf is PLACEHOLDER for leaf in leaves)


def tree_trim(
    template: PyTree,
    structure: PyTree,
    *,
    trimmed_structure_callback: Callable[[TreePath, Any], object] | None = None,
    strict: bool = True,
    allow_sequence_mapping_alignment: bool = False,
) -> PyTree:
    """Return a template with the leaves of a tree that has more children.

    Args:
        template: A tree. None in it drops anything.
        structure: The tree with the leaves. Its sequences are as long as those of the template.
        trimmed_structure_callback: Called with the path and the value of each child dropped. Keys
            of nodes that are neither dicts nor sequences are JAX's text.
        strict: Whether a missing leaf is an error; else the result is a `PartialTree`.
        allow_sequence_mapping_alignment: Whether a dict of the template takes a sequence, by
            position.

    Raises:
        TypeError: A node of the tree does not correspond to the template's.
        ValueError: A leaf of the template is missing, or a sequence has another length.

    Example:
        >>> tree_trim({"a": 0, "b": [0]}, {"a": 1, "b": [2], "c": 3})
        {'a': 1, 'b': [2]}
    """
    trimmer = _Trimmer(
        trimmed_structure_callback, strict=strict, align=allow_sequence_mapping_alignment
    )
    leaves = trimmer.leaves(template, structure, ())
    treedef = jax.tree_util.tree_structure(template)
    trimmed = PartialTree(jax.tree_util.tree_unflatten(treedef, leaves))
    return trimmed.full_structure if strict else trimmed


class _Trimmer:
    """Collects the leaves for a template in its order, PLACEHOLDER for missing ones."""

    def __init__(
        self, dropped: Callable[[TreePath, Any], object] | None, *, strict: bool, align: bool
    ) -> None:
        self._callback = dropped
        self._strict = strict
        self._align = align

    def leaves(self, template: object, node: object, path: TreePath) -> list[object]:
        """Return the leaves of a node that the template has.

        Args:
            template: Node of the template.
            node: Node of the tree.
            path: Its path.
        """
        if template is None and is_jax_leaf(node):
            self._drop(path, node)
            return []
        if is_jax_leaf(template):
            if node is not None and not is_jax_leaf(node):
                raise _mismatch(template, node, path)
            return [PLACEHOLDER if node is None else node]
        wanted, found = self._children({} if template is None else template, node, path)
        missing = [name for name in wanted if name not in found]
        if missing and self._strict:
            raise ValueError(
                f"{_format(path)} lacks {shorten_list(missing)}, which the template has; give "
                "strict=False to allow that."
            )
        for name, (key, child) in found.items():
            if name not in wanted:
                self._drop((*path, key), child)
        leaves: list[object] = []
        for name, child in wanted.items():
            if name in found:
                key, counterpart = found[name]
                leaves += self.leaves(child, counterpart, (*path, key))
            else:
                leaves += [PLACEHOLDER] * len(jax.tree_util.tree_leaves(child))
        return leaves

    def _drop(self, path: TreePath, child: object) -> None:
        if self._callback is not None:
            self._callback(path, child)

    def _children(self, template: object, node: object, path: TreePath) -> tuple[Wanted, Found]:
        """Return the children of both nodes as `Wanted` and `Found`.

        Keys of nodes that are neither dicts nor sequences are JAX's text.
        """
        if is_list_or_tuple(template) and not (is_namedtuple(template) and is_mapping(node)):
            return _aligned(template, node, path)
        if is_mapping(template):
            wanted = {key_value(key): child for key, child in children_of(template)}
            if is_jax_leaf(node) or (_is_plain_sequence(node) and not self._align):
                raise _mismatch(template, node, path)
        else:
            wanted = {key_name(key): child for key, child in children_of(template)}
            if is_jax_leaf(node):
                raise _mismatch(template, node, path)
        if is_mapping(node) and _has_names(template):
            return wanted, {key: (key, child) for key, child in node.items()}
        keystr: Callable[[Any], str] = cast(Any, jax.tree_util).keystr
        children = children_of(node)
        return wanted, {key_name(key): (keystr((key,)), child) for key, child in children}


def _aligned(template: Sequence[object], node: object, path: TreePath) -> tuple[Wanted, Found]:
    node = () if node is None else node
    if not is_list_or_tuple(node):
        raise _mismatch(template, node, path)
    if len(node) != len(template):
        raise ValueError(
            f"{_format(path)} has {len(node)} elements, the template {len(template)}; sequences "
            "are not trimmed."
        )
    found: Found = {index: (index, child) for index, child in enumerate(node)}
    return dict(enumerate(template)), found


def _mismatch(template: object, node: object, path: TreePath) -> TypeError:
    kinds = (type(node).__name__, type(template).__name__)
    return TypeError(f"{_format(path)} is of type {kinds[0]}, the template's of type {kinds[1]}.")


def _format(path: TreePath) -> str:
    return format_path(tuple(map(str, path)))


def merge_trees(*trees: PyTree, overwrite: bool = False, is_leaf: IsLeaf | None = None) -> PyTree:
    """Merge trees node by node; the nodes are those of the later tree.

    Dicts and namedtuples are merged by key, sequences of one length by position. None gives way
    to anything. A namedtuple that gets more keys becomes a dict.

    Args:
        *trees: The trees.
        overwrite: Whether a later leaf replaces an earlier one, and nodes may be of different
            classes; else both are errors.
        is_leaf: Returns whether a node is a leaf; by default JAX's leaves and None are.

    Raises:
        ValueError: Two trees have a leaf in common or nodes of different classes, and `overwrite`
            is False; or nodes cannot be merged.

    Example:
        >>> merge_trees({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}})
        {'a': 1, 'b': {'c': 2, 'd': 3}}
    """
    if not trees:
        return {}
    ends = is_leaf or _is_leaf_or_none
    if not overwrite:
        seen: set[object] = set()
        for tree in trees:
            names = to_flat_dict(tree, is_leaf=ends).keys()
            common = [format_path(path) for path in names if path in seen]
            if common:
                raise ValueError(
                    f"The trees have leaves in common: {shorten_list(common)}. Give "
                    "overwrite=True to take those of the later tree."
                )
            seen |= names
    merge = functools.partial(_merge, overwrite=overwrite, is_leaf=ends)
    return functools.reduce(lambda merged, tree: merge(tree, merged), trees)


def _merge(new: Any, old: Any, *, overwrite: bool, is_leaf: IsLeaf) -> Any:
    if type(new) is not type(old) and not overwrite:
        raise ValueError(
            f"A {type(new).__name__} cannot be merged with a {type(old).__name__}; give "
            "overwrite=True to allow nodes of different classes."
        )
    if is_leaf(new) or is_leaf(old):
        return old if new is None else new
    merge = functools.partial(_merge, overwrite=overwrite, is_leaf=is_leaf)
    if _is_plain_sequence(new):
        if not is_list_or_tuple(old) or len(new) != len(old):
            raise _no_merge(new, old)
        return _sequence_like(new, list(map(merge, new, old)))
    if _is_plain_sequence(old) or (_has_names(new) and not _has_names(old)):
        raise _no_merge(new, old)
    merged, added = _named_children(old), _named_children(new)
    for name, child in added.items():
        merged[name] = merge(child, merged[name]) if name in merged else child
    if is_mapping(new):
        return _mapping_like(new, merged)
    if merged.keys() == added.keys():
        return _with_children(new, [merged[name] for name in added])
    if is_namedtuple(new):
        return merged
    raise _no_merge(new, old)


def _is_leaf_or_none(node: object) -> bool:
    return node is None or is_jax_leaf(node)


def _is_plain_sequence(node: object) -> bool:
    return is_list_or_tuple(node) and not is_namedtuple(node)


def _has_names(node: object) -> bool:
    return is_mapping(node) or is_namedtuple(node)


def _no_merge(new: object, old: object) -> ValueError:
    return ValueError(
        f"{old!r:.80} cannot be merged with {new!r:.80}: sequences need one length, and other "
        "nodes the same names. Change one of them."
    )


def _mapping_like(node: Any, children: dict[Any, Any]) -> Any:
    try:
        return type(node)(children)
    except (TypeError, ValueError):  # defaultdict, for one
        return children

"""Align what a checkpoint has with what a target asks for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct, structs

from orbit_ckpt._src.arrays.dtypes import DType, as_dtype, number_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import TreeMismatchError
from orbit_ckpt._src.metadata.values import ArrayMetadata, Metadata, StringMetadata
from orbit_ckpt._src.pytree.request import RestoreRequest
from orbit_ckpt._src.pytree.target import describe_change, is_abstract
from orbit_ckpt._src.pytree.view import View
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.tree.diff import TreeDifference, compare_names
from orbit_ckpt._src.tree.flatten import PLACEHOLDER, FlatTree, flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import KeyPath, NamePath

Origin = Literal["target", "fallback", "skip"]
"""Where a leaf comes from that is not read: the target's own, the fallback's, or nowhere."""


class Alignment(Struct, frozen=True):
    """Which leaves of a result come from where.

    Attributes:
        wanted: The target's leaves, None if there is no target.
        filled: Leaves of the result that do not come from the checkpoint.
        origins: Where those come from.
        paths: Where those sit that are in no target.
        difference: Leaves that are missing or unexpected, which the request does not allow.
    """

    wanted: Mapping[NamePath, object] | None
    filled: Mapping[NamePath, object]
    origins: Mapping[NamePath, Origin]
    paths: Mapping[NamePath, KeyPath]
    difference: TreeDifference | None = None

    def is_read(self, names: NamePath) -> bool:
        """Whether a leaf that the checkpoint has is part of the result."""
        return names not in self.filled and (
            self.wanted is None or self.wanted.get(names, PLACEHOLDER) is not PLACEHOLDER
        )


def align(view: View, target: FlatTree | None, request: RestoreRequest) -> Alignment:
    """Return which leaves come from where, and what must not be missing or unexpected."""
    fallback = None if request.fallback is None else flatten(request.fallback)
    spare = _leaves(fallback)
    if () in spare and () not in view.names and (target is None or () not in target.names):
        raise TypeError(
            f"fallback must be a tree like the result, found {show(request.fallback)}. Give the "
            "leaves that may be missing under their keys, {'ema': value}."
        )
    if target is None:
        known = set(view.names)
        added = {names: value for names, value in spare.items() if names not in known}
        paths = {} if fallback is None else dict(zip(fallback.names, fallback.paths, strict=True))
        return Alignment(None, added, dict.fromkeys(added, "fallback"), paths)
    wanted = dict(zip(target.names, target.values, strict=True))
    has_empty = {names for names, record in view.records.items() if record.is_empty}
    is_plain = not has_empty and not target.empty_names and not view.computed and not view.left_out
    if is_plain and wanted.keys() == view.records.keys():
        return Alignment(wanted, {}, {}, {})
    filled: dict[NamePath, object] = {}
    origins: dict[NamePath, Origin] = {}
    difference = _difference(view, target, wanted, has_empty)
    missing = _fill(difference.missing, wanted, spare, request, filled, origins)
    missing += _keep(view.kept, wanted, spare, filled, origins)
    unexpected = () if request.unexpected == "ignore" else difference.unexpected
    found = TreeDifference(missing, unexpected, difference.changed, difference.candidates)
    return Alignment(wanted, filled, origins, {}, found or None)


def _leaves(tree: FlatTree | None) -> dict[NamePath, object]:
    if tree is None:
        return {}
    pairs = zip(tree.names, tree.values, strict=True)
    return {names: value for names, value in pairs if not is_empty_node(value)}


def _difference(
    view: View,
    target: FlatTree,
    wanted: Mapping[NamePath, object],
    has_empty: set[NamePath],
) -> TreeDifference:
    """Return how the leaves of a target differ from those of a checkpoint."""
    full = wanted.keys() - target.empty_names
    known = ({*view.records, *view.computed} - has_empty) | ((view.kept | view.left_out) & full)
    # an empty container holds nothing that could be missing: {} and no key at all are the same
    difference = compare_names(
        [names for names in wanted if names in full and names not in has_empty],
        [names for names in view.names if names in known],
    )
    skipped = {names for names, value in wanted.items() if value is PLACEHOLDER}
    changed = {
        names: "the target has a leaf, an empty container or None is stored"
        for names in wanted
        if names in full and names in has_empty and names not in skipped
    }
    return TreeDifference(
        [names for names in difference.missing if names not in skipped],
        _outside(difference.unexpected, skipped),
        changed,
        difference.unexpected,
    )


def _outside(names: Sequence[NamePath], skipped: set[NamePath]) -> list[NamePath]:
    """Return the leaves that do not lie below a skipped subtree."""
    return [
        path for path in names if not any(path[:depth] in skipped for depth in range(len(path)))
    ]


def _fill(
    missing: Iterable[NamePath],
    wanted: Mapping[NamePath, object],
    spare: Mapping[NamePath, object],
    request: RestoreRequest,
    filled: dict[NamePath, object],
    origins: dict[NamePath, Origin],
) -> list[NamePath]:
    """Fill in what the checkpoint lacks; return what remains missing."""
    remaining: list[NamePath] = []
    for names in missing:
        if names in spare:
            filled[names], origins[names] = spare[names], "fallback"
        elif request.missing in ("target", "keep") and not is_abstract(wanted[names]):
            filled[names], origins[names] = wanted[names], "target"
        elif request.missing == "skip":
            filled[names], origins[names] = PLACEHOLDER, "skip"
        else:
            remaining.append(names)
    return remaining


def _keep(
    kept: Iterable[NamePath],
    wanted: Mapping[NamePath, object],
    spare: Mapping[NamePath, object],
    filled: dict[NamePath, object],
    origins: dict[NamePath, Origin],
) -> list[NamePath]:
    """Keep leaves of the target; return those that have no value."""
    remaining: list[NamePath] = []
    for names in kept:
        if names not in wanted:
            continue
        if not is_abstract(wanted[names]):
            filled[names], origins[names] = wanted[names], "target"
        elif names in spare:
            filled[names], origins[names] = spare[names], "fallback"
        else:
            remaining.append(names)
    return remaining


def mismatch(difference: TreeDifference) -> TreeMismatchError:
    """Return the error that lists how a target differs from a checkpoint."""
    hints = ["Change the target"]
    if () in difference.missing:
        hints.append("it is a single leaf, give a tree with the checkpoint's leaves")
    elif difference.missing:
        hints.append(
            "for leaves that the checkpoint lacks give `fallback=` a tree that has them, or a "
            "target with values and `missing='target'`"
        )
    if difference.unexpected:
        hints.append(
            "to leave out leaves of the checkpoint pass `partial_restore=True` "
            "(`unexpected='ignore'` to `load`) or use PLACEHOLDER leaves"
        )
    if any("shape " in text for text in difference.changed.values()):
        hints.append(
            "to pad or cut arrays pass `strict=False`; a rule such as `transform.Transpose` or "
            "`transform.Map` changes shapes"
        )
    if any("dtype " in text for text in difference.changed.values()):
        hints.append("to cast to another kind of number pass `cast='unsafe'`")
    if not difference.missing and not difference.unexpected:
        return TreeMismatchError(
            "The target's shapes or dtypes do not match the checkpoint's:\n"
            f"{difference.describe()}\n{'; '.join(hints)}.",
            paths=difference.paths,
        )
    return TreeMismatchError(
        "User-provided restore item and on-disk value metadata tree structures do not match:\n"
        f"{difference.describe()}\n{'; '.join(hints)}.",
        paths=difference.paths,
    )


def check_leaves(
    alignment: Alignment,
    view: View,
    found: Mapping[NamePath, object],
    unchecked: Mapping[NamePath, object],
    request: RestoreRequest,
) -> None:
    """Check leaves, their shapes and dtypes against the target.

    Args:
        alignment: Which leaves are wanted.
        view: What there is.
        found: Metadata of the leaves that are read as they are.
        unchecked: Leaves that are cast to what the caller asked for besides the target.
        request: What is allowed.

    Raises:
        TreeMismatchError: Some differ; lists all of them.
    """
    wanted = alignment.wanted or {}
    difference = alignment.difference or TreeDifference([], [], {})
    changed = dict(difference.changed)

    def check(names: NamePath, metadata: Metadata | None) -> None:
        if names in unchecked and isinstance(metadata, ArrayMetadata):
            dtype: object = getattr(wanted[names], "dtype", metadata.dtype)
            metadata = structs.replace(metadata, dtype=dtype)
        change = describe_change(
            wanted[names], metadata, strict=request.strict, casting=request.casting
        )
        if change:
            changed[names] = change

    for names, metadata in found.items():
        dtype = view.casts.get(names)
        if dtype is not None and isinstance(metadata, ArrayMetadata):
            metadata = structs.replace(metadata, dtype=as_dtype(dtype))  # noqa: PLW2901 - as cast
        if isinstance(metadata, Metadata) and not view.records[names].is_empty:
            check(names, metadata)
    for names, node in view.computed.items():
        if alignment.is_read(names) and node.info.shape is not None:
            dtype = node.info.dtype or getattr(wanted[names], "dtype", None)
            if dtype is not None:
                check(names, made_of(node.info.shape, dtype))
    for names, value in alignment.filled.items():
        if alignment.origins[names] == "fallback" and names in wanted:
            check(names, _metadata_of(value))
    difference = structs.replace(difference, changed=changed)
    if difference:
        raise mismatch(difference)


def _metadata_of(value: object) -> Metadata | None:
    if isinstance(value, str):
        return StringMetadata("", cast(Path, None))
    if isinstance(value, bool | int | float | complex):
        return made_of((), number_dtype(value))
    array: Any = value
    return made_of(array.shape, array.dtype) if hasattr(value, "shape") else None


def made_of(shape: Shape, dtype: object) -> ArrayMetadata:
    """Return metadata of an array that is not stored."""
    return ArrayMetadata("", cast(Path, None), shape, None, cast(DType, dtype))

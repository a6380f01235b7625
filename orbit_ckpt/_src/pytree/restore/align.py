"""Align the leaves of a checkpoint with those of a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, cast

import jax
import numpy as np
from msgspec import Struct, structs

from orbit_ckpt._src.arrays.dtypes import (
    DType,
    as_dtype,
    is_lossless_kind,
    is_prng_dtype,
    number_dtype,
)
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import TreeMismatchError
from orbit_ckpt._src.metadata.schema import LeafRecord
from orbit_ckpt._src.metadata.values import ArrayMetadata, Metadata, StringMetadata
from orbit_ckpt._src.pytree.restore.hints import MismatchHints
from orbit_ckpt._src.pytree.restore.target import ArrayLike, Casting, RestoreOptions, is_abstract
from orbit_ckpt._src.pytree.restore.transformed import TransformedTree
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.tree.build import PLACEHOLDER
from orbit_ckpt._src.tree.diff import TreeDifference, compare_names
from orbit_ckpt._src.tree.flatten import FlatTree, flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import KeyPath, NamePath
from orbit_ckpt._src.type_handlers.base import RestoreArgs

Origin = Literal["target", "fallback", "skip"]
"""Origin of a leaf that is not read: the target, the fallback, or none."""


class Alignment(Struct, frozen=True):
    """The origin of each leaf of a result.

    Attributes:
        wanted: The target's leaves, None without a target.
        filled: Leaves of the result that do not come from the checkpoint.
        origins: Their origins.
        paths: Paths of those that are in no target.
        difference: Missing or unexpected leaves that the options do not allow.
    """

    wanted: Mapping[NamePath, object] | None
    filled: Mapping[NamePath, object]
    origins: Mapping[NamePath, Origin]
    paths: Mapping[NamePath, KeyPath]
    difference: TreeDifference | None = None

    def is_read(self, names: NamePath) -> bool:
        """Return whether a stored leaf is part of the result."""
        return names not in self.filled and (
            self.wanted is None or self.wanted.get(names, PLACEHOLDER) is not PLACEHOLDER
        )

    def read(self, records: Mapping[NamePath, LeafRecord]) -> list[LeafRecord]:
        """Return those of some stored leaves that are part of the result."""
        if self.filled or self.wanted is None:
            return [record for names, record in records.items() if self.is_read(names)]
        wanted = map(self.wanted.get, records, repeat(PLACEHOLDER))
        pairs = zip(records.values(), wanted, strict=True)
        return [record for record, leaf in pairs if leaf is not PLACEHOLDER]


def align(
    transformed: TransformedTree, target: FlatTree | None, options: RestoreOptions
) -> Alignment:
    """Determine the origin of each leaf, and which must not be missing or unexpected."""
    fallback = None if options.fallback is None else flatten(options.fallback)
    spare = _leaves(fallback)
    if () in spare and () not in transformed.names and (target is None or () not in target.names):
        raise TypeError(
            f"fallback must be a tree like the result, found {show(options.fallback)}. Give the "
            "leaves that may be missing under their keys, {'ema': value}."
        )
    if target is None:
        known = set(transformed.names)
        added = {names: value for names, value in spare.items() if names not in known}
        paths = {} if fallback is None else dict(zip(fallback.names, fallback.paths, strict=True))
        return Alignment(None, added, dict.fromkeys(added, "fallback"), paths)
    wanted = dict(zip(target.names, target.values, strict=True))
    has_empty = {names for names, record in transformed.records.items() if record.is_empty}
    others = (has_empty, target.empty_names, transformed.computed, transformed.left_out)
    if not any(others) and wanted.keys() == transformed.records.keys():
        return Alignment(wanted, {}, {}, {})
    difference = _difference(transformed, target, wanted, has_empty)
    if options.allow_empty:
        difference = structs.replace(difference, changed={})
    sources: dict[NamePath, _Source | None] = {
        names: _source_of_missing(wanted[names], names, spare, options)
        for names in difference.missing
    }
    sources |= {
        names: _source_of_kept(wanted[names], names, spare)
        for names in transformed.kept
        if names in wanted
    }
    missing = [names for names, source in sources.items() if source is None]
    filled = {names: source for names, source in sources.items() if source is not None}
    unexpected = () if options.unexpected == "ignore" else difference.unexpected
    found = TreeDifference(missing, unexpected, difference.changed, difference.candidates)
    return Alignment(
        wanted,
        {names: value for names, (_, value) in filled.items()},
        {names: origin for names, (origin, _) in filled.items()},
        {},
        found or None,
    )


def _leaves(tree: FlatTree | None) -> dict[NamePath, object]:
    if tree is None:
        return {}
    pairs = zip(tree.names, tree.values, strict=True)
    return {names: value for names, value in pairs if not is_empty_node(value)}


def _difference(
    transformed: TransformedTree,
    target: FlatTree,
    wanted: Mapping[NamePath, object],
    has_empty: set[NamePath],
) -> TreeDifference:
    """Return how the leaves of a target differ from those of a checkpoint."""
    full = wanted.keys() - target.empty_names
    known = {*transformed.records, *transformed.computed} - has_empty
    known |= (transformed.kept | transformed.left_out) & full
    # an empty container holds nothing that could be missing: {} equals an absent key
    difference = compare_names(
        [names for names in wanted if names in full and names not in has_empty],
        [names for names in transformed.names if names in known],
    )
    skipped = {names for names, value in wanted.items() if value is PLACEHOLDER}
    changed = {
        names: "the target has a leaf, an empty container or None is stored; allow_empty=True of "
        "PyTreeRestore or StandardRestore returns that"
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


_Source = tuple[Origin, object]


def _source_of_missing(
    leaf: object, names: NamePath, spare: Mapping[NamePath, object], options: RestoreOptions
) -> _Source | None:
    """Return the origin of a leaf that the checkpoint lacks, None if it must not be missing."""
    if names in spare:
        return "fallback", spare[names]
    if options.missing == "as_given":
        return "target", leaf
    if options.missing in ("target", "keep") and not is_abstract(leaf):
        return "target", leaf
    return ("skip", PLACEHOLDER) if options.missing == "skip" else None


def _source_of_kept(
    leaf: object, names: NamePath, spare: Mapping[NamePath, object]
) -> _Source | None:
    """Return the origin of a leaf that a rule keeps, None if it has no value."""
    if not is_abstract(leaf):
        return "target", leaf
    return ("fallback", spare[names]) if names in spare else None


def mismatch(difference: TreeDifference, advice: MismatchHints) -> TreeMismatchError:
    """Return the error that lists how a target differs from a checkpoint."""
    hints = ["Change the target"]
    if () in difference.missing:
        hints.append("it is a single leaf, give a tree with the checkpoint's leaves")
    elif difference.missing:
        hints.append(advice.missing)
    if difference.unexpected:
        hints.append(advice.unexpected)
    if any("shape " in text for text in difference.changed.values()):
        hints.append(advice.shapes)
    if any("dtype " in text for text in difference.changed.values()):
        hints.append(advice.dtypes)
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
    transformed: TransformedTree,
    found: Mapping[NamePath, object],
    unchecked: Mapping[NamePath, object],
    options: RestoreOptions,
) -> None:
    """Check leaves, their shapes and dtypes against the target.

    Args:
        alignment: The wanted leaves.
        transformed: The available leaves.
        found: Metadata of the leaves that are read unchanged.
        unchecked: Leaves that arguments besides the target cast.
        options: The allowed differences.

    Raises:
        TreeMismatchError: Some differ; lists all of them.
    """
    wanted = alignment.wanted or {}
    changed: dict[NamePath, str] = {}

    def check(names: NamePath, metadata: Metadata | None) -> None:
        if names in unchecked and isinstance(metadata, ArrayMetadata):
            dtype: object = getattr(wanted[names], "dtype", metadata.dtype)
            metadata = structs.replace(metadata, dtype=dtype)
        change = describe_change(
            wanted[names], metadata, strict=options.strict, cast_policy=options.cast_policy
        )
        if change:
            changed[names] = change

    for names, metadata in found.items():
        if not unchecked and not transformed.casts and _is_same(wanted.get(names), metadata):
            continue
        dtype = transformed.casts.get(names)
        if dtype is not None and isinstance(metadata, ArrayMetadata):
            metadata = structs.replace(metadata, dtype=as_dtype(dtype))  # noqa: PLW2901 - as cast
        if isinstance(metadata, Metadata) and not transformed.records[names].is_empty:
            check(names, metadata)
    for names, node in transformed.computed.items():
        if alignment.is_read(names) and node.info.shape is not None:
            dtype = node.info.dtype or getattr(wanted[names], "dtype", None)
            if dtype is not None:
                check(names, made_of(node.info.shape, dtype))
    for names, value in alignment.filled.items():
        if alignment.origins[names] == "fallback" and names in wanted:
            check(names, _metadata_of(value))
    if changed or alignment.difference is not None:
        names_differ = alignment.difference or TreeDifference([], [], {})
        changed = {**names_differ.changed, **changed}
        raise mismatch(structs.replace(names_differ, changed=changed), options.hints)


_ARRAYS = (np.ndarray, jax.Array)


def _is_same(wanted: object, stored: object) -> bool:
    """Return whether an array of a target has the shape and dtype of the stored one."""
    if not isinstance(stored, ArrayMetadata) or not isinstance(wanted, _ARRAYS):
        return False
    array = cast(ArrayLike, wanted)
    return array.shape == stored.shape and array.dtype == stored.dtype


def describe_change(
    wanted: object,
    stored: Metadata | None,
    *,
    strict: bool = True,
    cast_policy: Casting = "same_kind",
) -> str | None:
    """Describe how a target's leaf differs from the stored one, None if it can be restored.

    Args:
        wanted: Leaf of the target.
        stored: Metadata of the stored leaf; None if unknown.
        strict: Whether shapes of JAX arrays must agree.
        cast_policy: The allowed casts.
    """
    if wanted is PLACEHOLDER or isinstance(wanted, type | RestoreArgs | Metadata):
        return None
    if isinstance(stored, StringMetadata) or isinstance(wanted, str):
        if isinstance(stored, StringMetadata) and isinstance(wanted, str):
            return None
        return f"the target has {_describe(wanted)}, {_describe(stored)} is stored"
    if not isinstance(stored, ArrayMetadata):
        return None
    if isinstance(wanted, bytes):
        is_bytes = stored.dtype == np.uint8 and len(stored.shape) == 1
        return None if is_bytes else f"the target has bytes, {_describe(stored)} is stored"
    return _array_change(wanted, stored, strict=strict, cast_policy=cast_policy)


def _array_change(
    wanted: object, stored: ArrayMetadata, *, strict: bool, cast_policy: Casting
) -> str | None:
    if isinstance(wanted, bool | int | float | complex):
        shape, dtype = (), number_dtype(wanted)
    elif hasattr(wanted, "shape") and hasattr(wanted, "dtype"):
        array = cast(ArrayLike, wanted)
        shape, dtype = tuple(array.shape), array.dtype
    else:
        return None
    if shape == stored.shape and dtype == stored.dtype:
        return None
    may_pad = not strict and not isinstance(wanted, np.ndarray) and len(shape) == len(stored.shape)
    changes: list[str] = []
    if shape != stored.shape and not may_pad:
        changes.append(f"shape {shape} wanted, {stored.shape} stored")
    if not _is_castable(stored.dtype, dtype, cast_policy):
        changes.append(f"dtype {dtype} wanted, {stored.dtype} stored")
    return "; ".join(changes) or None


def _is_castable(stored: DType, wanted: DType, cast_policy: Casting) -> bool:
    if cast_policy == "exact" or is_prng_dtype(wanted) or is_prng_dtype(stored):
        return wanted == stored
    return cast_policy == "unsafe" or is_lossless_kind(stored, as_dtype(wanted))


def _describe(leaf: object) -> str:
    if isinstance(leaf, StringMetadata | str):
        return "a string"
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is not None and dtype is not None:
        return f"an array of shape {tuple(shape)} and dtype {dtype}"
    return f"a {type(leaf).__name__}"


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

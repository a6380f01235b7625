"""Run the restore of one tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import jax
import numpy as np
from msgspec import Struct, structs

from orbit_ckpt.arrays.dtypes import as_dtype
from orbit_ckpt.errors import (
    FormatError,
    TransformError,
    TreeMismatchError,
)
from orbit_ckpt.formats.orbax import StoredTree
from orbit_ckpt.formats.orbax_legacy import UNKNOWN_TYPE
from orbit_ckpt.handlers.base import (
    ArrayRestoreArgs,
    LoadBatch,
    RestoreArgs,
)
from orbit_ckpt.handlers.registry import TypeHandlerRegistry
from orbit_ckpt.metadata.rich_types import (
    decode_rich_types,
    has_rich_types,
)
from orbit_ckpt.metadata.schema import LeafRecord
from orbit_ckpt.metadata.values import ArrayMetadata, Metadata
from orbit_ckpt.pytree.compute import compute_leaves
from orbit_ckpt.pytree.stored import AS_SAVED, StoredLeaves, convert_value, read_leaves
from orbit_ckpt.pytree.target import describe_change, restore_args_of
from orbit_ckpt.pytree.view import (
    LegacyFunction,
    View,
    view_through,
    view_through_function,
    view_through_legacy,
)
from orbit_ckpt.transform.legacy import LegacyRules
from orbit_ckpt.transform.patterns import Pattern, compile_pattern, join_name
from orbit_ckpt.transform.rules import Rule
from orbit_ckpt.tree.diff import TreeDifference, compare_names, nearest_names
from orbit_ckpt.tree.flatten import PLACEHOLDER, FlatTree, build_tree, flatten, is_empty_node
from orbit_ckpt.tree.keypath import NamePath, format_path

_SHOWN = 20


class RestoreRequest(Struct, frozen=True):
    """What a caller wants of a stored tree.

    Attributes:
        target: Tree whose structure the result has; PLACEHOLDER leaves are not read. None for the
            recorded structure.
        has_target: Whether `target` is given; None is a tree too.
        restore_args: Tree of `RestoreArgs`, or of leaves that imply them, like the result.
        typed: Whether the target's leaves say type, shape, dtype and sharding; else only its
            structure counts.
        partial: Whether leaves may be missing from the target.
        strict: Whether a typed target's shapes must be the stored ones.
        rich_types: Whether recorded tuples and namedtuples are rebuilt without a target.
        rules: What is done with leaves on their way.
        legacy: The same in Orbax's forms, which need a target; not with `rules`.
        only: Pattern for the leaves that are wanted, None for all.
        skip: Pattern for leaves that are not.
    """

    target: object = None
    has_target: bool = False
    restore_args: object = None
    typed: bool = False
    partial: bool = False
    strict: bool = True
    rich_types: bool = False
    rules: Sequence[Rule] = ()
    legacy: LegacyRules | LegacyFunction | None = None
    only: Pattern | None = None
    skip: Pattern | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the result is the stored tree, all of it as it is."""
        return not self.rules and self.only is None and self.skip is None


async def restore_tree(
    source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry, request: RestoreRequest
) -> object:
    """Read a tree.

    Raises:
        TreeMismatchError: The target differs from the checkpoint; lists every difference.
        CorruptionError: Stored data is missing or damaged.
        UnsupportedLeafError: No handler is registered for some of the leaves.
    """
    target = flatten(request.target) if request.has_target else None
    stored = StoredLeaves(source, batch, registry)
    records = _records(source, target)
    if request.legacy is not None and target is not None:
        wanted = None  # only the transforms say what is read
        view, target, args = _through_legacy(stored, records, request, target)
    else:
        view = await _view(stored, records, request, target)
        wanted = _align(view, target, request) if target is not None else None
        args = _restore_args(request, target, view)
    needed = [
        record
        for record in view.records.values()
        if wanted is None or wanted.get(record.names, PLACEHOLDER) is not PLACEHOLDER
    ]
    if target is not None and request.typed:
        leaves = cast(dict[NamePath, object], wanted)
        await _check_leaves(stored, needed, leaves, view.casts, strict=request.strict)
    values = await read_leaves(stored, needed, args)
    if view.computed:
        values |= await _computed(stored, view, request, wanted, args)
    if target is None and request.is_whole:
        return rebuild(source, values, rich_types=request.rich_types)
    if target is None:
        paths = {names: record.path for names, record in view.records.items()} | {
            names: view.paths[names] for names in view.computed
        }
        return build_tree((path, values[names]) for names, path in paths.items())
    return target.unflatten(
        [
            value if names in target.empty_names or names not in values else values[names]
            for names, value in zip(target.names, target.values, strict=True)
        ]
    )


async def _view(
    stored: StoredLeaves,
    records: Mapping[NamePath, LeafRecord],
    request: RestoreRequest,
    target: FlatTree | None,
) -> View:
    """Return what of the stored tree can be had, and under which names."""
    view = View(records, records)
    if request.rules:
        found = await stored.metadata(list(records.values()))
        view = view_through(request.rules, records, found, target)
    if request.only is None and request.skip is None:
        return view
    only = None if request.only is None else compile_pattern(request.only)
    skip = None if request.skip is None else compile_pattern(request.skip)

    def is_wanted(names: NamePath) -> bool:
        name = join_name(names)
        return (only is None or only.fullmatch(name) is not None) and (
            skip is None or skip.fullmatch(name) is None
        )

    chosen = structs.replace(
        view,
        records={names: record for names, record in view.records.items() if is_wanted(names)},
        computed={names: node for names, node in view.computed.items() if is_wanted(names)},
        kept=frozenset(
            names
            for names in (view.names if target is None else target.names)
            if names in view.kept or not is_wanted(names)
        ),
    )
    if not chosen.records and not chosen.computed:
        near = ", ".join(join_name(names) for names in view.names[:_SHOWN])
        raise TransformError(
            f"No leaf is left by only={request.only!r} and skip={request.skip!r} of "
            f"{len(view.names)}: {near}. Change the pattern; params/** is all below params."
        )
    return chosen


def _through_legacy(
    stored: StoredLeaves,
    records: Mapping[NamePath, LeafRecord],
    request: RestoreRequest,
    target: FlatTree,
) -> tuple[View, FlatTree, dict[NamePath, RestoreArgs]]:
    """Return what Orbax's transforms make of the stored tree, the result's tree, and its args."""
    if isinstance(request.legacy, LegacyRules):
        args = _restore_args(request, target, View(records, {}))
        return view_through_legacy(request.legacy, records, target, args), target, args
    infos = dict(zip(records, stored.infos(list(records.values())), strict=True))
    fn = cast(LegacyFunction, request.legacy)
    view, target = view_through_function(fn, request.target, records, infos)
    return view, target, _restore_args(request, target, view)


async def _computed(
    stored: StoredLeaves,
    view: View,
    request: RestoreRequest,
    wanted: Mapping[NamePath, object] | None,
    args: Mapping[NamePath, RestoreArgs],
) -> dict[NamePath, object]:
    names = {
        names
        for names in view.computed
        if wanted is None or wanted.get(names, PLACEHOLDER) is not PLACEHOLDER
    }

    def place(names: NamePath, value: object, from_jax: bool) -> object:
        arg = args.get(names)
        is_host = isinstance(value, np.ndarray)
        if wanted is not None and request.typed:
            _check_computed(names, value, wanted[names], stored.source.directory.path)
        if arg is None and from_jax and is_host:
            arg = ArrayRestoreArgs()
        return convert_value(stored.batch, view.paths[names], value, arg or AS_SAVED)

    return await compute_leaves(view, names, partial(read_leaves, stored), place)


def _check_computed(names: NamePath, value: object, wanted: object, directory: Path) -> None:
    """Check what a function has made, which is known only now, against the target's leaf."""
    if isinstance(value, np.ndarray | jax.Array):
        array = cast(jax.Array, value)
        found = ArrayMetadata("", directory, array.shape, None, array.dtype)
        change = describe_change(wanted, found, strict=True)
        if change:
            raise _mismatch(TreeDifference([], [], {names: change}))


async def read_metadata(
    source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry
) -> dict[NamePath, object]:
    """Return leaf metadata, empty containers as they are; no array is opened."""
    return await StoredLeaves(source, batch, registry).metadata(source.document.leaves)


def _records(source: StoredTree, target: FlatTree | None) -> dict[NamePath, LeafRecord]:
    """Return the stored leaves by names; if nothing records them, those of the target."""
    leaves = source.document.leaves
    if not leaves and target is not None and source.document.rich_types is None:
        leaves = [
            LeafRecord.at(path, UNKNOWN_TYPE, is_empty=is_empty_node(value))
            for path, value in zip(target.paths, target.values, strict=True)
        ]
    return {record.names: record for record in leaves}


def _align(view: View, target: FlatTree, request: RestoreRequest) -> dict[NamePath, object]:
    """Return the target's leaves by names.

    Raises:
        TreeMismatchError: Target and checkpoint do not have the same leaves.
    """
    wanted = dict(zip(target.names, target.values, strict=True))
    records = view.records
    has_empty = {names for names, record in records.items() if record.is_empty}
    if wanted.keys() == records.keys() and not has_empty and not target.empty_names:
        return wanted
    full = wanted.keys() - target.empty_names
    stored = ({*records, *view.computed} - has_empty) | (view.kept & full)
    # an empty container holds nothing that could be missing: {} and no key at all are the same
    difference = compare_names(
        [names for names in wanted if names in full and names not in has_empty],
        [names for names in view.names if names in stored],
    )
    skipped = {names for names, value in wanted.items() if value is PLACEHOLDER}
    changed = {
        names: "the target has a leaf, an empty container or None is stored"
        for names in wanted
        if names in full and names in has_empty and names not in skipped
    }
    missing = [names for names in difference.missing if names not in skipped]
    unexpected = [] if request.partial else _outside(difference.unexpected, skipped)
    if missing or unexpected or changed:
        raise _mismatch(TreeDifference(missing, unexpected, changed, difference.unexpected))
    return wanted


def _outside(names: Sequence[NamePath], skipped: set[NamePath]) -> list[NamePath]:
    """Return the leaves that do not lie below a skipped subtree."""
    return [
        path for path in names if not any(path[:depth] in skipped for depth in range(len(path)))
    ]


def _mismatch(difference: TreeDifference) -> TreeMismatchError:
    return TreeMismatchError(
        "User-provided restore item and on-disk value metadata tree structures do not match:\n"
        f"{difference.describe()}\nChange the target; to leave out leaves of the checkpoint, "
        "pass `partial_restore=True` or use PLACEHOLDER leaves.",
        paths=difference.paths,
    )


def _restore_args(
    request: RestoreRequest, target: FlatTree | None, view: View
) -> dict[NamePath, RestoreArgs]:
    """Return the restore arguments of the leaves that have any, by names."""
    args: dict[NamePath, RestoreArgs] = {
        names: RestoreArgs(dtype=dtype) for names, dtype in view.casts.items()
    }
    if request.typed and target is not None:
        args |= _args_of(target.names, target.values, strict=request.strict)
    if request.restore_args is None:
        return args
    values = None if target is None else target.values_of(request.restore_args)
    if target is not None and values is not None:
        return args | _args_of(target.names, values, strict=request.strict)
    flat = flatten(request.restore_args)
    known = {*view.names, *(target.names if target is not None else ())}
    added = _args_of(flat.names, flat.values, strict=request.strict)
    unknown = next((names for names in added if names not in known), None)
    if unknown is not None:
        near = nearest_names(format_path(unknown), [format_path(p) for p in known])
        raise ValueError(
            f"restore_args: {format_path(unknown)}: there is no such leaf to restore"
            + (f"; did you mean {' or '.join(near)}?" if near else ".")
        )
    return args | added


def _args_of(
    names: Sequence[NamePath], leaves: Sequence[object], *, strict: bool
) -> dict[NamePath, RestoreArgs]:
    return {
        name: restore_args_of(leaf, strict=strict)
        for name, leaf in zip(names, leaves, strict=True)
        if leaf is not PLACEHOLDER and not is_empty_node(leaf)
    }


async def _check_leaves(
    stored: StoredLeaves,
    needed: Sequence[LeafRecord],
    wanted: Mapping[NamePath, object],
    casts: Mapping[NamePath, object],
    *,
    strict: bool,
) -> None:
    found = await stored.metadata(needed)
    for names in casts.keys() & found.keys():
        metadata = found[names]
        if isinstance(metadata, ArrayMetadata):
            found[names] = structs.replace(metadata, dtype=as_dtype(casts[names]))
    changed = {
        record.names: change
        for record in needed
        if not record.is_empty
        and record.name not in stored.source.inline
        and (
            change := describe_change(
                wanted[record.names], cast(Metadata, found[record.names]), strict=strict
            )
        )
    }
    if changed:
        raise _mismatch(TreeDifference([], [], changed))


def rebuild(source: StoredTree, values: Mapping[NamePath, object], *, rich_types: bool) -> object:
    """Return values in the recorded structure.

    Args:
        source: What records it.
        values: A value for every leaf and empty container, by names.
        rich_types: Whether tuples and namedtuples are rebuilt where recorded.

    Raises:
        FormatError: The recorded structure is not a tree.
    """
    leaves = source.document.leaves
    text = source.document.rich_types
    where = str(source.directory.path)
    if rich_types and text is not None and (not leaves or has_rich_types(text)):
        kinds = source.details.key_kinds
        paths = {leaf.names: leaf.path for leaf in leaves if leaf.name in kinds}
        return decode_rich_types(text, where, values.__getitem__, paths)
    try:
        return build_tree(
            [(leaf.path, values[leaf.names]) for leaf in leaves], [leaf.names for leaf in leaves]
        )
    except ValueError as error:
        raise FormatError(f"{where}: the recorded structure is not a tree: {error}") from error

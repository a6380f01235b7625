"""Run the restore of one tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jax
import numpy as np
from msgspec import Struct

from orbit_ckpt.arrays.dtypes import HostArray, as_dtype
from orbit_ckpt.errors import FormatError, TreeMismatchError, UnsupportedLeafError
from orbit_ckpt.formats.orbax import StoredTree
from orbit_ckpt.formats.orbax_legacy import UNKNOWN_TYPE
from orbit_ckpt.handlers.array import check_width, requested_sharding
from orbit_ckpt.handlers.base import (
    ArrayRestoreArgs,
    LoadBatch,
    ParamInfo,
    RestoreArgs,
    TypeHandler,
)
from orbit_ckpt.handlers.registry import TypeHandlerRegistry
from orbit_ckpt.handlers.stored import cast_host
from orbit_ckpt.metadata.rich_types import (
    decode_rich_types,
    find_namedtuple,
    has_rich_types,
)
from orbit_ckpt.metadata.schema import EMPTY_TYPES, NUMPY_ARRAY, LeafRecord
from orbit_ckpt.metadata.values import Metadata
from orbit_ckpt.pytree.target import describe_change, restore_args_of
from orbit_ckpt.runtime.loop import run_all
from orbit_ckpt.storage.path import as_epath
from orbit_ckpt.tree.diff import TreeDifference, compare_names, nearest_names
from orbit_ckpt.tree.flatten import PLACEHOLDER, FlatTree, build_tree, flatten, is_empty_node
from orbit_ckpt.tree.keypath import NamePath, format_path

_STRING = "string"


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
    """

    target: object = None
    has_target: bool = False
    restore_args: object = None
    typed: bool = False
    partial: bool = False
    strict: bool = True
    rich_types: bool = False


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
    records = _records(source, target)
    wanted = _align(records, target, request) if target is not None else None
    args = _restore_args(request, target, records)
    needed = [
        record
        for record in records.values()
        if wanted is None or wanted.get(record.names, PLACEHOLDER) is not PLACEHOLDER
    ]
    stored = _Stored(source, batch, registry)
    if target is not None and request.typed:
        leaves = cast(dict[NamePath, object], wanted)
        await _check_leaves(stored, needed, leaves, strict=request.strict)
    values = await _read(stored, needed, args)
    if target is None:
        return rebuild(source, values, rich_types=request.rich_types)
    return target.unflatten(
        [
            value if value is PLACEHOLDER or names in target.empty_names else values[names]
            for names, value in zip(target.names, target.values, strict=True)
        ]
    )


async def read_metadata(
    source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry
) -> dict[NamePath, object]:
    """Return leaf metadata, empty containers as they are; no array is opened."""
    return await _Stored(source, batch, registry).metadata(source.document.leaves)


class _Stored:
    """The leaves of a stored tree and the handlers that read them."""

    def __init__(self, source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry) -> None:
        self.source = source
        self.batch = batch
        self._registry = registry
        self._handlers: dict[tuple[object, str], TypeHandler] = {}
        self._infos: dict[NamePath, ParamInfo] = {}
        self._template = ParamInfo(
            name="",
            parent_dir=as_epath(source.directory.path),
            skip_deserialize=False,
            byte_limiter=batch.reader.limiter,
            is_ocdbt_checkpoint=source.document.use_ocdbt,
            use_zarr3=source.document.use_zarr3,
            raise_array_data_missing_error=source.document.stores_fill_values,
            load_batch=batch,
        )

    def info(self, record: LeafRecord) -> ParamInfo:
        """Return where a leaf is."""
        info = self._infos.get(record.names)
        if info is None:
            info = self._infos[record.names] = self._template.replace(
                name=record.name,
                keypath=record.path,
                value_typestr=record.typestr,
                write_shape=record.write_shape,
            )
        return info

    def handler(self, record: LeafRecord, arg: RestoreArgs) -> TypeHandler:
        """Return what reads a leaf as the type that is asked for."""
        wanted = arg.restore_type
        if wanted is None and isinstance(arg, ArrayRestoreArgs):
            is_placed = self.batch.resolver.fallback is not None
            wanted = jax.Array if is_placed or record.typestr != NUMPY_ARRAY else None
        elif wanted is None and record.typestr == UNKNOWN_TYPE:
            wanted = np.ndarray
        key = record.typestr if wanted is None or not isinstance(wanted, type | str) else wanted
        handler = self._handlers.get((key, record.typestr))
        if handler is None:
            handler = _find_handler(record, key, self._registry)
            self._handlers[key, record.typestr] = handler
        return handler

    async def metadata(self, records: Sequence[LeafRecord]) -> dict[NamePath, object]:
        """Return metadata of leaves, empty containers as they are."""
        source = self.source
        found: dict[NamePath, object] = {}
        others, groups = self.split(records, {})
        for record in others:
            is_inline = record.name in source.inline
            found[record.names] = (
                Metadata(record.name, source.directory.path)
                if is_inline
                else _empty_value(source, record)
            )
        for handler, group in groups:
            values = await handler.metadata([self.info(record) for record in group])
            found.update(zip([record.names for record in group], values, strict=True))
        return found

    def split(
        self, records: Sequence[LeafRecord], args: Mapping[NamePath, RestoreArgs]
    ) -> tuple[list[LeafRecord], list[tuple[TypeHandler, list[LeafRecord]]]]:
        """Return the leaves that no handler reads, and the others by their handlers."""
        inline = self.source.inline
        others: list[LeafRecord] = []
        groups: dict[int, tuple[TypeHandler, list[LeafRecord]]] = {}
        for record in records:
            if record.is_empty or record.name in inline:
                others.append(record)
            else:
                handler = self.handler(record, args.get(record.names, _AS_SAVED))
                groups.setdefault(id(handler), (handler, []))[1].append(record)
        return others, list(groups.values())


_AS_SAVED = RestoreArgs()


def _records(source: StoredTree, target: FlatTree | None) -> dict[NamePath, LeafRecord]:
    """Return the stored leaves by names; if nothing records them, those of the target."""
    leaves = source.document.leaves
    if not leaves and target is not None and source.document.rich_types is None:
        leaves = [
            LeafRecord.at(path, UNKNOWN_TYPE, is_empty=is_empty_node(value))
            for path, value in zip(target.paths, target.values, strict=True)
        ]
    return {record.names: record for record in leaves}


def _align(
    records: Mapping[NamePath, LeafRecord], target: FlatTree, request: RestoreRequest
) -> dict[NamePath, object]:
    """Return the target's leaves by names.

    Raises:
        TreeMismatchError: Target and checkpoint do not have the same leaves.
    """
    wanted = dict(zip(target.names, target.values, strict=True))
    has_empty = {names for names, record in records.items() if record.is_empty}
    if wanted.keys() == records.keys() and not has_empty and not target.empty_names:
        return wanted
    stored = records.keys() - has_empty
    full = wanted.keys() - target.empty_names
    # an empty container holds nothing that could be missing: {} and no key at all are the same
    difference = compare_names(
        [names for names in wanted if names in full and names not in has_empty],
        [names for names in records if names in stored],
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
    request: RestoreRequest, target: FlatTree | None, records: Mapping[NamePath, LeafRecord]
) -> dict[NamePath, RestoreArgs]:
    """Return the restore arguments of the leaves that have any, by names."""
    args: dict[NamePath, RestoreArgs] = {}
    if request.typed and target is not None:
        args = _args_of(target.names, target.values, strict=request.strict)
    if request.restore_args is None:
        return args
    values = None if target is None else target.values_of(request.restore_args)
    if target is not None and values is not None:
        return args | _args_of(target.names, values, strict=request.strict)
    flat = flatten(request.restore_args)
    known = {*records, *(target.names if target is not None else ())}
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
    stored: _Stored,
    needed: Sequence[LeafRecord],
    wanted: Mapping[NamePath, object],
    *,
    strict: bool,
) -> None:
    found = await stored.metadata(needed)
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


async def _read(
    stored: _Stored, records: Sequence[LeafRecord], args: Mapping[NamePath, RestoreArgs]
) -> dict[NamePath, object]:
    """Return the values of leaves, read in one call per handler."""
    source = stored.source
    values: dict[NamePath, object] = {}
    others, groups = stored.split(records, args)
    for record in others:
        if record.name in source.inline:
            arg = args.get(record.names, _AS_SAVED)
            value = source.inline[record.name]
            values[record.names] = _convert_inline(stored.batch, record, value, arg)
        else:
            values[record.names] = _empty_value(source, record)
    results = await run_all(
        handler.deserialize(
            [stored.info(record) for record in group],
            [args.get(record.names, _AS_SAVED) for record in group],
        )
        for handler, group in groups
    )
    for (_, group), result in zip(groups, results, strict=True):
        values.update(zip([record.names for record in group], result, strict=True))
    return values


def _find_handler(
    record: LeafRecord, key: type | str, registry: TypeHandlerRegistry
) -> TypeHandler:
    if (key in (str, _STRING)) != (record.typestr == _STRING):
        where = format_path(record.path)
        raise TreeMismatchError(
            f"{where}: {key!r} was asked for, a leaf of type {record.typestr!r} is stored; a "
            "string can only be restored as one.",
            paths=[where],
        )
    if not registry.has(key):
        raise UnsupportedLeafError(
            f"{format_path(record.path)}: no type handler is registered for {key!r}. Install or "
            "register the one that wrote it.",
            paths=[format_path(record.path)],
        )
    return registry.get(key)


def _empty_value(source: StoredTree, record: LeafRecord) -> object:
    detail = source.details.leaves.get(record.name)
    if record.typestr == "NamedTuple":
        known = find_namedtuple(detail.type, ()) if detail and detail.type else None
        return known() if known is not None else ()
    if record.typestr not in EMPTY_TYPES:
        raise FormatError(
            f"{format_path(record.path)}: unknown kind of empty container {record.typestr!r}"
        )
    empty = EMPTY_TYPES[record.typestr]
    return empty if empty is None else type(empty)()


def _convert_inline(
    batch: LoadBatch, record: LeafRecord, value: object, arg: RestoreArgs
) -> object:
    """Return a value that an old writer put into its structure file, as the caller wants it."""
    if isinstance(arg, ArrayRestoreArgs):
        host = cast_host(np.asarray(value), arg.dtype, record.path)
        check_width(record.path, host.dtype)
        device_put = cast(Callable[..., jax.Array], getattr(jax, "device_put"))  # noqa: B009 - untyped
        sharding = requested_sharding(arg)
        if not isinstance(sharding, jax.sharding.Sharding):
            sharding = batch.resolver.resolve(sharding, arg.global_shape or host.shape)
        return device_put(host.reshape(arg.global_shape or host.shape), sharding)
    if isinstance(value, np.ndarray):
        return cast_host(cast(HostArray, value), arg.dtype, record.path)
    if isinstance(value, int | float) and arg.dtype is not None:
        return as_dtype(arg.dtype).type(value).item()
    return value


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
        return build_tree((leaf.path, values[leaf.names]) for leaf in leaves)
    except ValueError as error:
        raise FormatError(f"{where}: the recorded structure is not a tree: {error}") from error

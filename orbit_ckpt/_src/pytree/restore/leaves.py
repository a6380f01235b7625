"""Read stored leaves through their handlers, open them for later, or convert values in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import jax
import numpy as np
from msgspec import structs

from orbit_ckpt._src.arrays.dtypes import HostArray, as_dtype, is_prng_dtype, python_scalar
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.sharding import check_divides
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import (
    TreeMismatchError,
)
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.metadata.schema import (
    JAX_ARRAY,
    NUMPY_ARRAY,
    STRING,
    UNKNOWN_TYPE,
    LeafRecord,
)
from orbit_ckpt._src.metadata.values import Metadata
from orbit_ckpt._src.pytree.describe import DescribedLeaves, empty_value, no_handler
from orbit_ckpt._src.runtime.checks import is_overridden
from orbit_ckpt._src.runtime.loop import run_all, run_blocking
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.fingerprint import OpenedDirectory
from orbit_ckpt._src.storage.integrity import open_checked
from orbit_ckpt._src.tree.keypath import KeyPath, NamePath, format_path
from orbit_ckpt._src.type_handlers.array import ArrayHandler
from orbit_ckpt._src.type_handlers.array_io import cast_host
from orbit_ckpt._src.type_handlers.array_target import (
    ArrayRestoreArgs,
    check_width,
    requested_sharding,
)
from orbit_ckpt._src.type_handlers.base import (
    LoadBatch,
    ParamInfo,
    RestoreArgs,
    TypeHandler,
)
from orbit_ckpt._src.type_handlers.capabilities import (
    ArrayStorage,
    LazyComposer,
    LazyReader,
    ReadPlanner,
    TextStorage,
    capability,
    plain_arrays,
)
from orbit_ckpt._src.type_handlers.described import layouts_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyHostArray, open_leaf
from orbit_ckpt._src.type_handlers.numpy import bytes_type
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

_ARRAYS = (JAX_ARRAY, NUMPY_ARRAY)

AS_SAVED = RestoreArgs()
"""Arguments of a leaf without any."""


_CHECKED = (ArrayStorage, TextStorage, ReadPlanner)
"""Capabilities of handlers that read nothing but arrays and text, which are checked on the way."""

_SCALARS = (bool, int, float, complex)
_HOST_TYPES = (np.ndarray, np.generic, *_SCALARS)


class StoredLeaves(DescribedLeaves):
    """The leaves of a stored tree and the handlers that read them."""

    def __init__(self, source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry) -> None:
        super().__init__(source, batch, registry)
        self._handlers: dict[tuple[object, str], TypeHandler] = {}

    def handler(self, record: LeafRecord, arg: RestoreArgs) -> TypeHandler:
        """Return the handler that reads a leaf as the requested type."""
        wanted = arg.restore_type
        is_placed = self.batch.resolver.fallback is not None
        if wanted is None and isinstance(arg, ArrayRestoreArgs):
            wanted = jax.Array if is_placed or record.typestr != NUMPY_ARRAY else None
        elif wanted is None and record.typestr == UNKNOWN_TYPE:
            wanted = jax.Array if is_placed else np.ndarray
        key = record.typestr if wanted is None or not isinstance(wanted, type | str) else wanted
        handler = self._handlers.get((key, record.typestr))
        if handler is None:
            is_raw = key is np.ndarray and _holds_other_values(record.typestr, self.registry)
            handler = _find_handler(record, record.typestr if is_raw else key, self.registry)
            self._handlers[key, record.typestr] = handler
        return handler

    async def described(self, records: Sequence[LeafRecord]) -> dict[NamePath, object]:
        """Return metadata of what a restore returns for leaves.

        A handler that converts what its base class stores may inherit its `metadata`, which then
        describes the stored array; of such leaves only the name is returned.
        """
        found = await self.metadata(records)
        typestrs = {record.typestr for record in records if not record.is_empty}
        converted = {
            typestr
            for typestr in typestrs
            if self.registry.has(typestr)
            and is_overridden(self.registry.get(typestr), "deserialize", since="metadata")
        }
        if converted:
            for record in records:
                if record.typestr in converted:
                    found[record.names] = Metadata(record.name, self.source.path)
        return found

    def split(
        self, records: Sequence[LeafRecord], args: Mapping[NamePath, RestoreArgs]
    ) -> tuple[list[LeafRecord], list[tuple[TypeHandler, list[LeafRecord]]]]:
        """Return the leaves that no handler reads, and the others by handler."""
        inline = self.source.inline
        others: list[LeafRecord] = []
        as_saved: dict[str, list[LeafRecord]] = {}  # the common case, looked up once per type
        wanted: dict[tuple[str, int], tuple[RestoreArgs, list[LeafRecord]]] = {}
        groups: dict[int, tuple[TypeHandler, list[LeafRecord]]] = {}

        def add(found: Sequence[LeafRecord], arg: RestoreArgs) -> None:
            handler = self.handler(found[0], arg)
            groups.setdefault(id(handler), (handler, []))[1].extend(found)

        for record in records:
            if record.is_empty or record.name in inline:
                others.append(record)
            elif not args or record.names not in args:
                as_saved.setdefault(record.typestr, []).append(record)
            else:
                arg = args[record.names]
                key = (record.typestr, id(arg))  # many leaves share their arguments
                wanted.setdefault(key, (arg, []))[1].append(record)
        for arg, found in wanted.values():
            add(found, arg)
        for found in as_saved.values():
            add(found, AS_SAVED)
        return others, list(groups.values())


async def read_leaves(
    stored: StoredLeaves, records: Sequence[LeafRecord], args: Mapping[NamePath, RestoreArgs]
) -> dict[NamePath, object]:
    """Read leaves, with one call per handler."""
    source = stored.source
    values: dict[NamePath, object] = {}
    others, groups = stored.split(records, args)
    for record in others:
        if record.name in source.inline:
            arg = args.get(record.names, AS_SAVED)
            value = source.inline[record.name]
            values[record.names] = convert_value(stored.batch, record.path, value, arg)
        else:
            values[record.names] = empty_value(source, record)
    await _check_files(source, groups)
    results = await run_all(
        handler.deserialize(
            stored.infos(group),
            [args.get(record.names, AS_SAVED) for record in group],
        )
        for handler, group in groups
    )
    for (handler, group), result in zip(groups, results, strict=True):
        names = [record.names for record in group]
        if args and plain_arrays(handler) is None:
            wanted = [args.get(name, AS_SAVED) for name in names]
            values.update(zip(names, map(_as_wanted, result, wanted), strict=True))
        else:
            values.update(zip(names, result, strict=True))
    return values


async def _check_files(
    source: StoredTree, groups: Sequence[tuple[TypeHandler, Sequence[LeafRecord]]]
) -> None:
    """Compare files that handlers read themselves with the manifest; nothing else would.

    A handler may keep them below the names of its leaves, or elsewhere for several leaves.

    Raises:
        CorruptionError: A file differs from what was written.
    """
    read = {
        record.name
        for handler, group in groups
        if not any(capability(handler, kind) for kind in _CHECKED)
        for record in group
    }
    if read and source.fingerprint_file is None:  # only our own format has a manifest
        others = {record.name for record in source.document.leaves} - read
        await run_blocking(lambda: open_checked(source.path).verify_outside(others))


def lazy_leaves(
    stored: StoredLeaves, records: Sequence[LeafRecord], args: Mapping[NamePath, RestoreArgs]
) -> dict[NamePath, object]:
    """Return the leaves that can stay in the checkpoint: arrays, and what consists of arrays.

    `read_leaves` reads all others: scalars, strings, bytes, empty containers, values that an old
    writer put into its structure file, and leaves of type handlers without a capability for it.

    Args:
        stored: The stored tree.
        records: The wanted leaves.
        args: How leaves are restored.

    Raises:
        CorruptionError: A metadata document is missing.
        TreeMismatchError: A shape differs from that of the stored array.
        UnsupportedLeafError: A leaf holds PRNG keys that this JAX does not have.
    """
    directory = OpenedDirectory.now(stored.source.path, stored.source.fingerprint_file)
    # lazy arrays are read on many threads, which cannot share a byte limit
    batch = structs.replace(stored.batch, reader=stored.batch.reader.unlimited())
    unlimited = DescribedLeaves(stored.source, batch, stored.registry)
    found: dict[NamePath, object] = {}

    def open_array(info: ParamInfo, arg: RestoreArgs) -> LazyArray:
        reader = capability(stored.registry.get(jax.Array), LazyReader) or ArrayHandler()
        (layout,) = layouts_of([info])
        read = ArrayRead(info.location, info.name, layout, ())
        return LazyArray(open_leaf(info, reader, arg, directory, read))

    _, groups = stored.split(records, args)
    for handler, group in groups:
        composer = capability(handler, LazyComposer)
        if composer is not None:
            for record, info in zip(group, unlimited.infos(group), strict=True):
                arg = args.get(record.names, AS_SAVED)
                found[record.names] = composer.lazy_leaf(info, arg, open_array)
        reader = capability(handler, LazyReader)
        if reader is None:
            continue
        kind = LazyArray if reader.lazy_type is jax.Array else LazyHostArray
        infos = unlimited.infos(group)
        for record, info, layout in zip(group, infos, layouts_of(infos), strict=True):
            arg = args.get(record.names, AS_SAVED)
            if kind is LazyArray or bytes_type(info, arg) is None:
                read = ArrayRead(info.location, info.name, layout, ())
                found[record.names] = kind(open_leaf(info, reader, arg, directory, read))
    return found


def _holds_other_values(typestr: str, registry: TypeHandlerRegistry) -> bool:
    """Return whether only its registered handler can read a value stored under a built-in name."""
    return typestr in _ARRAYS and plain_arrays(registry.get(typestr)) is None


def _as_wanted(value: object, arg: RestoreArgs) -> object:
    """Convert the result of a JAX array handler to numpy if requested."""
    is_host = arg.restore_type is np.ndarray and isinstance(value, jax.Array)
    return np.asarray(value) if is_host and not is_keys(value) else value


def _find_handler(
    record: LeafRecord, key: type | str, registry: TypeHandlerRegistry
) -> TypeHandler:
    if (key in (str, STRING)) != (record.typestr == STRING):
        where = format_path(record.path)
        raise TreeMismatchError(
            f"{where}: {key!r} was asked for, a leaf of type {record.typestr!r} is stored; a "
            "string can only be restored as one.",
            paths=[where],
        )
    if not registry.has(key):
        raise no_handler(record, key)
    return registry.get(key)


def convert_value(batch: LoadBatch, path: KeyPath, value: object, arg: RestoreArgs) -> object:
    """Convert a value as requested; strings and values of other types stay unchanged.

    Raises:
        TreeMismatchError: Another shape is requested, or numbers do not fit the dtype.
        UnsupportedLeafError: A dtype needs JAX's 64-bit mode, which is off.
        ValueError: The sharding does not divide the shape.
    """
    if isinstance(value, LazyArray):
        value = value.get()
    if not _is_numeric(value):
        return value
    if is_keys(value):
        return _placed_keys(path, cast(jax.Array, value), arg)
    if isinstance(arg, ArrayRestoreArgs) or arg.restore_type is jax.Array:
        return _on_devices(batch, path, value, as_array_args(arg))
    wanted = arg.restore_type
    is_known = isinstance(wanted, type) and issubclass(wanted, _HOST_TYPES)
    if not is_known and arg.dtype is None:
        return value
    if not is_known and isinstance(value, jax.Array):
        stays = ArrayRestoreArgs(dtype=arg.dtype, sharding=value.sharding)
        return _on_devices(batch, path, value, stays)
    return _on_host(path, value, arg, cast(type, wanted) if is_known else type(value))


def _is_numeric(value: object) -> bool:
    return isinstance(value, (jax.Array, *_HOST_TYPES))


def is_keys(value: object) -> bool:
    """Return whether a value is an array of typed PRNG keys."""
    return isinstance(value, jax.Array) and is_prng_dtype(value.dtype)


def as_array_args(arg: RestoreArgs) -> ArrayRestoreArgs:
    """Convert arguments to those of a JAX array."""
    return arg if isinstance(arg, ArrayRestoreArgs) else ArrayRestoreArgs(dtype=arg.dtype)


def _on_host(path: KeyPath, value: object, arg: RestoreArgs, kind: type) -> object:
    host = cast_host(np.asarray(value), arg.dtype, path)
    if issubclass(kind, np.ndarray):
        return host
    if host.ndim:
        raise _other_shape(path, (), host.shape)
    if issubclass(kind, np.generic):
        return host[()] if arg.dtype is not None else cast_host(host, kind, path)[()]
    number = python_scalar(host)
    return number if arg.restore_type is None else cast(Callable[[object], object], kind)(number)


def _on_devices(batch: LoadBatch, path: KeyPath, value: object, arg: ArrayRestoreArgs) -> jax.Array:
    sharding = requested_sharding(arg, path)
    if isinstance(value, jax.Array) and _is_as_wanted(value, arg, sharding):
        return value
    host = _fitted(path, cast_host(np.asarray(value), arg.dtype, path), arg)
    check_width(path, host.dtype)
    if not isinstance(sharding, jax.sharding.Sharding):
        sharding = batch.resolver.resolve(sharding, host.shape)
    return _put(path, host, sharding)


def _placed_keys(path: KeyPath, keys: jax.Array, arg: RestoreArgs) -> jax.Array:
    sharding = requested_sharding(arg, path) if isinstance(arg, ArrayRestoreArgs) else None
    if not isinstance(sharding, jax.sharding.Sharding) or sharding == keys.sharding:
        return keys
    return _put(path, keys, sharding)


def _put(path: KeyPath, value: HostArray | jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    try:
        check_divides(sharding, value.shape, value.ndim)
    except ValueError as error:
        raise ValueError(f"{format_path(path)}: {error}") from error
    return jax.device_put(value, sharding)  # pyright: ignore[reportUnknownMemberType] - partly untyped


def _fitted(path: KeyPath, host: HostArray, arg: ArrayRestoreArgs) -> HostArray:
    """Return an array of the requested shape, padded with zeros or cut if allowed."""
    shape = host.shape if arg.global_shape is None else tuple(arg.global_shape)
    if shape == host.shape:
        return host
    if arg.strict or len(shape) != host.ndim:
        raise _other_shape(path, shape, host.shape)
    result = np.zeros(shape, host.dtype)
    common = tuple(slice(min(pair)) for pair in zip(shape, host.shape, strict=True))
    result[common] = host[common]
    return result


def _other_shape(path: KeyPath, wanted: Shape, found: Shape) -> TreeMismatchError:
    label = format_path(path)
    return TreeMismatchError(
        f"{label}: shape {wanted} is asked for, the value has shape {found}. Give a target of "
        "that shape, or strict=False to pad or cut JAX arrays of as many dimensions.",
        paths=[label],
    )


def _is_as_wanted(
    value: jax.Array,
    arg: ArrayRestoreArgs,
    sharding: jax.sharding.Sharding | ShardingMetadata | None,
) -> bool:
    return (
        (arg.dtype is None or value.dtype == as_dtype(arg.dtype))
        and (sharding is None or sharding == value.sharding)
        and (arg.global_shape is None or tuple(arg.global_shape) == value.shape)
    )

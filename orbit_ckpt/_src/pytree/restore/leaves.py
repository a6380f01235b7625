"""Read stored leaves through their handlers, or open them for later reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from msgspec import structs

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
from orbit_ckpt._src.pytree.describe import DescribedLeaves, empty_value, no_handler
from orbit_ckpt._src.pytree.restore.convert import convert_value, is_keys
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.fingerprint import OpenedDirectory
from orbit_ckpt._src.tree.keypath import NamePath, format_path
from orbit_ckpt._src.type_handlers.array_args import ArrayRestoreArgs
from orbit_ckpt._src.type_handlers.base import (
    LoadBatch,
    RestoreArgs,
    TypeHandler,
)
from orbit_ckpt._src.type_handlers.capabilities import LazyReader, capability, plain_arrays
from orbit_ckpt._src.type_handlers.described import layouts_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyHostArray
from orbit_ckpt._src.type_handlers.lazy_leaf import open_leaf
from orbit_ckpt._src.type_handlers.numpy import bytes_type
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

_ARRAYS = (JAX_ARRAY, NUMPY_ARRAY)

AS_SAVED = RestoreArgs()
"""Arguments of a leaf without any."""


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

    def split(
        self, records: Sequence[LeafRecord], args: Mapping[NamePath, RestoreArgs]
    ) -> tuple[list[LeafRecord], list[tuple[TypeHandler, list[LeafRecord]]]]:
        """Return the leaves that no handler reads, and the others by handler."""
        inline = self.source.inline
        others: list[LeafRecord] = []
        as_saved: dict[str, list[LeafRecord]] = {}  # the common case, looked up once per type
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
                add([record], args[record.names])
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


def lazy_leaves(
    stored: StoredLeaves, records: Sequence[LeafRecord], args: Mapping[NamePath, RestoreArgs]
) -> dict[NamePath, LazyArray]:
    """Return as lazy arrays the leaves that would be restored as JAX or numpy arrays.

    `read_leaves` reads all others: scalars, strings, bytes, empty containers, values that an old
    writer put into its structure file, and leaves of type handlers that are not a `LazyReader`.

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
    found: dict[NamePath, LazyArray] = {}
    _, groups = stored.split(records, args)
    for handler, group in groups:
        reader = capability(handler, LazyReader)
        if reader is None:
            continue
        kind = LazyArray if reader.lazy_type is jax.Array else LazyHostArray
        infos = [info.replace(load_batch=batch) for info in stored.infos(group)]
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

"""Read stored leaves through their handlers, or open them for later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from msgspec import structs

from orbit_ckpt._src.arrays.dtypes import is_host_array
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
from orbit_ckpt._src.pytree.restore.convert import convert_value, is_keys
from orbit_ckpt._src.runtime.checks import is_overridden
from orbit_ckpt._src.runtime.loop import run_all, run_blocking
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.fingerprint import OpenedDirectory
from orbit_ckpt._src.storage.integrity import open_checked
from orbit_ckpt._src.tree.keypath import NamePath, format_path
from orbit_ckpt._src.type_handlers.array import ArrayHandler
from orbit_ckpt._src.type_handlers.array_target import (
    ArrayRestoreArgs,
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
from orbit_ckpt._src.type_handlers.described import BuiltInDescriber, layouts_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyHostArray, open_leaf
from orbit_ckpt._src.type_handlers.numpy import bytes_type
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry

_ARRAYS = (JAX_ARRAY, NUMPY_ARRAY)

AS_SAVED = RestoreArgs()
"""Arguments of a leaf without any."""


_CHECKED = (ArrayStorage, TextStorage, ReadPlanner)
"""Capabilities of handlers that read nothing but arrays and text, which are checked on the way."""


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

    def unlike(
        self, records: Sequence[LeafRecord], wanted: Mapping[NamePath, object]
    ) -> Sequence[LeafRecord]:
        """Return the leaves without arrays that have the shape and dtype of a target's leaf.

        Args:
            records: The leaves.
            wanted: The target's leaves.
        """
        batch = self.batch
        built_in = {
            record.typestr: isinstance(self._describer(record.typestr, record), BuiltInDescriber)
            for record in {r.typestr: r for r in records if r.typestr in _ARRAYS}.values()
        }
        arrays = [
            record
            for record in records
            if built_in.get(record.typestr)
            and record.name not in batch.details
            and record.name not in batch.arrays
        ]
        layouts = batch.layouts.find((record.path, record.name) for record in arrays)
        alike: set[NamePath] = set()
        for record, layout in zip(arrays, layouts, strict=True):
            leaf = wanted.get(record.names)
            if (
                (is_host_array(leaf) or isinstance(leaf, jax.Array))
                and leaf.shape == layout.shape
                and leaf.dtype == layout.dtype
            ):
                alike.add(record.names)
        return [record for record in records if record.names not in alike]

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
            if record.is_empty or (inline and record.name in inline):
                others.append(record)
                continue
            arg = args.get(record.names) if args else None
            if arg is None:
                as_saved.setdefault(record.typestr, []).append(record)
                continue
            key = (record.typestr, id(arg))  # many leaves share their arguments
            group = wanted.get(key)
            if group is None:
                wanted[key] = (arg, [record])
            else:
                group[1].append(record)
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
    batch = structs.replace(stored.batch, open_reader=stored.batch.reader.unlimited)
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

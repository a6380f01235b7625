"""Describe a stored tree without reading its arrays; imports JAX only for leaves of plug-ins."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import cast

from orbit_ckpt._src.errors import FormatError, UnsupportedLeafError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.registry import read_tree
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.metadata.rich_types import decode_rich_types, find_namedtuple, has_rich_types
from orbit_ckpt._src.metadata.schema import EMPTY_TYPES, LeafRecord
from orbit_ckpt._src.metadata.values import Metadata, MetadataTree, TreeMetadata
from orbit_ckpt._src.runtime.threads import run_in_thread
from orbit_ckpt._src.storage.path import as_epath
from orbit_ckpt._src.tree.build import build_tree
from orbit_ckpt._src.tree.keypath import NamePath, format_path
from orbit_ckpt._src.type_handlers.base import LoadBatch, ParamInfo
from orbit_ckpt._src.type_handlers.described import BuiltInDescriber, Infos, LeafDescriber
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry


def describe_tree(
    path: Path,
    registry: TypeHandlerRegistry,
    *,
    reader: Format | None = None,
    aggregate: str | None = None,
    rich_types: bool = True,
) -> TreeMetadata:
    """Return metadata of the leaves of a stored tree; reads no array, touches no device.

    Args:
        path: Path of the tree.
        registry: Type handlers of leaves that are not of built-in types.
        reader: The format to read as, None to detect it.
        aggregate: Name of the msgpack file of early Orbax; None for `checkpoint`.
        rich_types: Whether tuples and namedtuples are rebuilt where recorded.

    Raises:
        CheckpointNotFoundError: There is no tree.
        CorruptionError: Stored data is missing or damaged.
    """

    def read(open_source: Callable[[], StoredTree]) -> TreeMetadata:
        source = open_source()
        leaves = DescribedLeaves(source, source.load_batch(), registry)
        found = leaves.metadata_now(source.document.leaves)
        tree = rebuild(source, found, rich_types=rich_types)
        return TreeMetadata(cast(MetadataTree, tree), source.document.custom_metadata)

    return read_tree(
        path,
        lambda open_source: run_in_thread(partial(read, open_source)),
        reader=reader,
        aggregate=aggregate,
    )


class DescribedLeaves:
    """The leaves of a stored tree and their places."""

    def __init__(self, source: StoredTree, batch: LoadBatch, registry: TypeHandlerRegistry) -> None:
        self.source = source
        self.batch = batch
        self.registry = registry

    @functools.cached_property
    def _directory(self) -> Path:
        return as_epath(self.source.path)

    def infos(self, records: Sequence[LeafRecord]) -> list[ParamInfo]:
        """Return the places of leaves."""
        from orbit_ckpt._src.storage.buckets import get_ts_context  # noqa: PLC0415 - imports TensorStore

        directory, document, batch = self._directory, self.source.document, self.batch
        context = get_ts_context()
        infos = [
            ParamInfo(
                name=record.name,
                parent_dir=directory,
                keypath=record.path,
                skip_deserialize=False,
                byte_limiter=batch.reader.limiter,
                is_ocdbt_checkpoint=document.use_ocdbt,
                use_zarr3=document.use_zarr3,
                ts_context=context,
                value_typestr=record.typestr,
                raise_array_data_missing_error=document.stores_fill_values,
                write_shape=record.write_shape,
                load_batch=batch,
            )
            for record in records
        ]
        for info in infos if batch.arrays else ():
            known = batch.arrays.get(info.name)
            if known is not None:
                info.ext_metadata = known.ext_metadata
        return infos

    async def metadata(self, records: Sequence[LeafRecord]) -> dict[NamePath, object]:
        """Return metadata of leaves, and empty containers unchanged; opens no array.

        Raises:
            UnsupportedLeafError: No handler is registered for some of the leaves.
        """
        found, others = self._built_in(records)
        return found | await self._of_others(others)

    def metadata_now(self, records: Sequence[LeafRecord]) -> dict[NamePath, object]:
        """Return what `metadata` does, synchronously; an event loop runs for plug-ins only.

        Raises:
            UnsupportedLeafError: No handler is registered for some of the leaves.
        """
        found, others = self._built_in(records)
        if others:
            from orbit_ckpt._src.runtime.loop import run_sync  # noqa: PLC0415 - imports asyncio

            found |= run_sync(self._of_others(others))
        return found

    def _built_in(
        self, records: Sequence[LeafRecord]
    ) -> tuple[dict[NamePath, object], list[tuple[LeafDescriber, list[LeafRecord]]]]:
        """Return metadata of leaves of built-in types, and the others by who describes them."""
        source = self.source
        found: dict[NamePath, object] = {}
        others: list[tuple[LeafDescriber, list[LeafRecord]]] = []
        groups: dict[str, list[LeafRecord]] = {}
        for record in records:
            if record.name in source.inline:
                found[record.names] = Metadata(record.name, source.path)
            elif record.is_empty:
                found[record.names] = empty_value(source, record)
            else:
                groups.setdefault(record.typestr, []).append(record)
        for typestr, group in groups.items():
            describer = self._describer(typestr, group[0])
            if isinstance(describer, BuiltInDescriber):
                infos = Infos(group, self.infos, source.path)
                values = describer.describe(group, self.batch, infos)
                found.update(zip([record.names for record in group], values, strict=True))
            else:
                others.append((describer, group))
        return found, others

    async def _of_others(
        self, groups: Sequence[tuple[LeafDescriber, list[LeafRecord]]]
    ) -> dict[NamePath, object]:
        found: dict[NamePath, object] = {}
        for describer, group in groups:
            values = await describer.metadata(self.infos(group))
            found.update(zip([record.names for record in group], values, strict=True))
        return found

    def _describer(self, typestr: str, record: LeafRecord) -> LeafDescriber:
        registry = self.registry
        if isinstance(registry, TypeHandlerRegistry):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may pass another with `get` and `has`
            found = registry.describer(typestr)
            if found is None:
                raise no_handler(record, typestr)
            return found
        if not registry.has(typestr):
            raise no_handler(record, typestr)
        return registry.get(typestr)


def no_handler(record: LeafRecord, key: type | str) -> UnsupportedLeafError:
    """Return the error for a leaf that no handler reads."""
    where = format_path(record.path)
    return UnsupportedLeafError(
        f"{where}: no type handler is registered for {key!r}. Install or register the one that "
        "wrote it.",
        paths=[where],
    )


def empty_value(source: StoredTree, record: LeafRecord) -> object:
    """Return the empty container of a record.

    Raises:
        FormatError: It is of an unknown kind.
    """
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
    where = str(source.path)
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

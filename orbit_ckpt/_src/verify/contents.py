"""Check every byte of a checkpoint's leaves, of any format, and continue after damage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from pathlib import Path

from orbit_ckpt._src.arrays.slices import chunk_indices, whole
from orbit_ckpt._src.errors import (
    CheckpointError,
    CorruptionError,
    FormatError,
    UnsupportedLeafError,
)
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.orbax.read import open_arrays, open_tree
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.metadata.files import find_string
from orbit_ckpt._src.metadata.schema import UNKNOWN_TYPE, LeafRecord
from orbit_ckpt._src.pytree.restore.leaves import AS_SAVED, StoredLeaves
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import (
    RESERVED,
    STRINGS,
    TREE_METADATA,
    Extent,
    Value,
    is_process_directory,
)
from orbit_ckpt._src.storage.region_stream import BLOCK_BYTES, decoder_bytes, read_to_end
from orbit_ckpt._src.storage.store_path import is_damage
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.keypath import DictKey, format_path
from orbit_ckpt._src.type_handlers.base import LoadBatch, TypeHandler
from orbit_ckpt._src.type_handlers.capabilities import ArrayStorage, TextStorage, capability
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry
from orbit_ckpt._src.verify.chunks import ChunkChecks
from orbit_ckpt._src.verify.report import Findings, Unverifiable

_GZIP = "gzip"
_SIZE_BYTES = 4
"""A gzip file ends with its uncompressed size, modulo 2**32."""

_MAX_BYTES = 1 << 28
"""Default limit of bytes held of an array that is compared with its checksum."""


async def verify_tree(
    checked: CheckedDirectory, registry: TypeHandlerRegistry, findings: Findings
) -> None:
    """Check all leaves of a tree.

    Args:
        checked: The tree's directory, whose files have been compared with its manifest.
        registry: Type handlers of its leaves.
        findings: Where findings are recorded.
    """
    directory = checked.path
    try:
        source = open_tree(directory, checked=checked)
        batch = _open_batch(source, checked, findings)
    except CheckpointError as error:
        findings.record(error)
        findings.skip(directory, "tree, because it cannot be opened", 1)
        return
    except OSError as error:
        if not is_damage(error):
            raise
        findings.add(f"it cannot be read: {error}", error.filename)
        findings.skip(directory, "tree, because it cannot be opened", 1)
        return
    if source.is_inferred:
        what = f"there is no {TREE_METADATA}: the structure of the tree is lost"
        findings.add(what, str(directory / TREE_METADATA))
    stored = StoredLeaves(source, batch, registry)
    inline = source.inline
    records = [r for r in source.document.leaves if not r.is_empty or r.name in inline]
    findings.leaves += len(records)
    arrays: list[LeafRecord] = []
    others: list[LeafRecord] = []
    texts: list[tuple[TextStorage, LeafRecord]] = []
    is_array, as_text = lru_cache(_is_array_storage), lru_cache(_as_text_storage)
    for record in records:
        if record.name in inline:
            continue
        handler = _handler_of(stored, record)
        if is_array(handler):
            arrays.append(record)
        elif (text := as_text(handler)) is not None:
            texts.append((text, record))
        else:
            others.append(record)
    _check_strings(stored, texts, checked, findings)
    if others:
        arrays += _undeclared_arrays(others, arrays, batch, checked, findings)
    reads = await check_arrays(directory, batch.reader, arrays, findings, _knows(checked))
    if checked.manifest is None:
        unsigned = sum(not read.layout.checksum for read in reads)
        findings.skip(directory, "arrays without checksums: decoded only", unsigned)


def _undeclared_arrays(
    others: Sequence[LeafRecord],
    arrays: Sequence[LeafRecord],
    batch: LoadBatch,
    checked: CheckedDirectory,
    findings: Findings,
) -> list[LeafRecord]:
    """Return the arrays of type handlers that do not say how they store leaves.

    An array that bears the name of a leaf belongs to it; all others are checked too, because they
    may be parts of one. A leaf to which nothing in the directory can belong is not checked.

    Args:
        others: The leaves of such handlers.
        arrays: Those of the others that are arrays.
        batch: Reads the tree.
        checked: Its directory.
        findings: Where findings are recorded.
    """
    stored = set(batch.reader.names())
    known = {record.name for record in arrays}
    found = [record for record in others if record.name in stored]
    rest = [
        r for r in others if r.name not in stored and find_string(batch.strings, r.name) is None
    ]
    names = sorted(stored - known - {record.name for record in found})
    found += [LeafRecord.at((DictKey(name),), UNKNOWN_TYPE) for name in names]
    has_files = _has_files_besides(checked, stored)
    if rest and not names and not has_files:
        kinds = ", ".join(sorted({record.typestr for record in rest}))
        leaves = shorten_list([format_path(record.path) for record in rest], 5)
        findings.unverifiable.append(
            Unverifiable(
                findings.checkpoint,
                f"{checked.path}: nothing is stored here for {len(rest)} leaves of the type "
                f"handlers {kinds} ({leaves}). They may be elsewhere; only a load can tell.",
            )
        )
    else:
        how = "were compared with the manifest" if checked.manifest else "have no checksums"
        what = f"leaves of other type handlers, not decoded: their files {how}"
        findings.skip(checked.path, what, len(rest))
    return found


def _has_files_besides(checked: CheckedDirectory, arrays: Collection[str]) -> bool:
    """Return whether a tree's directory has files besides arrays and our documents."""
    if checked.manifest is not None:
        files = list(checked.manifest.files)
    else:
        files = [entry.name for entry in checked.path.iterdir()]
    own = {*RESERVED, "d", *(name.partition("/")[0] for name in arrays)}
    heads = {file.partition("/")[0] for file in files} - own
    return any(not is_process_directory(head) for head in heads)


def _open_batch(source: StoredTree, checked: CheckedDirectory, findings: Findings) -> LoadBatch:
    """Return a reader of leaves; only of arrays if the tree's documents are damaged.

    Raises:
        CorruptionError: The database cannot be read.
    """
    try:
        batch = source.load_batch()
        batch.decode_shardings()
    except CheckpointError as error:
        batch = open_arrays(checked, source.document)
        findings.record(error)
    return batch


def _is_array_storage(handler: TypeHandler | None) -> bool:
    return capability(handler, ArrayStorage) is not None


def _as_text_storage(handler: TypeHandler | None) -> TextStorage | None:
    return capability(handler, TextStorage)


def _handler_of(stored: StoredLeaves, record: LeafRecord) -> TypeHandler | None:
    try:
        return stored.handler(record, AS_SAVED)
    except UnsupportedLeafError:
        return None


def _check_strings(
    stored: StoredLeaves,
    texts: Sequence[tuple[TextStorage, LeafRecord]],
    checked: CheckedDirectory,
    findings: Findings,
) -> None:
    infos = stored.infos([record for _, record in texts])
    for (handler, record), info in zip(texts, infos, strict=True):
        file = str(checked.path / getattr(handler, "filename", STRINGS))
        if findings.is_known(file):
            continue
        try:
            if handler.stored_text(info) is None:
                findings.add("the string is missing", file, format_path(record.path))
        except CheckpointError as error:
            findings.record(error)


async def check_arrays(
    directory: Path,
    reader: BatchReader,
    records: Sequence[LeafRecord],
    findings: Findings,
    is_known: Callable[[Value], bool],
) -> list[ArrayRead]:
    """Check all chunks of some arrays.

    Args:
        directory: Where they are, for data that cannot be checked.
        reader: Reads them.
        records: The arrays.
        findings: Where findings are recorded.
        is_known: Returns whether a chunk can be skipped, because its bytes have been compared.

    Returns:
        The arrays that exist.
    """
    reads = _open_arrays(reader, records, findings)
    found = await ChunkChecks(reader, findings, is_known).run(reads)
    absent = sum(check.absent for check in found)
    findings.skip(directory, "chunks that are not there: they stand for zeros, or are lost", absent)
    return reads


def _open_arrays(
    reader: BatchReader, records: Sequence[LeafRecord], findings: Findings
) -> list[ArrayRead]:
    """Return reads of arrays; one whose layout is damaged is recorded and left out."""
    try:
        layouts = reader.layouts([(record.path, record.name) for record in records])
    except CheckpointError as error:
        if len(records) == 1:
            findings.record(error, leaf=format_path(records[0].path))
            return []
        return [read for record in records for read in _open_arrays(reader, [record], findings)]
    return [
        ArrayRead(record.path, record.name, layout, ())
        for record, layout in zip(records, layouts, strict=True)
    ]


def _knows(directory: CheckedDirectory) -> Callable[[Value], bool]:
    """Return a predicate: whether the manifest records the file of a value."""
    known: dict[str, bool] = {}

    def is_known(value: Value) -> bool:
        if isinstance(value, bytes):
            return False
        if value.file not in known:
            name = os.path.relpath(value.file, directory.path)
            known[value.file] = directory.has_record(name)
        return known[value.file]

    return is_known


async def verify_foreign(path: Path, reader: Format, findings: Findings) -> None:
    """Decode all leaves, which finds truncated and missing data, and compare array checksums.

    Args:
        path: The checkpoint.
        reader: Its format.
        findings: Where findings are recorded.

    Raises:
        CheckpointError: It cannot be read, for another reason than damage.
    """
    try:
        source = reader.open(path)
        batch = source.load_batch()
        parts = source.open_parts()
    except (CorruptionError, FormatError) as error:
        findings.record(error)
        findings.skip(path, "tree, because it cannot be opened", 1)
        return
    if source.mixed is not None:
        findings.add(source.mixed)
    unbound = shorten_list([file.name for file in source.unbound], 5)
    what = f"documents of {reader.name} that nothing binds to the arrays ({unbound}): parsed only"
    findings.skip(path, what, len(source.unbound))
    inline, strings = source.inline, batch.strings
    records = [r for r in source.document.leaves if not r.is_empty or r.name in inline]
    findings.leaves += len(records)
    arrays = [r for r in records if r.name not in inline and find_string(strings, r.name) is None]
    summed = [record for record in arrays if record.name in parts.sums]
    errors = await _compare_sums(batch.reader, summed, findings)
    intact = {record.name for record in summed if record.name not in errors}
    others = [record for record in arrays if record.name not in intact]
    reads = await check_arrays(path, batch.reader, others, findings, lambda _: False)
    _check_ends(parts.store, reads, findings)
    known = {damage.leaf for damage in findings.damage}
    for error in errors.values():
        if error.path not in known:
            findings.add(error.what or str(error), error.file, error.path)
    if not source.has_checksums:
        how = " without checksums" if summed else ", which has no checksums"
        what = f"leaves of {reader.name}{how}: decoded only"
        findings.skip(path, what, len(records) - len(summed))


async def _compare_sums(
    reader: BatchReader, records: Sequence[LeafRecord], findings: Findings
) -> dict[str, CorruptionError]:
    """Compare whole arrays with their checksums; return the problems, by storage name.

    They include decoding errors; checking such an array without its checksum then reports each
    chunk.
    """
    errors: dict[str, CorruptionError] = {}
    budget = findings.limiter.max_bytes or _MAX_BYTES

    async def compare(record: LeafRecord) -> None:
        try:
            (layout,) = reader.layouts([(record.path, record.name)])
            everything = whole(layout.shape)
            read = ArrayRead(record.path, record.name, layout, (everything,))
            opened = budget
            if reader.can_stream(layout):
                opened = decoder_bytes(layout, everything)
            async with findings.limiter.reserve(min(budget, opened + 2 * BLOCK_BYTES)):
                await asyncio.to_thread(read_to_end, reader, read, budget)
        except CorruptionError as error:
            errors[record.name] = error
        except (FormatError, OSError) as error:
            if isinstance(error, OSError) and not is_damage(error):
                raise  # an unreachable store or missing permissions are not damage
            errors[record.name] = CorruptionError(str(error), path=format_path(record.path))
        else:
            findings.chunks += len(list(chunk_indices(whole(layout.shape), layout.chunk_shape)))
            findings.count(reader.cost(read).stored)

    await run_all(map(compare, records))
    return errors


def _check_ends(store: ValueStore, reads: Sequence[ArrayRead], findings: Findings) -> None:
    """Check that gzip files are complete, because TensorStore decodes truncated ones too."""
    known = {(damage.leaf, damage.chunk) for damage in findings.damage}
    for read in reads:
        layout, leaf = read.layout, format_path(read.path)
        if layout.compression != _GZIP:
            continue
        expected = (layout.chunk_nbytes % 2 ** (8 * _SIZE_BYTES)).to_bytes(_SIZE_BYTES, "little")
        for index in chunk_indices(whole(layout.shape), layout.chunk_shape):
            key = layout.chunk_key(read.name, index)
            try:
                value = store.find(key)
            except CorruptionError as error:  # a link, which reading the chunk may have reported
                if leaf not in {damage.leaf for damage in findings.damage}:
                    findings.record(error)
                continue
            if not isinstance(value, Extent) or (leaf, key) in known:
                continue
            with open(value.file, "rb") as file:
                file.seek(value.offset + max(0, value.length - _SIZE_BYTES))
                if file.read(_SIZE_BYTES) != expected:
                    findings.add("its end is missing", value.file, leaf, key)

"""Check every byte of a stored tree, and continue after damage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from jax.tree_util import DictKey

from orbit_ckpt._src.arrays.slices import Shape, chunk_indices, whole
from orbit_ckpt._src.errors import (
    CheckpointError,
    UnsupportedLeafError,
)
from orbit_ckpt._src.formats.orbax import open_arrays, open_tree
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.metadata.files import find_string
from orbit_ckpt._src.metadata.schema import UNKNOWN_TYPE, LeafRecord
from orbit_ckpt._src.pytree.restore.leaves import AS_SAVED, StoredLeaves
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.layout import (
    RESERVED,
    STRINGS,
    TREE_METADATA,
    Value,
    is_process_directory,
)
from orbit_ckpt._src.storage.store_path import is_damage
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.keypath import format_path
from orbit_ckpt._src.type_handlers.base import LoadBatch, TypeHandler
from orbit_ckpt._src.type_handlers.capabilities import ArrayStorage, TextStorage, capability
from orbit_ckpt._src.type_handlers.registry import TypeHandlerRegistry
from orbit_ckpt._src.verify.report import Findings, Unverifiable

_BLOCK_BYTES = 1 << 20
_GROUP_BYTES = 1 << 22
_GROUP_CHUNKS = 64
"""Smaller chunks are checked in groups, to save overhead per thread call."""


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
    is_array, is_text = lru_cache(_is_array_storage), lru_cache(_is_text_storage)
    for record in records:
        if record.name in inline:
            continue
        handler = _handler_of(stored, record)
        if is_array(handler):
            arrays.append(record)
        elif is_text(handler):
            _check_string(record, batch.strings, checked, findings)
        else:
            others.append(record)
    if others:
        arrays += _arrays_of_others(others, arrays, batch, checked, findings)
    reads = await check_arrays(directory, batch.reader, arrays, findings, _knows(checked))
    if checked.manifest is None:
        unsigned = sum(not read.layout.checksum for read in reads)
        findings.skip(directory, "arrays without checksums: decoded only", unsigned)


def _arrays_of_others(
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
    """Return a reader of leaves; if documents beside the arrays are damaged, of arrays only.

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


def _is_text_storage(handler: TypeHandler | None) -> bool:
    return capability(handler, TextStorage) is not None


def _handler_of(stored: StoredLeaves, record: LeafRecord) -> TypeHandler | None:
    try:
        return stored.handler(record, AS_SAVED)
    except UnsupportedLeafError:
        return None


def _check_string(
    record: LeafRecord,
    strings: Mapping[str, object],
    checked: CheckedDirectory,
    findings: Findings,
) -> None:
    file = str(checked.path / STRINGS)
    if find_string(strings, record.name) is None and not findings.is_known(file):
        leaf = format_path(record.path)
        findings.add("the string is missing", file, leaf)


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
    reads: list[ArrayRead] = []
    for record in records:
        try:
            (layout,) = reader.layouts([(record.path, record.name)])
        except CheckpointError as error:
            findings.record(error, leaf=format_path(record.path))
        else:
            reads.append(ArrayRead(record.path, record.name, layout, ()))
    block = max(1, min(_BLOCK_BYTES, (findings.limiter.max_bytes or _BLOCK_BYTES) // 4))
    absent = 0

    async def check(group: Sequence[tuple[ArrayRead, Shape]]) -> None:
        nonlocal absent
        async with findings.limiter.reserve(_held(reader, group, block)):
            found = await asyncio.to_thread(reader.check, group, max_bytes=block, is_known=is_known)
        for error in found.errors:
            findings.record(error)
        findings.count(found.nbytes)
        findings.chunks += len(group)
        absent += found.absent

    await run_all(check(group) for group in _groups(reads))
    findings.skip(directory, "chunks that are not there: they stand for zeros, or are lost", absent)
    return reads


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


def _groups(reads: Sequence[ArrayRead]) -> Iterator[list[tuple[ArrayRead, Shape]]]:
    group: list[tuple[ArrayRead, Shape]] = []
    held = 0
    for read in reads:
        layout = read.layout
        for index in chunk_indices(whole(layout.shape), layout.chunk_shape):
            if group and (held + layout.chunk_nbytes > _GROUP_BYTES or len(group) >= _GROUP_CHUNKS):
                yield group
                group, held = [], 0
            group.append((read, index))
            held += layout.chunk_nbytes
    if group:
        yield group


def _held(reader: BatchReader, group: Sequence[tuple[ArrayRead, Shape]], block: int) -> int:
    """Return the maximum bytes held while chunks are checked one after the other."""
    layouts = [read.layout for read, _ in group]
    return 2 * max(
        min(layout.chunk_nbytes, block) if reader.can_stream(layout) else layout.chunk_nbytes
        for layout in layouts
    )

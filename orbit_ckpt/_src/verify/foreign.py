"""Decode every leaf of another program's checkpoint, and continue after damage."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from orbit_ckpt._src.arrays.slices import chunk_indices, whole
from orbit_ckpt._src.errors import CorruptionError, FormatError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.metadata.files import find_string
from orbit_ckpt._src.metadata.schema import LeafRecord
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.region_stream import BLOCK_BYTES, decoder_bytes, read_to_end
from orbit_ckpt._src.storage.store_path import is_damage
from orbit_ckpt._src.tree.keypath import format_path
from orbit_ckpt._src.verify.report import Findings
from orbit_ckpt._src.verify.tree import check_arrays

_GZIP = "gzip"
_SIZE_BYTES = 4
"""A gzip file ends with its uncompressed size, modulo 2**32."""

_MAX_BYTES = 1 << 28
"""Default limit of bytes held of an array that is compared with its checksum."""


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
            read = ArrayRead(record.path, record.name, layout, (whole(layout.shape),))
            opened = decoder_bytes(layout) if reader.can_stream(layout) else budget
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

"""Statistics of leaves, measured in the workers of an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from orbit_ckpt._src.arrays.slices import chunk_indices, whole
from orbit_ckpt._src.arrays.statistics import ArrayStatistics
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES, Kept, run_units
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.storage.located import ChunkLocator, for_other_process
from orbit_ckpt._src.storage.measured import (
    ChunkToMeasure,
    MeasureUnit,
    measure_chunk,
    measure_unit,
)
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt._src.type_handlers.lazy import LazyLeaf

_Measured = list[tuple[ArrayStatistics, CorruptionError | None]]


async def measure_in_workers(
    leaves: Mapping[NamePath, LazyLeaf],
    executor: Executor,
    *,
    max_bytes: int,
    advance: Callable[[int], object],
) -> dict[NamePath, tuple[ArrayStatistics, list[CorruptionError]]]:
    """Return the statistics of arrays without their damaged chunks, and the errors of those.

    Args:
        leaves: The arrays.
        executor: Where to read and measure them.
        max_bytes: Approximate number of bytes that a worker holds of a unit.
        advance: Called with the bytes of values measured since its last call.
    """
    if not leaves:
        return {}
    one = next(iter(leaves.values()))  # they share checkpoint and reader
    reader = load_batch_of(one.info).reader
    locator = ChunkLocator(reader)
    order: list[NamePath] = []
    """The leaf of every chunk."""

    def units() -> Iterator[MeasureUnit | Kept[ChunkToMeasure]]:
        for group, _ in batched(_chunks(leaves), _nbytes, UNIT_BYTES):
            order.extend(names for names, _ in group)
            yield from _split(locator, [chunk for _, chunk in group], max_bytes)

    async def here(chunk: ChunkToMeasure) -> _Measured:
        measured = await asyncio.to_thread(measure_chunk, reader, chunk, max_bytes)
        advance(_measured_bytes(chunk, measured))
        return [measured]

    def finished(unit: MeasureUnit, found: _Measured) -> None:
        advance(sum(map(_measured_bytes, unit.chunks, found)))

    with one.directory.reading(one.info.label):
        results = await run_units(executor, measure_unit, units(), here=here, finished=finished)
    total = {names: (ArrayStatistics(), list[CorruptionError]()) for names in leaves}
    measured = (found for result in results for found in result)
    for names, (part, error) in zip(order, measured, strict=True):
        statistics, errors = total[names]
        if error is None:
            total[names] = (statistics.merge(part), errors)
        else:
            errors.append(error)
    return total


def _chunks(leaves: Mapping[NamePath, LazyLeaf]) -> Iterator[tuple[NamePath, ChunkToMeasure]]:
    for names, leaf in leaves.items():
        read = for_other_process(leaf.read)
        for index in chunk_indices(whole(leaf.shape), read.layout.chunk_shape):
            yield names, ChunkToMeasure(read, index, leaf.logical)


def _nbytes(chunk: tuple[NamePath, ChunkToMeasure]) -> int:
    return chunk[1].read.layout.chunk_nbytes


def _measured_bytes(
    chunk: ChunkToMeasure, measured: tuple[ArrayStatistics, CorruptionError | None]
) -> int:
    return measured[0].size * chunk.logical.itemsize


def _split(
    locator: ChunkLocator, chunks: Sequence[ChunkToMeasure], max_bytes: int
) -> Iterator[MeasureUnit | Kept[ChunkToMeasure]]:
    """Yield units of consecutive chunks, and between them chunks to measure here."""
    for located, group in locator.split([(chunk.read, chunk.index) for chunk in chunks]):
        part = chunks[group.start : group.stop]
        if located is None:
            yield from map(Kept, part)
        else:
            yield MeasureUnit(located, part, max_bytes)

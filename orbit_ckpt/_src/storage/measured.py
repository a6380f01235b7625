"""Measure the values of chunks, in any process; imports no JAX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Shape, chunk_region, split_by_rows, whole
from orbit_ckpt._src.arrays.statistics import ArrayStatistics, measure
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.located import LocatedChunks
from orbit_ckpt._src.storage.region_stream import RegionStream


class ChunkToMeasure(Struct, frozen=True):
    """One chunk of an array.

    Attributes:
        read: The array.
        index: Grid index of the chunk.
        logical: The dtype that the stored bytes represent.
    """

    read: ArrayRead
    index: Shape
    logical: DType


class MeasureUnit(Struct, frozen=True):
    """Chunks to measure.

    Attributes:
        located: Their places.
        chunks: The chunks.
        max_bytes: Approximate number of bytes to hold at once.
    """

    located: LocatedChunks
    chunks: Sequence[ChunkToMeasure]
    max_bytes: int


def measure_unit(unit: MeasureUnit) -> list[tuple[ArrayStatistics, CorruptionError | None]]:
    """Return the statistics of chunks, or the error of a damaged one."""
    reader = unit.located.open()
    return [measure_chunk(reader, chunk, unit.max_bytes) for chunk in unit.chunks]


def measure_chunk(
    reader: BatchReader, chunk: ChunkToMeasure, max_bytes: int
) -> tuple[ArrayStatistics, CorruptionError | None]:
    """Return the statistics of one chunk, or its error if it is damaged."""
    found = ArrayStatistics()
    try:
        for block in chunk_blocks(reader, chunk, max_bytes):
            found = found.merge(measure(block))
    except CorruptionError as error:
        return ArrayStatistics(), error
    return found, None


def chunk_blocks(reader: BatchReader, chunk: ChunkToMeasure, max_bytes: int) -> Iterator[HostArray]:
    """Yield the values of a chunk in blocks, reading it once.

    Raises:
        CorruptionError: It is missing or damaged, which may show only at its end.
    """
    read, layout = chunk.read, chunk.read.layout
    box = chunk_region(chunk.index, layout.chunk_shape)
    region = whole(layout.shape).intersect(box)
    if region is None:
        return
    elements = max(1, max_bytes // chunk.logical.itemsize)
    is_one_block = layout.chunk_nbytes <= max_bytes
    if region == box or is_one_block or not reader.can_stream(layout):
        for block in reader.read_blocks(read, region, elements * layout.dtype.itemsize):
            yield block.view(chunk.logical)
        return
    # a chunk that exceeds the array and the limit: stream through it once
    stream = RegionStream(reader, read)
    for part in split_by_rows(region, (1,) * len(region.shape), elements):
        yield stream.next(part).view(chunk.logical)

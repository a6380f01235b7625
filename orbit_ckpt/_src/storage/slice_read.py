"""Read slices of arrays again and again, without reading whole chunks each time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import structs

from orbit_ckpt._src.arrays.chunk_parts import ChunkPart, copy_parts, parts_by_chunk
from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.memory import aligned_empty, byte_view
from orbit_ckpt._src.arrays.slices import Region, Shape, chunk_region, whole
from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.storage.box_read import SPAN_BYTES, read_box
from orbit_ckpt._src.storage.chunk_read import ArrayRead, ChunkReader, damaged_chunk
from orbit_ckpt._src.storage.kept_chunks import CHECKED_BLOCK_BYTES, BlockSums, KeptChunks
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.store_path import is_store_url
from orbit_ckpt._src.storage.value_read import ValueReader, part_of


class SliceReader:
    """Reads slices of the arrays of one store.

    The first slice of a chunk reads and checks the whole chunk. Of an uncompressed chunk on a
    local disk the checksums of its blocks are kept, and further slices read only the blocks that
    they touch; of another chunk its values are kept. A slice of all of a chunk keeps nothing.

    Args:
        chunks: Reads chunks.
        kept: Keeps what further slices need.
        decode: Reads regions of arrays whose codecs `chunks` does not have; None for others.
    """

    def __init__(
        self,
        chunks: ChunkReader,
        kept: KeptChunks,
        decode: Callable[[ArrayRead], list[HostArray]] | None = None,
    ) -> None:
        self._chunks = chunks
        self._kept = kept
        self._decode = decode

    def read(self, read: ArrayRead, region: Region, reading: ValueReader) -> HostArray:
        """Read a slice; the result is owned by the caller.

        Args:
            read: The array; its regions do not matter.
            region: The slice.
            reading: Reads.

        Raises:
            CorruptionError: A chunk is missing, truncated or damaged.
        """
        layout = read.layout
        (result,) = self._chunks.allocate(structs.replace(read, regions=(region,)))
        for index, parts in parts_by_chunk((region,), layout.chunk_shape).items():
            target = result[(*parts[0].target.slices, ...)]
            if not self._from_kept(read, index, parts[0], target, reading):
                if self._decode is None:
                    self._read_directly(read, index, parts[0], result, reading)
                else:
                    self._read_decoded(read, index, parts[0], target, self._decode)
        return result

    def _from_kept(
        self, read: ArrayRead, index: Shape, part: ChunkPart, into: HostArray, reading: ValueReader
    ) -> bool:
        """Fill a part from what is kept of its chunk; return whether that is enough."""
        layout = read.layout
        kept = self._kept.get(layout.chunk_key(read.name, index))
        if isinstance(kept, BlockSums):
            key, value = self._chunks.chunk(read, index)
            if not isinstance(value, Extent):
                return False
            blocks = _CheckedBlocks(value, layout.chunk_nbytes, kept, reading)
            problem = read_box(
                layout,
                part.source,
                into,
                blocks.fetch,
                max_gap_bytes=CHECKED_BLOCK_BYTES,
                span_bytes=SPAN_BYTES,
            )
            if problem is not None:
                raise damaged_chunk(read, key, value, problem)
            return True
        if kept is not None:
            into[...] = kept[(*part.source.slices, ...)]
        return kept is not None

    def _read_directly(
        self,
        read: ArrayRead,
        index: Shape,
        part: ChunkPart,
        result: HostArray,
        reading: ValueReader,
    ) -> None:
        layout = read.layout
        if _is_all_of(part, index, read) or self._chunks.reads_parts(layout):
            self._chunks.fill(read, index, (part,), (result,), reading)
            return
        key, value = self._chunks.chunk(read, index)
        is_plain = layout.compression is None and layout.chunk_nbytes > CHECKED_BLOCK_BYTES
        fits = layout.chunk_nbytes <= self._kept.max_bytes
        if is_plain and isinstance(value, Extent) and not (fits and is_store_url(value.file)):
            sums = BlockSums()
            self._chunks.fill(read, index, (part,), (result,), reading, sums=sums)
            self._kept.put(key, sums)
        elif fits:
            values = aligned_empty(layout.chunk_shape, layout.dtype)
            everything = ChunkPart(0, whole(layout.chunk_shape), whole(layout.chunk_shape))
            self._chunks.fill(read, index, (everything,), (values,), reading)
            self._kept.put(key, values)
            copy_parts(everything.source, values, (part,), (result[(*part.target.slices, ...)],))
        else:
            self._chunks.fill(read, index, (part,), (result,), reading)

    def _read_decoded(
        self,
        read: ArrayRead,
        index: Shape,
        part: ChunkPart,
        target: HostArray,
        decode: Callable[[ArrayRead], list[HostArray]],
    ) -> None:
        layout = read.layout
        chunk = chunk_region(index, layout.chunk_shape)
        box = chunk.intersect(whole(layout.shape))
        is_kept = layout.chunk_nbytes <= self._kept.max_bytes and not layout.has_inner_chunks
        if box is None or not is_kept or _is_all_of(part, index, read):
            start = tuple(map(sum, zip(chunk.start, part.source.start, strict=True)))
            (target[...],) = decode(
                structs.replace(read, regions=(Region(start, part.source.shape),))
            )
            return
        (values,) = decode(structs.replace(read, regions=(box,)))
        self._kept.put(layout.chunk_key(read.name, index), values)
        target[...] = values[(*part.source.slices, ...)]


def _is_all_of(part: ChunkPart, index: Shape, read: ArrayRead) -> bool:
    """Return whether a part is all that a chunk has of its array."""
    chunk = chunk_region(index, read.layout.chunk_shape)
    box = chunk.intersect(whole(read.layout.shape))
    return box is not None and part.source.shape == box.shape


class _CheckedBlocks:
    """Reads parts of a chunk that was verified, and compares the blocks that they touch.

    Args:
        value: The place of the chunk.
        nbytes: Size of its elements.
        sums: Checksums of its blocks.
        reading: Reads, and counts the bytes read.
    """

    def __init__(self, value: Extent, nbytes: int, sums: BlockSums, reading: ValueReader) -> None:
        self._value = value
        self._nbytes = nbytes
        self._sums = sums.sums
        self._reading = reading
        self._memory = memoryview(bytearray())

    def fetch(self, position: int, buffer: memoryview) -> str | None:
        """Fill a buffer with bytes of the chunk; return what is wrong with it."""
        end = position + buffer.nbytes
        start = position // CHECKED_BLOCK_BYTES * CHECKED_BLOCK_BYTES
        for first in range(start, end, SPAN_BYTES):
            last = min(-(-end // CHECKED_BLOCK_BYTES) * CHECKED_BLOCK_BYTES, self._nbytes)
            data = self._buffer(min(SPAN_BYTES, last - first))
            place = part_of(self._value, first, data.nbytes)
            self._reading.nbytes += data.nbytes
            if self._reading.read_into(place, [data]) != data.nbytes:
                return "the file ends before it does"
            if not self._are_verified(first // CHECKED_BLOCK_BYTES, data):
                return "it has changed since it was verified"
            a, b = max(position, first), min(end, first + data.nbytes)
            buffer[a - position : b - position] = data[a - first : b - first]
        return None

    def _are_verified(self, number: int, data: memoryview) -> bool:
        starts = range(0, data.nbytes, CHECKED_BLOCK_BYTES)
        return all(
            crc32c(data[start : start + CHECKED_BLOCK_BYTES]) == self._sums[number + i]
            for i, start in enumerate(starts)
        )

    def _buffer(self, nbytes: int) -> memoryview:
        if self._memory.nbytes < nbytes:
            self._memory = byte_view(aligned_empty((nbytes,), np.dtype(np.uint8)))
        return self._memory[:nbytes]

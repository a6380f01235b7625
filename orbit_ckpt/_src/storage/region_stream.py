"""Read an array from start to end without holding any of its chunks whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.memory import aligned_empty, byte_view
from orbit_ckpt._src.arrays.slices import (
    Region,
    Shape,
    chunk_indices,
    chunk_region,
    split_by_rows,
    whole,
)
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead, damaged_chunk, recorded_checksum
from orbit_ckpt._src.storage.codec import PIECE_BYTES, ChunkStream
from orbit_ckpt._src.storage.value_read import open_value
from orbit_ckpt._src.storage.zarr import ZarrArray

DECODER_BYTES = 1 << 20
"""Maximum bytes that the decompressor of a streamed chunk holds."""

BLOCK_BYTES = 1 << 20
"""Size of the parts in which an array is read to its end."""


class RegionStream:
    """Reads consecutive parts of one array, each chunk once.

    Chunks stay open while parts of them remain. A compressed one then holds what its decompressor
    needs: half a megabyte, or its size if that is less.

    Args:
        reader: Finds the chunks.
        read: The array, which the reader `can_stream`; its regions do not matter.
        region: What the parts make up, a range of its elements in C order; None for all of it.
    """

    def __init__(self, reader: BatchReader, read: ArrayRead, region: Region | None = None) -> None:
        self._reader = reader
        self._read = read
        self._whole = whole(read.layout.shape) if region is None else region
        self._check = reader.sums.begin(read, self._whole)
        self._open: dict[Shape, _OpenChunk] = {}

    def next(self, region: Region) -> HostArray:
        """Read the part that follows the previous one.

        Args:
            region: The part: a range along one dimension, all of the later ones, one index of the
                earlier ones. `split_by_rows` with chunks of one element gives such parts in order.

        Raises:
            CorruptionError: A chunk is missing, truncated or damaged; or, with the last part, the
                array is not the one that was saved.
        """
        layout = self._read.layout
        result = aligned_empty(region.shape, layout.dtype)
        for index in chunk_indices(region, layout.chunk_shape):
            box = chunk_region(index, layout.chunk_shape)
            part = region.intersect(box)
            stored = self._whole.intersect(box)
            if part is None or stored is None:
                continue
            chunk = self._open.get(index)
            if chunk is None:
                chunk = self._open[index] = _OpenChunk(self._reader, self._read, index)
            # the ellipsis makes it a view of a single number too
            chunk.read(part.within(box), result[(*part.within(region).slices, ...)])
            if part.stop == stored.stop:
                del self._open[index]
                chunk.finish()
        if self._check is not None:
            self._check.add(result)
            if region.stop == self._whole.stop:
                self._check.finish()
        return result


class _OpenChunk:
    """A chunk whose first elements have been read."""

    def __init__(self, reader: BatchReader, read: ArrayRead, index: Shape) -> None:
        key, value = reader.chunk(read, index)
        nbytes = len(value) if isinstance(value, bytes) else value.length
        expected = recorded_checksum(value)
        self._stream = ChunkStream(read.layout, open_value(value), nbytes, expected)
        self._layout = read.layout
        self._damaged = partial(damaged_chunk, read, key, value)
        self._position = 0

    def read(self, part: Region, result: HostArray) -> None:
        """Read a part, in the chunk's coordinates, which begins after those already read."""
        shape = self._layout.chunk_shape
        axis = next((i for i, n in enumerate(part.shape) if n > 1), len(shape))
        # `_position` bytes of the chunk have been decoded, none twice: parts arrive in C order, so
        # a read only skips forward. A chunk that reaches beyond the array is padded there, and
        # the padding lies between the wanted elements; therefore `span` has the chunk's full
        # extent in the dimensions after `axis`, and the padding is cut off afterwards.
        span = (*part.shape[: axis + 1], *shape[axis + 1 :])
        self._skip(_offset(part.start, shape))
        if span == result.shape and result.flags.c_contiguous:
            self._fill(byte_view(result))
        else:
            values = aligned_empty(span, self._layout.dtype)
            self._fill(byte_view(values))
            result[...] = values[tuple(slice(n) for n in result.shape)]

    def finish(self) -> None:
        """Read the padding beyond the array's edge, and check the chunk."""
        self._skip(math.prod(self._layout.chunk_shape))
        self._check(self._stream.finish)

    def _skip(self, position: int) -> None:
        """Advance to an element."""
        remaining = position * self._layout.dtype.itemsize - self._position
        scratch = memoryview(bytearray(min(remaining, PIECE_BYTES)))
        while remaining:
            piece = scratch[:remaining]
            self._fill(piece)
            remaining -= piece.nbytes

    def _fill(self, buffer: memoryview) -> None:
        self._check(lambda: self._stream.read_into(buffer))
        self._position += buffer.nbytes

    def _check(self, read: Callable[[], str | None]) -> None:
        try:
            problem = read()
        except FileNotFoundError:
            problem = "the file is missing"
        if problem is not None:
            raise self._damaged(problem)


def _offset(index: Shape, shape: Shape) -> int:
    """Return the number of elements before an index, in C order."""
    position = 0
    for i, n in zip(index, shape, strict=True):
        position = position * n + i
    return position


def read_in_order(
    reader: BatchReader, read: ArrayRead, region: Region, *, block_bytes: int, max_bytes: int
) -> Iterator[HostArray]:
    """Yield a range of an array's elements as consecutive blocks.

    Args:
        reader: Reads its store.
        read: The array; its regions do not matter.
        region: A range of its elements in C order.
        block_bytes: Approximate size of a block.
        max_bytes: Maximum bytes held for open chunks, so that each is read once; if a row has more,
            or TensorStore decodes them, they are read again for every block.

    Raises:
        CorruptionError: A chunk is missing or damaged, or the array is not the one that was saved.
    """
    layout = read.layout
    if not reader.can_stream(layout) or decoder_bytes(layout, region) > max_bytes:
        yield from reader.read_blocks(read, region, block_bytes)
        return
    stream = RegionStream(reader, read, region)
    elements = max(1, block_bytes // layout.dtype.itemsize)
    for part in split_by_rows(region, (1,) * len(region.shape), elements):
        yield stream.next(part)


def decoder_bytes(layout: ZarrArray, region: Region) -> int:
    """Return the maximum bytes held by open chunks while a range of elements is read in order."""
    rows = zip(region.start[1:], region.stop[1:], layout.chunk_shape[1:], strict=True)
    at_once = math.prod(-(-stop // chunk) - start // chunk for start, stop, chunk in rows)
    return at_once * min(DECODER_BYTES, layout.chunk_nbytes)


def read_to_end(reader: BatchReader, read: ArrayRead, max_bytes: int) -> None:
    """Read an array in order and discard it, comparing its checksum if it has one.

    Args:
        reader: Reads its store.
        read: The array; its regions do not matter.
        max_bytes: Maximum bytes held. If that is too little to read each chunk once, chunks are
            read several times; one that TensorStore decodes is held whole.

    Raises:
        CorruptionError: A chunk is missing or damaged, or the array is not the one that was saved.
    """
    everything, half = whole(read.layout.shape), max_bytes // 2
    is_once = reader.can_stream(read.layout) and decoder_bytes(read.layout, everything) <= half
    block = min(BLOCK_BYTES, half // 2) if is_once else half
    for _ in read_in_order(reader, read, everything, block_bytes=block, max_bytes=half):
        pass

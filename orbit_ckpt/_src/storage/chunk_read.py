"""Read chunks of arrays: as stored, decoded, or block by block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.chunk_parts import ChunkPart, copy_parts, parts_by_chunk
from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.memory import Arena, aligned_empty, byte_view
from orbit_ckpt._src.arrays.slices import Region, Shape, chunk_region, split_by_rows, whole
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.storage.box_read import PAGE_BYTES, SPAN_BYTES, box_bytes, read_box
from orbit_ckpt._src.storage.codec import ChunkStream, decode_chunk, decode_stream
from orbit_ckpt._src.storage.kept_chunks import BlockSums
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import Extent, Value
from orbit_ckpt._src.storage.plain_stream import PlainStream, is_plain
from orbit_ckpt._src.storage.read_shares import in_requests
from orbit_ckpt._src.storage.store_path import is_store_url
from orbit_ckpt._src.storage.value_find import ValueFinder
from orbit_ckpt._src.storage.value_read import (
    MAX_AHEAD_BYTES,
    OBJECT_ALONE_BYTES,
    ValueReader,
    open_value,
    part_of,
    within_file,
)
from orbit_ckpt._src.storage.zarr import ZarrArray, most_decoded
from orbit_ckpt._src.tree.keypath import KeyPath, format_path

SMALL_BYTES = 1 << 14
"""Smaller reads use one thread; several would mostly wait for the interpreter lock."""

_STREAMED_BYTES = 1 << 18
_LARGE_BYTES = 1 << 26
_BLOCK_BYTES = 1 << 20
_OBJECT_BLOCK_BYTES = 1 << 23
_OBJECT_SPAN_BYTES = 1 << 25
_MIN_BLOCK_BYTES = 1 << 16
"""Parts of chunks that are read block by block."""


class ArrayRead(Struct, frozen=True, gc=False):
    """Parts of one array to read; a struct, because there is one per leaf.

    Attributes:
        path: Where the leaf sits.
        name: Storage name.
        layout: How it is stored.
        regions: The parts.
    """

    path: KeyPath
    name: str
    layout: ZarrArray
    regions: Sequence[Region]

    @property
    def where(self) -> str:
        """The leaf as text, for messages."""
        return format_path(self.path)

    @property
    def nbytes(self) -> int:
        """Size of the parts in bytes."""
        return sum([region.size for region in self.regions]) * self.layout.dtype.itemsize


class ByteCount:
    """A byte counter for several threads."""

    def __init__(self) -> None:
        self.total = 0
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        """Add to it."""
        with self._lock:
            self.total += nbytes


class ChunkReader(ValueFinder):
    """Reads chunks of one store that need no codec but zstd."""

    def __init__(self, store: ValueStore) -> None:
        super().__init__(store)
        self._max_gap_bytes = OBJECT_ALONE_BYTES if store.is_remote else PAGE_BYTES
        self._alone_bytes = OBJECT_ALONE_BYTES if store.is_remote else SMALL_BYTES

    def read(self, read: ArrayRead, reading: ValueReader) -> list[HostArray]:
        """Read the regions of an array, each chunk once; the results are owned by the caller.

        Raises:
            CorruptionError: A chunk is missing, truncated or damaged.
        """
        layout = read.layout
        results = self.allocate(read, reading.arena)
        if len(read.regions) == 1 and read.regions[0].shape == layout.chunk_shape == layout.shape:
            self._read_chunk(read, (0,) * len(layout.shape), byte_view(results[0]), reading)
            return results
        found = parts_by_chunk(read.regions, layout.chunk_shape)
        for index in self._in_requests(read, list(found), reading):
            self.fill(read, index, found[index], results, reading)
        return results

    def _in_requests(
        self, read: ArrayRead, indices: Sequence[Shape], reading: ValueReader
    ) -> Iterable[Shape]:
        """Return chunks of an array in the order in which fewest requests read them."""
        if not self._store.is_remote or len(indices) == 1:
            return indices
        keys = [read.layout.chunk_key(read.name, index) for index in indices]
        values = self.find_all([read.path] * len(keys), keys)
        return in_requests(dict(zip(indices, values, strict=True)), reading)

    def allocate(self, read: ArrayRead, arena: Arena | None = None) -> list[HostArray]:
        """Return uninitialized arrays for the regions of an array.

        Args:
            read: The array.
            arena: Provides memory; None for memory of each region's own.

        Raises:
            CorruptionError: Its chunks are too small for what the array claims to be.
        """
        dtype = read.layout.dtype
        results: list[HostArray] = []
        for region in read.regions:
            nbytes = region.size * dtype.itemsize
            if nbytes > _LARGE_BYTES:
                self._check_size(read, region)
            memory = _new_block(nbytes) if arena is None else arena.allocate(nbytes)
            results.append(np.ndarray(region.shape, dtype, memory))
        return results

    def fill(
        self,
        read: ArrayRead,
        index: Shape,
        parts: Sequence[ChunkPart],
        results: Sequence[HostArray],
        reading: ValueReader,
        *,
        sums: BlockSums | None = None,
    ) -> None:
        """Read a chunk once and copy its parts into the regions that they belong to.

        Args:
            read: The array.
            index: The chunk's grid index.
            parts: Its parts, see `parts_by_chunk`.
            results: The values of each region.
            reading: Reads.
            sums: Receives checksums of the chunk's blocks, if it is uncompressed and not all of it
                belongs to one region.

        Raises:
            CorruptionError: The chunk is missing, truncated or damaged.
        """
        layout = read.layout
        # the ellipsis makes it a view of a single number too
        targets = [results[part.number][(*part.target.slices, ...)] for part in parts]
        is_whole = parts[0].source.shape == layout.chunk_shape
        if len(parts) == 1 and is_whole and targets[0].flags.c_contiguous:
            self._read_chunk(read, index, byte_view(targets[0]), reading)
        elif self.reads_parts(layout) and self._are_less(parts, layout):
            for part, target in zip(parts, targets, strict=True):
                self._read_part(read, index, part.source, target, reading)
        else:
            max_bytes = _OBJECT_BLOCK_BYTES if self._store.is_remote else _BLOCK_BYTES
            allocate = reading.buffer
            for block, values in self._blocks(read, index, reading, max_bytes, allocate, sums=sums):
                copy_parts(block, values, parts, targets)

    def _are_less(self, parts: Sequence[ChunkPart], layout: ZarrArray) -> bool:
        """Return whether separate reads of parts of a plain chunk take fewer bytes than all."""
        if len(parts) == 1:
            return True
        gap = self._max_gap_bytes
        nbytes = sum(box_bytes(layout, part.source, max_gap_bytes=gap) for part in parts)
        return nbytes < layout.chunk_nbytes

    def _check_size(self, read: ArrayRead, region: Region) -> None:
        """Check that a part can have the size that its array claims, by two of its chunks.

        A shape that is much too large would otherwise be found only after all chunks are listed.

        Raises:
            CorruptionError: The last chunk is missing, or the first one is too small.
        """
        layout = read.layout
        places = zip(region.start, region.stop, layout.chunk_shape, strict=True)
        first, last = zip(*((s // n, (e - 1) // n) for s, e, n in places), strict=True)
        key, value = self.chunk(read, first)
        self.chunk(read, last)
        try:
            stored = value if isinstance(value, bytes) else within_file(value)
        except FileNotFoundError:
            raise damaged_chunk(read, key, value, "the file is missing") from None
        if most_decoded(layout, stored_size(stored)) < layout.chunk_nbytes:
            problem = f"it does not {'decompress to' if layout.compression else 'have'} "
            raise damaged_chunk(read, key, value, f"{problem}{layout.chunk_nbytes} bytes")

    def reads_parts(self, layout: ZarrArray) -> bool:
        """Return whether a read of part of a chunk reads little more than its own bytes."""
        # of a small object a part costs more requests than the whole
        is_small = self._store.is_remote and layout.chunk_nbytes <= self._alone_bytes
        return layout.is_plain and not is_small

    def _read_part(
        self, read: ArrayRead, index: Shape, part: Region, into: HostArray, reading: ValueReader
    ) -> None:
        """Read only the bytes of a part of a plain chunk.

        Args:
            read: The array.
            index: The chunk's grid index.
            part: The part, in the chunk's coordinates.
            into: The destination.
            reading: Reads.
        """
        layout = read.layout
        key, value = self.chunk(read, index)
        problem = None
        if stored_size(value) != layout.chunk_nbytes:
            problem = f"it does not have {layout.chunk_nbytes} bytes"
        elif isinstance(value, bytes):
            chunk = np.frombuffer(value, layout.dtype).reshape(layout.chunk_shape)
            reading.nbytes += len(value)
            into[...] = chunk[(*part.slices, ...)]
        else:
            span_bytes = _OBJECT_SPAN_BYTES if self._store.is_remote else SPAN_BYTES
            gap = self._max_gap_bytes

            def fetch(position: int, buffer: memoryview) -> str | None:
                place = part_of(value, position, buffer.nbytes)
                reading.nbytes += buffer.nbytes
                is_whole = reading.read_into(place, [buffer]) == buffer.nbytes
                return None if is_whole else "the file ends before it does"

            try:
                problem = read_box(
                    layout, part, into, fetch, max_gap_bytes=gap, span_bytes=span_bytes
                )
            except FileNotFoundError:
                problem = "the file is missing"
        if problem is not None:
            raise damaged_chunk(read, key, value, problem)

    def blocks(
        self, read: ArrayRead, index: Shape, reading: ValueReader, max_bytes: int
    ) -> Iterator[tuple[Region, HostArray]]:
        """Yield a chunk as consecutive blocks in C order, with their regions.

        Damage shows only at its end: discard the blocks in that case.

        Raises:
            CorruptionError: The chunk is missing, truncated or damaged.
        """
        chunk = chunk_region(index, read.layout.chunk_shape)
        for block, values in self._blocks(read, index, reading, max_bytes, _new_block):
            start = tuple(map(sum, zip(chunk.start, block.start, strict=True)))
            yield Region(start, block.shape), values

    def _blocks(
        self,
        read: ArrayRead,
        index: Shape,
        reading: ValueReader,
        max_bytes: int,
        allocate: Callable[[int], memoryview],
        *,
        sums: BlockSums | None = None,
    ) -> Iterator[tuple[Region, HostArray]]:
        """Yield a chunk as `blocks` does, with regions in the chunk's coordinates.

        Args:
            read: The array.
            index: The chunk's grid index.
            reading: Reads.
            max_bytes: Approximate size of a block.
            allocate: Returns memory for a block; may return the same for each.
            sums: Receives checksums of an uncompressed chunk's blocks.
        """
        layout = read.layout
        chunk = whole(layout.chunk_shape)
        if sums is None and layout.chunk_nbytes <= max_bytes:
            memory = allocate(layout.chunk_nbytes)
            self._read_chunk(read, index, memory, reading)
            yield chunk, np.ndarray(chunk.shape, layout.dtype, memory)
            return
        key, value = self.chunk(read, index)
        nbytes = stored_size(value)
        reading.nbytes += nbytes

        def check(problem: str | None) -> None:
            if problem is not None:
                raise damaged_chunk(read, key, value, problem)

        try:
            stream = self._open_stream(layout, value, reading, sums)
            for block in cut_in_order(chunk, layout, max_bytes):
                memory = allocate(block.size * layout.dtype.itemsize)
                check(stream.read_into(memory))
                yield block, np.ndarray(block.shape, layout.dtype, memory)
            check(stream.finish())
        except FileNotFoundError:
            check("the file is missing")

    def _open_stream(
        self, layout: ZarrArray, value: Value, reading: ValueReader, sums: BlockSums | None
    ) -> ChunkStream | PlainStream:
        if isinstance(value, bytes):
            return ChunkStream(layout, open_value(value), len(value))
        if layout.compression is None:
            return PlainStream(layout, value, reading, sums)
        return ChunkStream(layout, reading.stream(value), value.length, value.checksum)

    def chunk(self, read: ArrayRead, index: Shape) -> tuple[str, Value]:
        """Return the key of one chunk of an array, and the stored chunk or its place.

        Raises:
            CorruptionError: The chunk is missing.
        """
        key = read.layout.chunk_key(read.name, index)
        value = self.find(read.path, key)
        if value is None:
            raise self.missing(read, key)
        return key, value

    def _read_chunk(
        self, read: ArrayRead, index: Shape, chunk: memoryview, reading: ValueReader
    ) -> None:
        """Read a chunk into a buffer of its size."""
        layout = read.layout
        key, value = self.chunk(read, index)
        is_alone = chunk.nbytes >= self._alone_bytes
        reading.nbytes += stored_size(value)
        try:
            if is_alone and isinstance(value, Extent) and is_plain(layout, value, reading):
                problem = _read_plain(layout, value, chunk, reading)
            else:
                problem = _read_encoded(layout, value, chunk, reading)
        except FileNotFoundError:
            problem = "the file is missing"
        if problem is not None:
            raise damaged_chunk(read, key, value, problem)

    def missing(self, read: ArrayRead, key: str) -> CorruptionError:
        """Return the error for a missing chunk."""
        return CorruptionError(
            f"{read.where}: chunk {key!r} is missing. {self.other_names(read.name)}",
            path=read.where,
            chunk=key,
            what="it is missing",
        )


def damaged_chunk(read: ArrayRead, key: str, value: Value | None, what: str) -> CorruptionError:
    """Return the error that explains the damage of a chunk."""
    file = value.file if isinstance(value, Extent) else None
    where = f"{file} at byte {value.offset}" if isinstance(value, Extent) else "the index"
    return CorruptionError(
        f"{read.where}: chunk {key!r} in {where} is damaged: {what}. Restore an earlier "
        "checkpoint or another copy of this one.",
        path=read.where,
        chunk=key,
        file=file,
        what=what,
    )


def stored_size(value: Value) -> int:
    """Return the size of a value in bytes."""
    return len(value) if isinstance(value, bytes) else value.length


def recorded_checksum(value: Value) -> int | None:
    """Return the recorded checksum of a value, None if nothing records it."""
    return None if isinstance(value, bytes) else value.checksum


def _new_block(nbytes: int) -> memoryview:
    return byte_view(aligned_empty((nbytes,), np.dtype(np.uint8)))


def cut_in_order(region: Region, layout: ZarrArray, max_bytes: int) -> Iterator[Region]:
    """Yield consecutive parts in C order."""
    elements = max(max_bytes, _MIN_BLOCK_BYTES) // layout.dtype.itemsize
    return split_by_rows(region, (1,) * len(region.shape), elements)


def _read_plain(
    layout: ZarrArray, value: Extent, chunk: memoryview, reading: ValueReader
) -> str | None:
    """Read a chunk stored as it is into its destination; return what is wrong with it."""
    stream = PlainStream(layout, value, reading)
    return stream.read_into(chunk) or stream.finish()


def _is_streamed(value: Extent) -> bool:
    """Return whether a compressed value is decoded while it is read, so that it is not held."""
    return value.length > (MAX_AHEAD_BYTES if is_store_url(value.file) else _STREAMED_BYTES)


def _read_encoded(
    layout: ZarrArray, value: Value, chunk: memoryview, reading: ValueReader
) -> str | None:
    """Read a chunk and decode it; return what is wrong with it."""
    if isinstance(value, Extent) and layout.compression and _is_streamed(value):
        stream = reading.stream(value)
        return decode_stream(layout, stream, value.length, chunk, value.checksum)
    encoded = reading.read(value)
    length = len(value) if isinstance(value, bytes) else value.length
    if encoded.nbytes != length:
        return f"it does not have {length} bytes"
    return decode_chunk(layout, encoded, chunk, recorded_checksum(value))

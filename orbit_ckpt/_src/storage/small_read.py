"""Read many small arrays at once: the counterpart of `storage.small_write`.

Of arrays that are one uncompressed chunk each, those that lie together in a file are read together,
and every step is one pass over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.storage.chunk_read import SMALL_BYTES, ArrayRead, ChunkReader, damaged_chunk
from orbit_ckpt._src.storage.codec import CHECKSUM_BYTES, decode_chunk
from orbit_ckpt._src.storage.layout import Extent, Value, join_key
from orbit_ckpt._src.storage.manifest import OWN_CHECKSUM
from orbit_ckpt._src.storage.value_read import MAX_AHEAD_BYTES, ValueReader
from orbit_ckpt._src.storage.zarr import ZarrArray

_MAX_GAP_BYTES = 1 << 12
"""Bytes between two arrays that are read with them."""


def is_small(read: ArrayRead) -> bool:
    """Return whether a read is a whole array that is one small uncompressed chunk."""
    layout = read.layout
    return (
        len(read.regions) == 1
        and read.regions[0].shape == layout.chunk_shape == layout.shape
        and layout.is_direct
        and layout.compression is None
        and layout.chunk_nbytes <= SMALL_BYTES
    )


class _Form(Struct, frozen=True, gc=False):
    """How the arrays of one layout are stored.

    Attributes:
        nbytes: Size of the elements of each.
        stored: Size of its chunk.
        suffix: Key of its chunk, relative to the array.
    """

    nbytes: int
    stored: int
    suffix: str

    @classmethod
    def of(cls, layout: ZarrArray) -> _Form:
        nbytes = layout.chunk_nbytes
        suffix = layout.chunk_key("", (0,) * len(layout.shape))
        return cls(nbytes, nbytes + CHECKSUM_BYTES * layout.checksum, suffix)


_Place = tuple[str, int, int, int]
"""File, start and end of a chunk, and the number of the read that it belongs to."""


class SmallReader:
    """Reads arrays for which `is_small` holds, with one thread.

    Attributes:
        results: The values of every read, writable and owned by the caller.
    """

    def __init__(
        self, chunks: ChunkReader, reads: Sequence[ArrayRead], reading: ValueReader
    ) -> None:
        """Find the chunks.

        Args:
            chunks: Finds and reads chunks.
            reads: The reads.
            reading: Reads for the thread.

        Raises:
            CorruptionError: A file that should hold a chunk is missing or not what was written.
        """
        self.results: list[list[HostArray]] = [[] for _ in reads]
        self._chunks = chunks
        self._reads = reads
        self._reading = reading
        forms: dict[int, _Form] = {}
        for read in reads:
            if id(read.layout) not in forms:
                forms[id(read.layout)] = _Form.of(read.layout)
        self._forms = [forms[id(read.layout)] for read in reads]
        self._keys = [join_key(r.name, f.suffix) for r, f in zip(reads, self._forms, strict=True)]
        self._values = chunks.find_all([read.path for read in reads], self._keys)

    def read(self) -> None:
        """Read the values.

        Raises:
            CorruptionError: A chunk is missing, truncated or damaged.
        """
        places: list[_Place] = []
        inline: list[tuple[int, memoryview]] = []
        for i, (value, form) in enumerate(zip(self._values, self._forms, strict=True)):
            if type(value) is Extent and value.length == form.stored:
                places.append((value.file, value.offset, value.offset + value.length, i))
            elif type(value) is bytes and len(value) == form.stored:
                inline.append((i, memoryview(value)))
            else:  # missing, of another size or in several pieces
                self.results[i] = self._chunks.read(self._reads[i], self._reading)
        self._decode(inline)
        places.sort()
        for run in _runs(places):
            self._decode(self._read_run(run))

    def _read_run(self, run: Sequence[_Place]) -> list[tuple[int, memoryview]]:
        """Return chunks that lie together as stored, valid until the next call."""
        file, start, _, first = run[0]
        length = run[-1][2] - start
        buffer = self._reading.buffer(length)
        try:
            count = self._reading.read_into(Extent(file, start, length), [buffer])
        except FileNotFoundError:
            raise self._damaged(first, "the file is missing") from None
        data = buffer[:count]
        return [(i, data[begin - start : end - start]) for _, begin, end, i in run]

    def _decode(self, stored: Sequence[tuple[int, memoryview]]) -> None:
        """Check chunks and copy their elements to memory of their own."""
        forms, reads, values, results = self._forms, self._reads, self._values, self.results
        memory = self._reading.arena.allocate_each([forms[i].nbytes for i, _ in stored])
        for (i, data), elements in zip(stored, memory, strict=True):
            layout, value, nbytes = reads[i].layout, values[i], forms[i].nbytes
            expected = value.checksum if type(value) is Extent else None
            if (  # true of nearly all
                layout.checksum
                and crc32c(data) == OWN_CHECKSUM
                and (expected is None or expected == int.from_bytes(data[nbytes:], "little"))
            ):
                elements[:] = data[:nbytes]
            else:
                problem = decode_chunk(layout, data, elements, expected)
                if problem is not None:
                    raise self._damaged(i, self._incomplete(i, data) or problem)
            results[i] = [np.ndarray(layout.shape, layout.dtype, elements)]
        self._reading.nbytes += sum([data.nbytes for _, data in stored])

    def _incomplete(self, number: int, data: memoryview) -> str | None:
        stored = self._forms[number].stored
        return None if data.nbytes == stored else f"it does not have {stored} bytes"

    def _damaged(self, number: int, problem: str) -> Exception:
        value: Value | None = self._values[number]
        return damaged_chunk(self._reads[number], self._keys[number], value, problem)


def _runs(places: Sequence[_Place]) -> Iterator[Sequence[_Place]]:
    """Yield groups of sorted places that lie together in one file."""
    begin = 0
    for i in range(1, len(places) + 1):
        if i < len(places):
            file, start, end, _ = places[i]
            gap = start - places[i - 1][2]
            is_near = file == places[begin][0] and 0 <= gap <= _MAX_GAP_BYTES
            if is_near and end - places[begin][1] <= MAX_AHEAD_BYTES:
                continue
        yield places[begin:i]
        begin = i

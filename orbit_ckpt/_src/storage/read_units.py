"""Divide reads of arrays into units: whole small arrays, and single chunks of large ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from orbit_ckpt._src.arrays.chunk_parts import ChunkPart, parts_by_chunk
from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.storage.chunk_read import ArrayRead, ChunkReader
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.small_read import SmallReader, is_small
from orbit_ckpt._src.storage.value_read import ValueReader

_DIVIDED_BYTES = 1 << 23
"""Threads share the chunks of an array from this size on; a smaller one is read by one thread."""


class _Unit(Struct, frozen=True, gc=False):
    """One chunk of a large array.

    Attributes:
        number: Position of the array among the reads.
        index: The chunk's grid index.
        parts: Its parts that belong to regions of the array.
    """

    number: int
    index: Shape
    parts: Sequence[ChunkPart]


class _Kind(Struct, frozen=True, gc=False):
    """What reads of the same regions of arrays of the same layout have in common.

    Attributes:
        nbytes: Size of the regions in bytes.
        is_divided: Whether each consists of several units.
        is_small: Whether they are read together.
    """

    nbytes: int
    is_divided: bool
    is_small: bool

    @classmethod
    def of(cls, read: ArrayRead, *, is_remote: bool) -> _Kind:
        is_divided = _is_divided(read, is_remote=is_remote)
        return cls(read.nbytes, is_divided, not is_remote and is_small(read))


class ReadUnits:
    """The units of several reads, at positions from 0 on.

    Args:
        chunks: Reads chunks.
        reads: The reads.
        numbers: Which of them to divide.
        is_remote: Whether they are in an object store, where every array is divided that has
            several chunks.

    Attributes:
        sizes: The number of bytes of every unit.
        divided: Positions of the reads that consist of several units.
    """

    def __init__(
        self,
        chunks: ChunkReader,
        reads: Sequence[ArrayRead],
        numbers: Sequence[int],
        *,
        is_remote: bool,
    ) -> None:
        self._chunks = chunks
        self._reads = reads
        self._units: list[_Unit] = []
        self._whole: list[int] = []
        self._small: set[int] = set()
        self.divided: list[int] = []
        self.sizes: list[int] = []
        kinds: dict[tuple[int, int], _Kind] = {}  # most arrays are alike
        for number in numbers:
            read = reads[number]
            key = id(read.layout), id(read.regions)
            kind = kinds.get(key) or kinds.setdefault(key, _Kind.of(read, is_remote=is_remote))
            if kind.is_divided:
                self.divided.append(number)
                continue
            if kind.is_small:
                self._small.add(len(self._whole))
            self._whole.append(number)
            self.sizes.append(kind.nbytes)

    def allocate(self, results: list[list[HostArray]]) -> None:
        """Allocate the results of reads that consist of several units, and add these units.

        Raises:
            CorruptionError: Chunks are too small for what their array claims to be.
        """
        for number in self.divided:
            read = self._reads[number]
            results[number] = self._chunks.allocate(read)
            found = parts_by_chunk(read.regions, read.layout.chunk_shape)
            self._units += [_Unit(number, index, parts) for index, parts in found.items()]
            self.sizes += [read.layout.chunk_nbytes] * len(found)

    def read(
        self, positions: Sequence[int], results: list[list[HostArray]], reading: ValueReader
    ) -> Iterator[int]:
        """Read the units at some positions; yield the numbers of reads that are then complete.

        Raises:
            CorruptionError: A chunk is missing, truncated or damaged.
        """
        if self._small:
            small = [self._whole[i] for i in positions if i in self._small]
            yield from self._read_small(small, results, reading)
            positions = [i for i in positions if i not in self._small]
        for position in positions:
            if position < len(self._whole):
                number = self._whole[position]
                results[number] = self._chunks.read(self._reads[number], reading)
                yield number
            else:
                unit = self._units[position - len(self._whole)]
                read, values = self._reads[unit.number], results[unit.number]
                self._chunks.fill(read, unit.index, unit.parts, values, reading)

    def _read_small(
        self, numbers: Sequence[int], results: list[list[HostArray]], reading: ValueReader
    ) -> Sequence[int]:
        small = SmallReader(self._chunks, [self._reads[number] for number in numbers], reading)
        small.read()
        for number, values in zip(numbers, small.results, strict=True):
            results[number] = values
        return numbers

    def places(self) -> list[Extent | None]:
        """Return the place of every unit's chunk in a store; None if it lies in no object."""
        chunks: list[tuple[ArrayRead, Shape]] = []
        for number in self._whole:
            read = self._reads[number]
            (region,), size = read.regions, read.layout.chunk_shape
            chunks.append((read, tuple(s // n for s, n in zip(region.start, size, strict=True))))
        chunks += [(self._reads[unit.number], unit.index) for unit in self._units]
        keys = [read.layout.chunk_key(read.name, index) for read, index in chunks]
        values = self._chunks.find_all([read.path for read, _ in chunks], keys)
        return [value if type(value) is Extent else None for value in values]


def _is_divided(read: ArrayRead, *, is_remote: bool) -> bool:
    if read.nbytes >= _DIVIDED_BYTES:
        return True
    return is_remote and not _is_chunk(read)


def _is_chunk(read: ArrayRead) -> bool:
    """Return whether a read is of one chunk, the whole of it."""
    shape = read.layout.chunk_shape
    if len(read.regions) != 1 or read.regions[0].shape != shape:
        return False
    return not any(start % n for start, n in zip(read.regions[0].start, shape, strict=True))

"""Write a file of arrays, filled by this process or by the workers of an executor.

An array has its place in the file before it is read, because its size is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.slices import Region
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.formats.bands import BandWriter, bands_of, write_in_workers
from orbit_ckpt._src.formats.writing import ArrayStream, WriteRequest, little_endian_bytes
from orbit_ckpt._src.type_handlers.lazy import LazyLeaf

Head = tuple[int, bytes]
"""The number of a byte of an array, and what comes before this byte in the file."""

_Places = tuple[tuple[int, int], ...]
"""Numbers of bytes of an array and their positions in the file; those between follow them."""


class FileBand(Struct, frozen=True):
    """A range of the elements of an array; see `Band`.

    Attributes:
        array: Number of the array.
        region: The elements.
        start: Number of their first byte among those of the array.
        nbytes: Their size.
        places: Where the array is in the file.
    """

    array: int
    region: Region
    start: int
    nbytes: int
    places: _Places


@dataclass(frozen=True, slots=True)
class FileWriter(BandWriter[FileBand]):
    """Writes bands at their places in a file.

    Attributes:
        path: The file, which exists.
    """

    path: Path

    @override
    def write(self, bands: Iterable[tuple[FileBand, Iterator[HostArray]]]) -> None:
        # For writing only: an NFS client that may read fills up pages before it writes them, with
        # bytes that another one may be writing.
        with os.fdopen(os.open(self.path, os.O_WRONLY), "wb") as file:
            for band, blocks in bands:
                _write_band(file, band, blocks)
            file.flush()
            os.fsync(file.fileno())


class ArrayFile:
    """A new file of bytes and arrays that follow one another.

    Args:
        file: The file, open for writing only, at its start.
        request: How much memory to use, and which executor.
    """

    def __init__(self, file: BinaryIO, request: WriteRequest) -> None:
        self._file = file
        self._request = request
        self._end = 0
        self._reserved: list[tuple[LazyLeaf, _Places]] = []

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        self._file.write(data)
        self._end += len(data)

    def write_array(self, array: ArrayStream, heads: Sequence[Head] = ()) -> None:
        """Append an array; if there is an executor, `finish` writes those that are stored.

        Args:
            array: The array.
            heads: What comes before some of its bytes; before the first one too if there are any.

        Raises:
            StorageError: The array has fewer bytes than its shape requires.
        """
        leaf, heads = array.stored, heads or [(0, b"")]
        is_shared = self._request.executor is not None and array.nbytes > 0
        if leaf is not None and is_shared and not leaf.has_sum:
            self._reserved.append((leaf, self._reserve(array.nbytes, heads)))
            return
        before, done = dict(heads), 0
        for piece in array.pieces(self._request):
            for start, part in _cut(piece, done, list(before)):
                self.write(before.get(start, b""))
                self.write(part)
            done += piece.nbytes
        _check_size(done, array.nbytes)

    def finish(self) -> None:
        """Write the arrays that have only their places yet, in the workers of the executor."""
        executor = self._request.executor
        if executor is None or not self._reserved:
            return
        self._file.truncate(self._end)
        leaves = [leaf for leaf, _ in self._reserved]
        writer = FileWriter(Path(self._file.name))
        write_in_workers(writer, leaves, self._bands(), self._request, executor)

    def _reserve(self, nbytes: int, heads: Sequence[Head]) -> _Places:
        """Write the heads of an array and skip its bytes."""
        places: list[tuple[int, int]] = []
        for (start, head), (stop, _) in pairwise([*heads, (nbytes, b"")]):
            self.write(head)
            places.append((start, self._end))
            self._end += stop - start
            self._file.seek(self._end)
        return tuple(places)

    def _bands(self) -> Iterator[FileBand]:
        for number, (leaf, places) in enumerate(self._reserved):
            start = 0
            for region in bands_of(leaf, leaf.read.layout.chunk_shape):
                nbytes = region.size * leaf.dtype.itemsize
                yield FileBand(number, region, start, nbytes, places)
                start += nbytes


def _write_band(file: BinaryIO, band: FileBand, blocks: Iterable[HostArray]) -> None:
    starts = [start for start, _ in band.places]
    done = 0
    for block in blocks:
        piece = little_endian_bytes(block)
        for start, part in _cut(piece, band.start + done, starts):
            number, position = max(place for place in band.places if place[0] <= start)
            file.seek(position + start - number)
            file.write(part)
        done += piece.nbytes
    _check_size(done, band.nbytes)


def _cut(piece: memoryview, start: int, bounds: Sequence[int]) -> Iterator[tuple[int, memoryview]]:
    """Yield the parts of a piece between bounds, with the number of the first byte of each.

    Args:
        piece: Bytes of an array.
        start: Number of the first one.
        bounds: Numbers of bytes of the array.
    """
    stop = start + piece.nbytes
    edges = [start, *(bound for bound in bounds if start < bound < stop), stop]
    for low, high in pairwise(edges):
        if high > low:
            yield low, piece[low - start : high - start]


def _check_size(found: int, expected: int) -> None:
    if found != expected:
        raise StorageError(f"{found} of {expected} bytes of an array could be read")

"""Write a file of arrays, filled by this process or by the workers of an executor.

An array has its place in the file before it is read, because its size is known. A worker writes a
band of a stored array: whole stored chunks whose elements follow one another. Writing it twice does
no harm, so a worker that was given up may go on while another one writes the same.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.slices import Region, band_shape, split_by_rows, whole
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.formats.writing import ArrayStream, WriteRequest, little_endian_bytes
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES, Kept, run_units
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.type_handlers.lazy import LazyLeaf
from orbit_ckpt._src.type_handlers.lazy_share import SharedLeaf, StoredBox

Head = tuple[int, bytes]
"""The number of a byte of an array, and what comes before this byte in the file."""

_Places = tuple[tuple[int, int], ...]
"""Numbers of bytes of an array and their positions in the file; those between follow them."""


class Band(Struct, frozen=True):
    """A range of the elements of an array.

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


class BandsUnit(Struct, frozen=True):
    """Bands that one worker writes.

    Attributes:
        file: The file, which exists.
        bands: The bands, and what reads each.
        block_bytes: Approximate size of the pieces to write.
        max_bytes: Approximate bytes to hold besides for chunks that are being read.
    """

    file: Path
    bands: Sequence[tuple[Band, StoredBox]]
    block_bytes: int
    max_bytes: int


def write_bands(unit: BandsUnit) -> None:
    """Write bands of arrays into a file; they are durable when this returns."""
    with open(unit.file, "r+b") as file:
        for band, box in unit.bands:
            blocks = box.in_order(whole(band.region.shape), unit.block_bytes, unit.max_bytes)
            _write_band(file, band, blocks)
        file.flush()
        os.fsync(file.fileno())


class ArrayFile:
    """A new file of bytes and arrays that follow one another.

    Args:
        file: The file, open at its start.
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
        is_stored = leaf is not None and array.nbytes and not leaf.has_sum
        if self._request.executor is not None and leaf is not None and is_stored:
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
        with ExitStack() as stack:
            for leaf in {leaf.directory: leaf for leaf, _ in self._reserved}.values():
                stack.enter_context(leaf.directory.reading(leaf.info.label))
            run_sync(self._fill(executor))

    def _reserve(self, nbytes: int, heads: Sequence[Head]) -> _Places:
        """Write the heads of an array and skip its bytes."""
        places: list[tuple[int, int]] = []
        for (start, head), (stop, _) in pairwise([*heads, (nbytes, b"")]):
            self.write(head)
            places.append((start, self._end))
            self._end += stop - start
            self._file.seek(self._end)
        return tuple(places)

    def _bands(self) -> Iterator[Band]:
        for number, (leaf, places) in enumerate(self._reserved):
            shape, start = band_shape(leaf.shape, leaf.read.layout.chunk_shape), 0
            elements = UNIT_BYTES // leaf.widest_dtype.itemsize
            for region in split_by_rows(whole(leaf.shape), shape, elements):
                nbytes = region.size * leaf.dtype.itemsize
                yield Band(number, region, start, nbytes, places)
                start += nbytes

    def _units(self) -> Iterator[BandsUnit | Kept[Band]]:
        """Yield units of consecutive bands, and between them bands that only this process reads."""
        path, request = Path(self._file.name), self._request
        for group, _ in batched(self._bands(), lambda band: band.nbytes, UNIT_BYTES):
            ready: list[tuple[Band, StoredBox]] = []
            for band in group:
                leaf, _ = self._reserved[band.array]
                box = SharedLeaf(leaf, (0,) * len(leaf.shape)).box(band.region)
                if box is None:
                    yield Kept(band)
                else:
                    ready.append((band, box))
            if ready:
                yield BandsUnit(path, ready, request.block_bytes, request.max_bytes // 2)

    async def _fill(self, executor: Executor) -> None:
        one_at_a_time = asyncio.Lock()

        async def here(band: Band) -> None:
            leaf, _ = self._reserved[band.array]
            blocks = leaf.blocks(band.region, self._request.block_bytes)
            async with one_at_a_time:
                await asyncio.to_thread(_write_band, self._file, band, blocks)

        def finished(unit: BandsUnit, _: None) -> None:
            for band, _box in unit.bands:
                progress = self._reserved[band.array][0].progress
                if progress is not None:
                    progress(band.nbytes)

        await run_units(executor, write_bands, self._units(), here=here, finished=finished)


def _write_band(file: BinaryIO, band: Band, blocks: Iterable[HostArray]) -> None:
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

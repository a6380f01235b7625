"""Stored arrays that other processes read and write into a save."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, structs
from typing_extensions import override

from orbit_ckpt._src.arrays.chunk_parts import parts_by_chunk
from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape
from orbit_ckpt._src.arrays.transfer import DeferredData, SharedData
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.storage.located import ChunkLocator, LocatedChunks, for_other_process
from orbit_ckpt._src.storage.region_stream import read_in_order
from orbit_ckpt._src.type_handlers.array_io import cast_host
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt._src.type_handlers.lazy import LazyLeaf


class StoredBox(Struct, frozen=True):
    """Reads a box of a stored array in any process; can be pickled.

    Attributes:
        located: The chunks.
        read: The array.
        start: Where the box begins.
        logical: The dtype that the stored bytes represent.
        dtype: The dtype to cast to.
    """

    located: LocatedChunks
    read: ArrayRead
    start: Shape
    logical: DType
    dtype: DType

    def __call__(self, region: Region, max_bytes: int) -> Iterator[HostArray]:
        """Yield a part of the box, see `DeferredData.fetch`.

        Raises:
            CorruptionError: Stored data is missing or damaged.
            TreeMismatchError: Integers do not fit the requested dtype.
        """
        inside = _moved(region, self.start)
        blocks = self.located.open().read_blocks(self.read, inside, self._stored(max_bytes))
        yield from map(self._cast, blocks)

    def in_order(self, region: Region, block_bytes: int, max_bytes: int) -> Iterator[HostArray]:
        """Yield a part that is a range of the array's elements, see `LazyLeaf.in_order`."""
        blocks = read_in_order(
            self.located.open(),
            self.read,
            _moved(region, self.start),
            block_bytes=self._stored(block_bytes),
            max_bytes=max_bytes,
        )
        yield from map(self._cast, blocks)

    def _stored(self, nbytes: int) -> int:
        """Return the size of the stored elements whose values take a number of bytes."""
        widest = max(self.logical.itemsize, self.dtype.itemsize)
        return max(1, nbytes // widest) * self.read.layout.dtype.itemsize

    def _cast(self, block: HostArray) -> HostArray:
        return cast_host(block.view(self.logical), self.dtype, self.read.path)


class SharedLeaf(SharedData):
    """A box of a stored array, parts of which other processes may write.

    Args:
        leaf: The array.
        start: Where the box begins.
    """

    def __init__(self, leaf: LazyLeaf, start: Shape) -> None:
        self._leaf = leaf
        self._start = start

    @override
    def locate(self, region: Region) -> DeferredData | None:
        box = self.box(region)
        return None if box is None else DeferredData(self._leaf.widest_dtype, box)

    def box(self, region: Region) -> StoredBox | None:
        """Return what reads a part in any process, None if only this one can."""
        leaf = self._leaf
        layout = leaf.read.layout
        if leaf.shape != layout.shape:
            return None
        inside = _moved(region, self._start)
        locator = ChunkLocator(load_batch_of(leaf.info).reader)
        found: list[tuple[ArrayRead, Shape, Value]] = []
        for index in parts_by_chunk([inside], layout.chunk_shape):
            value = locator.find(leaf.read, index)
            if value is None:
                return None
            found.append((leaf.read, index, value))
        read = structs.replace(for_other_process(leaf.read), regions=())
        return StoredBox(locator.pack(found), read, inside.start, leaf.logical, leaf.dtype)

    @override
    def advance(self, nbytes: int) -> None:
        if self._leaf.progress is not None:
            self._leaf.progress(nbytes)


def _moved(region: Region, by: Shape) -> Region:
    return Region(tuple(map(sum, zip(region.start, by, strict=True))), region.shape)

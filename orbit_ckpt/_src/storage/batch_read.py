"""Read parts of many arrays at once.

Chunks on a local disk are read by a few threads straight into aligned buffers, or decompressed into
them, and compared with their checksums; a part that is one chunk is returned without another copy.
Codecs other than zstd are left to `storage.tensorstore_read`.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import repeat
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from orbit_ckpt._src.arrays.chunk_parts import parts_by_chunk
from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape, chunk_region, whole
from orbit_ckpt._src.runtime.limiter import ByteLimiter, batched
from orbit_ckpt._src.runtime.loop import run_all, run_sync
from orbit_ckpt._src.storage.array_checksums import ArrayChecksum, ArrayChecksums
from orbit_ckpt._src.storage.array_layouts import ArrayLayouts
from orbit_ckpt._src.storage.chunk_read import (
    ArrayRead,
    ByteCount,
    ChunkReader,
    cut_in_order,
    stored_size,
)
from orbit_ckpt._src.storage.codec import PIECE_BYTES
from orbit_ckpt._src.storage.kept_chunks import KEPT_BYTES, KeptChunks
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.storage.read_shares import Share
from orbit_ckpt._src.storage.read_threads import ReadThreads
from orbit_ckpt._src.storage.read_units import ReadUnits
from orbit_ckpt._src.storage.slice_read import SliceReader
from orbit_ckpt._src.storage.value_read import ValueReader
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.tree.keypath import KeyPath

if TYPE_CHECKING:
    from orbit_ckpt._src.storage.tensorstore_read import TensorStoreReader

_BYTES_PER_CORE = 1 << 26
_MOST_BYTES = 1 << 31
"""Upper limit of the default budget: each core decodes or casts while the next data is read."""


class ReadCost(Struct, frozen=True, gc=False):
    """The cost of reading parts of an array.

    Attributes:
        stored: Bytes of the chunks as stored.
        chunks: Bytes of the chunks' elements.
        wanted: Bytes of the parts' elements.
    """

    stored: int
    chunks: int
    wanted: int

    def __add__(self, other: ReadCost) -> ReadCost:
        return ReadCost(
            self.stored + other.stored, self.chunks + other.chunks, self.wanted + other.wanted
        )


class BatchReader:
    """Reads arrays of one store.

    Args:
        store: The store of the values.
        zarr_format: Format of the metadata documents, 2 or 3.
        max_bytes: Maximum bytes of parts held at once. None is a default that counts only temporary
            data: parts that are converted, and encoded chunks.
        fill_missing: Whether a missing chunk stands for zeros, as in checkpoints of writers that
            omit such chunks. Otherwise it is an error.
        sums: Checksums of whole arrays by storage name, compared when an array is read whole, or
            all of its rows at once.
        layouts: Tells how the arrays of the store are stored, None to find out.

    Attributes:
        store: The store.
        chunks: Reads its chunks.
        threads: The threads that read it.
        zarr_format: See above.
        fill_missing: See above.
    """

    def __init__(
        self,
        store: ValueStore,
        *,
        zarr_format: int,
        max_bytes: int | None = None,
        fill_missing: bool = False,
        sums: Mapping[str, ArrayChecksum] | None = None,
        layouts: ArrayLayouts | None = None,
    ) -> None:
        self.sums = ArrayChecksums(sums or {})
        self.store = store
        self.zarr_format = zarr_format
        self.chunks = ChunkReader(store)
        self.threads = ReadThreads(store)
        self._array_layouts = layouts or ArrayLayouts(store, zarr_format=zarr_format)
        self.limiter = ByteLimiter(max_bytes or _default_max_bytes())
        self._counts_all = max_bytes is not None
        self.fill_missing = fill_missing
        self.kept: KeptChunks | None = None
        self._kept_bytes = KEPT_BYTES if max_bytes is None else max_bytes
        self._fetched = ByteCount()
        self._readings: set[ValueReader] = set()

    @functools.cached_property
    def _decoder(self) -> TensorStoreReader:
        from orbit_ckpt._src.storage.tensorstore_read import TensorStoreReader  # noqa: PLC0415 - for few codecs

        return TensorStoreReader(
            self.store, self.chunks, self._fetched, fill_missing=self.fill_missing
        )

    @property
    def bytes_read(self) -> int:
        """Bytes of chunks fetched so far, as stored; repeated reads count again."""
        return self._fetched.total + sum(reading.nbytes for reading in list(self._readings))

    def unlimited(self) -> BatchReader:
        """Return a reader of the same store without a byte limit, for callers on any thread.

        The limit bounds what the reader keeps between slices instead.
        """
        reader = copy(self)
        reader.limiter = ByteLimiter()
        reader.kept = KeptChunks(self._kept_bytes)
        return reader

    def layouts(self, leaves: Iterable[tuple[KeyPath, str]]) -> list[ZarrArray]:
        """Return the layouts of arrays.

        Args:
            leaves: The path of each leaf, and its storage name.

        Raises:
            CorruptionError: A metadata document is missing.
            FormatError: A metadata document is not understood.
        """
        return self._array_layouts.find(leaves)

    def names(self) -> list[str]:
        """Return the storage names of all arrays in the store, including those of no leaf."""
        return self._array_layouts.names()

    def cost(self, read: ArrayRead) -> ReadCost:
        """Return the cost of a read, from the index or file sizes."""
        layout = read.layout
        if self.chunks.reads_parts(layout) and self.can_stream(layout):
            return ReadCost(read.nbytes, read.nbytes, read.nbytes)
        lengths = [
            self.store.length(layout.chunk_key(read.name, index)) or 0
            for index in parts_by_chunk(read.regions, layout.chunk_shape)
        ]
        return ReadCost(sum(lengths), len(lengths) * layout.chunk_nbytes, read.nbytes)

    async def read_in_windows(
        self, reads: Sequence[ArrayRead], is_dropped: Sequence[bool] = ()
    ) -> AsyncGenerator[list[list[HostArray]]]:
        """Yield the results of `read` for consecutive groups of reads that fit the byte budget.

        All callers share the budget; a group counts against it until the next is requested.

        Args:
            reads: The reads.
            is_dropped: For each, whether its values are converted and then dropped; () for none.
        """
        for window, nbytes in self.windows(reads, is_dropped):
            async with self.limiter.reserve(nbytes):
                yield await self.read(window)

    def windows(
        self, reads: Sequence[ArrayRead], is_dropped: Sequence[bool] = ()
    ) -> Iterator[tuple[Sequence[ArrayRead], int]]:
        """Yield groups of reads, with the bytes of the budget that each takes."""
        limit = self.limiter.max_bytes
        if limit is None or not (self._counts_all or any(is_dropped) or self._has_encoded(reads)):
            yield reads, 0
            return

        def held_bytes(pair: tuple[ArrayRead, bool]) -> int:
            read, is_counted = pair[0], self._counts_all or pair[1]
            # TensorStore also holds the chunks as stored
            copies = is_counted + (not self.can_stream(read.layout))
            return copies * read.nbytes

        pairs = zip(reads, is_dropped or repeat(False), strict=False)
        for window, held in batched(pairs, held_bytes, limit):
            yield [read for read, _ in window], held

    def _has_encoded(self, reads: Sequence[ArrayRead]) -> bool:
        return not all(self.can_stream(read.layout) for read in reads)

    async def read(self, reads: Sequence[ArrayRead]) -> list[list[HostArray]]:
        """Read the values of each read's regions, in the stored dtype.

        The arrays are writable and owned by the caller alone.

        Raises:
            CorruptionError: A chunk is missing, truncated or damaged.
        """
        results: list[list[HostArray]] = [[] for _ in reads]
        direct: list[int] = []
        others: list[int] = []
        for i, read in enumerate(reads):
            (direct if self.can_stream(read.layout) else others).append(i)
        units = ReadUnits(self.chunks, reads, direct, is_remote=self.store.is_remote)
        has_sums = bool(self.sums)
        if units.divided:
            await asyncio.to_thread(units.allocate, results)

        def read_directly(share: Share) -> None:
            with self.reading(sum(units.sizes[i] for i in share.positions)) as reading:
                if share.place is not None:
                    reading.expect(share.place)
                for i in units.read(share.positions, results, reading):
                    if has_sums:
                        self.sums.compare(reads[i], results[i])

        async def read_decoded(i: int) -> None:
            results[i] = await self._decoder.read(reads[i])

        shares = await asyncio.to_thread(self.threads.divide, units)
        threads = self.threads.run(read_directly, shares)
        await run_all([threads, *map(read_decoded, others)])
        if has_sums:
            compare = self.sums.compare
            late = (*units.divided, *others)
            await run_all(asyncio.to_thread(compare, reads[i], results[i]) for i in late)
        found, results = results, []  # threads release a finished call a little later
        return found

    def chunk(self, read: ArrayRead, index: Shape) -> tuple[str, Value]:
        """Return the key of one chunk of an array, and the stored chunk or its place.

        It counts as read.

        Raises:
            CorruptionError: The chunk is missing.
        """
        key, value = self.chunks.chunk(read, index)
        self._fetched.add(stored_size(value))
        return key, value

    def can_stream(self, layout: ZarrArray) -> bool:
        """Return whether arrays of a layout are decoded here, not by TensorStore."""
        return layout.is_direct and not self.fill_missing

    def read_now(self, read: ArrayRead) -> list[HostArray]:
        """Read the regions of one array as `read` does, synchronously."""
        if self.can_stream(read.layout):
            with self.reading(read.nbytes) as reading:
                results = self.chunks.read(read, reading)
        else:
            results = self._decode_now(read)
        self.sums.compare(read, results)
        return results

    def read_slice(self, read: ArrayRead, region: Region) -> HostArray:
        """Read the values of one part as `read_part` does, and keep what further slices need.

        Only a reader that is `unlimited` keeps anything.
        """
        if self.kept is None or region == whole(read.layout.shape):
            return self.read_part(read, region)
        decode = None if self.can_stream(read.layout) else self._decode_now
        with self.reading(0) as reading:
            return SliceReader(self.chunks, self.kept, decode).read(read, region, reading)

    def _decode_now(self, read: ArrayRead) -> list[HostArray]:
        return run_sync(self._decoder.read(read))

    def read_part(self, read: ArrayRead, region: Region) -> HostArray:
        """Read the values of one part as `read` does, synchronously."""
        (values,) = self.read_now(structs.replace(read, regions=(region,)))
        return values

    def read_blocks(self, read: ArrayRead, region: Region, max_bytes: int) -> Iterator[HostArray]:
        """Yield one part as consecutive blocks in C order.

        A chunk that is larger than a block is never held whole if the part lies within it. Damage
        then shows only at its end: discard the earlier blocks in that case.

        Args:
            read: The array.
            region: The part.
            max_bytes: Approximate size of a block.

        Raises:
            CorruptionError: A chunk is missing, truncated or damaged.
        """
        if region.size * read.layout.dtype.itemsize <= max_bytes:
            yield self.read_part(read, region)
            return
        check = self.sums.begin(read, region)
        for values in self._blocks(read, region, max_bytes):
            if check is not None:
                check.add(values)
            yield values
        if check is not None:
            check.finish()

    def _blocks(self, read: ArrayRead, region: Region, max_bytes: int) -> Iterator[HostArray]:
        layout = read.layout
        index = tuple(s // n for s, n in zip(region.start, layout.chunk_shape, strict=True))
        is_chunk = region == chunk_region(index, layout.chunk_shape)
        if is_chunk and self.can_stream(layout):
            with self.reading(0) as reading:
                for _, values in self.chunks.blocks(
                    read, index, reading, min(max_bytes, PIECE_BYTES)
                ):
                    yield values
            return
        for part in cut_in_order(region, layout, max_bytes):
            yield self.read_part(read, part)

    @contextmanager
    def reading(self, nbytes: int) -> Generator[ValueReader]:
        """Yield what reads for one thread, and count what it has read."""
        with ValueReader(nbytes) as reading:
            self._readings.add(reading)
            try:
                yield reading
            finally:
                self._readings.discard(reading)
                self._fetched.add(reading.nbytes)


def _default_max_bytes() -> int:
    return min(_MOST_BYTES, max(2, os.cpu_count() or 2) * _BYTES_PER_CORE)

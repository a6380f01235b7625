"""Write zarr arrays of a T5X checkpoint in the workers of an executor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape, band_shape, split_by_rows, whole
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.formats.t5x.chunks import GZIP, PARTIAL, ChunkFiles, document_of
from orbit_ckpt._src.formats.writing import WriteRequest, little_endian_bytes
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES, Kept, run_units
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.storage.durable import replace_file, sync_directory
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.type_handlers.lazy import LazyLeaf
from orbit_ckpt._src.type_handlers.lazy_share import SharedLeaf, StoredBox


class ZarrBand(Struct, frozen=True):
    """Whole chunks of an array to write, whose elements follow one another in the array.

    Attributes:
        name: The name of its directory.
        region: The chunks, in coordinates of the array.
        shape: Shape of the array.
        dtype: Its dtype.
        chunks: Shape of its chunks.
    """

    name: str
    region: Region
    shape: Shape
    dtype: DType
    chunks: Shape

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return self.region.size * self.dtype.itemsize

    def write(self, directory: Path, blocks: Iterable[HostArray]) -> None:
        """Write the chunks, and with the first one the array's document; durable on return."""
        place = directory / self.name
        place.mkdir(exist_ok=True)
        if not any(self.region.start):
            document = document_of(self.shape, self.dtype, self.chunks, GZIP)
            partial = place / f"{ZARR2_DOCUMENT}.{os.urandom(4).hex()}{PARTIAL}"
            replace_file(place / ZARR2_DOCUMENT, document, partial)
        first = tuple(s // c for s, c in zip(self.region.start, self.chunks, strict=True))
        itemsize = self.dtype.itemsize
        with ChunkFiles(place, self.region.shape, self.chunks, itemsize, first=first) as files:
            for block in blocks:
                files.write(little_endian_bytes(block).cast("B"))
        if files.written != self.nbytes:
            raise StorageError(f"{self.name}: {files.written} of {self.nbytes} bytes could be read")
        sync_directory(place)


class ZarrBandsUnit(Struct, frozen=True):
    """Bands that one worker writes.

    Attributes:
        directory: The checkpoint.
        bands: The bands, and what reads each.
        block_bytes: Approximate size of the pieces to compress.
        max_bytes: Approximate bytes to hold besides for chunks that are being read.
    """

    directory: Path
    bands: Sequence[tuple[ZarrBand, StoredBox]]
    block_bytes: int
    max_bytes: int


def write_zarr_bands(unit: ZarrBandsUnit) -> None:
    """Write bands of arrays; they are durable when this returns."""
    for band, box in unit.bands:
        everything = whole(band.region.shape)
        band.write(unit.directory, box.in_order(everything, unit.block_bytes, unit.max_bytes))


def write_in_workers(
    directory: Path,
    arrays: Sequence[tuple[str, LazyLeaf, Shape]],
    request: WriteRequest,
    executor: Executor,
) -> None:
    """Write stored arrays in workers, and here what only this process can read.

    Args:
        directory: The checkpoint, which other processes reach.
        arrays: Names of directories, arrays and shapes of chunks.
        request: How much memory to use.
        executor: Runs the workers.
    """
    leaves = {name: leaf for name, leaf, _ in arrays}

    def units() -> Iterator[ZarrBandsUnit | Kept[ZarrBand]]:
        for group, _ in batched(_bands(arrays), lambda band: band.nbytes, UNIT_BYTES):
            ready: list[tuple[ZarrBand, StoredBox]] = []
            for band in group:
                leaf = leaves[band.name]
                box = SharedLeaf(leaf, (0,) * len(leaf.shape)).box(band.region)
                if box is None:
                    yield Kept(band)
                else:
                    ready.append((band, box))
            if ready:
                yield ZarrBandsUnit(directory, ready, request.block_bytes, request.max_bytes // 2)

    async def run() -> None:
        one_at_a_time = asyncio.Lock()

        async def here(band: ZarrBand) -> None:
            blocks = leaves[band.name].blocks(band.region, request.block_bytes)
            async with one_at_a_time:
                await asyncio.to_thread(band.write, directory, blocks)

        await run_units(executor, write_zarr_bands, units(), here=here, finished=finished)

    def finished(unit: ZarrBandsUnit, _: None) -> None:
        for band, _box in unit.bands:
            progress = leaves[band.name].progress
            if progress is not None:
                progress(band.nbytes)

    with ExitStack() as stack:
        for leaf in {leaf.directory: leaf for leaf in leaves.values()}.values():
            stack.enter_context(leaf.directory.reading(leaf.info.label))
        run_sync(run())
    if not isinstance(directory, StorePath):
        for partial in directory.glob(f"*/*{PARTIAL}"):  # of workers that were lost
            partial.unlink()


def _bands(arrays: Sequence[tuple[str, LazyLeaf, Shape]]) -> Iterator[ZarrBand]:
    for name, leaf, chunks in arrays:
        shape, elements = leaf.shape, UNIT_BYTES // leaf.widest_dtype.itemsize
        dtype = leaf.dtype.newbyteorder("<")
        for region in split_by_rows(whole(shape), band_shape(shape, chunks), elements):
            yield ZarrBand(name, region, shape, dtype, chunks)

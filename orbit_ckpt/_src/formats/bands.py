"""Write stored arrays in the workers of an executor, for formats that are not ours.

A band is a range of an array's elements made of whole chunks, so that each chunk is read, or
written, by one worker. Writing a band twice does no harm: a worker that was given up may go on
while another one writes the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape, band_shape, split_by_rows, whole
from orbit_ckpt._src.formats.writing import WriteRequest
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES, Kept, run_units
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.type_handlers.lazy import LazyLeaf
from orbit_ckpt._src.type_handlers.lazy_share import SharedLeaf, StoredBox


class Band(Protocol):
    """A range of the elements of an array, and what its writer needs to know; can be pickled."""

    @property
    def array(self) -> int:
        """Number of the array."""
        ...

    @property
    def region(self) -> Region:
        """The elements."""
        ...

    @property
    def nbytes(self) -> int:
        """Their size as they are written."""
        ...


B = TypeVar("B", bound=Band)
B_contra = TypeVar("B_contra", bound=Band, contravariant=True)


class BandWriter(Protocol[B_contra]):
    """Writes bands of arrays; can be pickled."""

    def write(self, bands: Iterable[tuple[B_contra, Iterator[HostArray]]]) -> None:
        """Write bands with their values in blocks; they are durable when this returns."""
        ...


class BandsUnit(Struct, Generic[B], frozen=True):
    """Bands that one worker writes.

    Attributes:
        writer: Writes them.
        bands: The bands, and what reads each.
        block_bytes: Approximate size of the blocks to read.
        max_bytes: Approximate bytes to hold besides for chunks that are being read.
    """

    writer: BandWriter[B]
    bands: Sequence[tuple[B, StoredBox]]
    block_bytes: int
    max_bytes: int


def write_bands(unit: BandsUnit[B]) -> None:
    """Write the bands of a unit."""
    unit.writer.write(
        (band, box.in_order(whole(band.region.shape), unit.block_bytes, unit.max_bytes))
        for band, box in unit.bands
    )


def bands_of(leaf: LazyLeaf, chunk_shape: Shape) -> Iterator[Region]:
    """Cut an array into bands of whole chunks, at most `UNIT_BYTES` each where possible."""
    elements = UNIT_BYTES // leaf.widest_dtype.itemsize
    return split_by_rows(whole(leaf.shape), band_shape(leaf.shape, chunk_shape), elements)


def write_in_workers(
    writer: BandWriter[B],
    leaves: Sequence[LazyLeaf],
    bands: Iterable[B],
    request: WriteRequest,
    executor: Executor,
) -> None:
    """Write bands in workers, and here those that only this process can read.

    Args:
        writer: Writes them, in any process.
        leaves: The arrays.
        bands: Their bands.
        request: How much memory to use.
        executor: Runs the workers.

    Raises:
        CheckpointNotFoundError: The checkpoint that is read was deleted, moved or replaced.
        CorruptionError: Stored data is missing or damaged.
        WorkerLostError: See `run_units`.
    """

    def units() -> Iterator[BandsUnit[B] | Kept[B]]:
        for group, _ in batched(bands, lambda band: band.nbytes, UNIT_BYTES):
            ready: list[tuple[B, StoredBox]] = []
            for band in group:
                leaf = leaves[band.array]
                box = SharedLeaf(leaf, (0,) * len(leaf.shape)).box(band.region)
                if box is None:
                    yield Kept(band)
                else:
                    ready.append((band, box))
            if ready:
                yield BandsUnit(writer, ready, request.block_bytes, request.max_bytes // 2)

    def finished(unit: BandsUnit[B], _: None) -> None:
        for band, _box in unit.bands:
            progress = leaves[band.array].progress
            if progress is not None:
                progress(band.nbytes)

    async def run() -> None:
        one_at_a_time = asyncio.Lock()

        async def here(band: B) -> None:
            blocks = leaves[band.array].blocks(band.region, request.block_bytes)
            async with one_at_a_time:
                await asyncio.to_thread(writer.write, [(band, blocks)])

        await run_units(executor, write_bands, units(), here=here, finished=finished)

    with ExitStack() as stack:
        for leaf in {leaf.directory: leaf for leaf in leaves}.values():
            stack.enter_context(leaf.directory.reading(leaf.info.label))
        run_sync(run())

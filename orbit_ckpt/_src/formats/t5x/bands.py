"""Write zarr arrays of a T5X checkpoint, here or in the workers of an executor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.formats.bands import BandWriter, bands_of, write_in_workers
from orbit_ckpt._src.formats.t5x.chunks import GZIP, PARTIAL, ChunkFiles, document_of
from orbit_ckpt._src.formats.writing import WriteRequest, little_endian_bytes
from orbit_ckpt._src.storage.durable import replace_file, sync_directory
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.type_handlers.lazy import LazyLeaf


class ZarrBand(Struct, frozen=True):
    """Whole chunks of an array; see `Band`.

    Attributes:
        array: Number of the array.
        region: The chunks, in coordinates of the array.
        name: The name of its directory.
        shape: Shape of the array.
        dtype: Its dtype.
        chunks: Shape of its chunks.
    """

    array: int
    region: Region
    name: str
    shape: Shape
    dtype: DType
    chunks: Shape

    @property
    def nbytes(self) -> int:
        """Size of the elements in bytes."""
        return self.region.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ZarrWriter(BandWriter[ZarrBand]):
    """Writes chunks of arrays, and with the first one of an array its document.

    Attributes:
        directory: The checkpoint.
    """

    directory: Path

    @override
    def write(self, bands: Iterable[tuple[ZarrBand, Iterator[HostArray]]]) -> None:
        for band, blocks in bands:
            self._write(band, blocks)

    def _write(self, band: ZarrBand, blocks: Iterator[HostArray]) -> None:
        place = self.directory / band.name
        place.mkdir(exist_ok=True)
        if not any(band.region.start):
            document = document_of(band.shape, band.dtype, band.chunks, GZIP)
            partial = place / f"{ZARR2_DOCUMENT}.{os.urandom(4).hex()}{PARTIAL}"
            replace_file(place / ZARR2_DOCUMENT, document, partial)
        first = tuple(s // c for s, c in zip(band.region.start, band.chunks, strict=True))
        shape, itemsize = band.region.shape, band.dtype.itemsize
        with ChunkFiles(place, shape, band.chunks, itemsize, first=first) as files:
            for block in blocks:
                files.write(little_endian_bytes(block).cast("B"))
        if files.written != band.nbytes:
            raise StorageError(f"{band.name}: {files.written} of {band.nbytes} bytes could be read")
        sync_directory(place)


def write_arrays_in_workers(
    directory: Path,
    arrays: Sequence[tuple[str, LazyLeaf, Shape]],
    request: WriteRequest,
    executor: Executor,
) -> None:
    """Write stored arrays in workers.

    Args:
        directory: The checkpoint, which other processes reach.
        arrays: Names of directories, arrays and shapes of chunks.
        request: How much memory to use.
        executor: Runs the workers.

    Raises:
        CorruptionError: Stored data is missing or damaged.
    """
    bands = (
        ZarrBand(number, region, name, leaf.shape, leaf.dtype.newbyteorder("<"), chunks)
        for number, (name, leaf, chunks) in enumerate(arrays)
        for region in bands_of(leaf, chunks)
    )
    leaves = [leaf for _, leaf, _ in arrays]
    write_in_workers(ZarrWriter(directory), leaves, bands, request, executor)
    if not isinstance(directory, StorePath):
        for partial in directory.glob(f"*/*{PARTIAL}"):  # of workers that were lost
            partial.unlink()

"""A stored array that is open and not yet read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import cast

import jax
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, as_dtype
from orbit_ckpt._src.arrays.indexing import Selection
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.slices import Region, Shape, split_by_rows, whole
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.fingerprint import OpenedDirectory
from orbit_ckpt._src.storage.region_stream import DECODER_BYTES, RegionStream, read_to_end
from orbit_ckpt._src.type_handlers.array_args import ArrayRestoreArgs
from orbit_ckpt._src.type_handlers.array_io import cast_host
from orbit_ckpt._src.type_handlers.array_target import requested_sharding, wanted_shape
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, load_batch_of, logical_dtype
from orbit_ckpt._src.type_handlers.capabilities import LazyReader
from orbit_ckpt._src.type_handlers.described import key_type_of


class LazyLeaf(Struct, frozen=True, gc=False):
    """A stored array and how it is restored; a struct, because there is one per leaf.

    For typed PRNG keys it is their data, with trailing dimensions of its own.

    Attributes:
        info: Where it is stored.
        handler: Reads it as a whole.
        arg: How it is restored.
        directory: Its directory.
        read: Its read, without parts yet.
        shape: Its shape.
        logical: The dtype that its stored bytes represent.
        key_impl: PRNG implementation if it holds the data of typed keys.
        key_dtype: Their dtype.
        key_rank: Number of trailing dimensions of their data.
        told: Called with the size of every block that has been read in order.
    """

    info: ParamInfo
    handler: LazyReader
    arg: RestoreArgs
    directory: OpenedDirectory
    read: ArrayRead
    shape: Shape
    logical: DType
    key_impl: str | None = None
    key_dtype: DType | None = None
    key_rank: int = 0
    told: Callable[[int], object] | None = None

    @property
    def dtype(self) -> DType:
        """The dtype of its values."""
        is_cast = self.arg.dtype is not None and self.key_impl is None
        return as_dtype(self.arg.dtype) if is_cast else self.logical

    @property
    def widest_dtype(self) -> DType:
        """The widest dtype during a read, which determines the memory it needs."""
        is_narrowed = self.dtype.itemsize < self.logical.itemsize
        return self.logical if is_narrowed else self.dtype

    @property
    def sharding(self) -> jax.sharding.Sharding | ShardingMetadata | None:
        """The requested sharding, else the recorded one; None for numpy arrays."""
        if self.handler.lazy_type is not jax.Array:
            return None
        wanted = None
        if isinstance(self.arg, ArrayRestoreArgs):
            wanted = requested_sharding(self.arg, self.info.location)
        return wanted or load_batch_of(self.info).shardings.get(self.info.name)

    def values(self, selection: Selection) -> HostArray:
        """Read the elements of an index expression, and only the chunks that it touches.

        Raises:
            CorruptionError: Stored data is missing or damaged.
            TreeMismatchError: Integers do not fit the requested dtype.
        """
        layout, shape = self.read.layout, selection.shape
        reader = load_batch_of(self.info).reader
        result: HostArray | None = None
        for part in selection.chunk_selections(layout.chunk_shape, layout.shape):
            values = reader.read_part(self.read, part.region)
            chosen = part.apply(values)
            if values.shape == chosen.shape == shape:  # the only part, and all of it
                result = self._cast(values)
                break
            if result is None:
                result = np.zeros(shape, self.dtype)
            result[part.target] = self._cast(chosen)
        if result is None:  # the selection is empty, or beyond the stored array
            result = np.zeros(shape, self.dtype)
        return cast("HostArray", result[selection.inner])

    def blocks(self, region: Region, max_bytes: int) -> Iterator[HostArray]:
        """Yield a box as consecutive blocks in C order, see `DeferredData`.

        Raises:
            CheckpointNotFoundError: The checkpoint was deleted, moved or replaced.
            CorruptionError: Stored data is missing or damaged.
            TreeMismatchError: Integers do not fit the requested dtype.
        """
        elements = max(1, max_bytes // self.widest_dtype.itemsize)
        layout = self.read.layout
        with self.directory.reading(self.info.label):
            if self.shape == layout.shape:
                reader = load_batch_of(self.info).reader
                stored_bytes = elements * layout.dtype.itemsize
                for block in reader.read_blocks(self.read, region, stored_bytes):
                    yield self._next(self._cast(block))
                return
            for part in split_by_rows(region, (1,) * len(region.shape), elements):
                chosen = tuple(map(range, part.start, part.stop))
                yield self._next(self.values(Selection(chosen, (...,))))

    def in_order(self, block_bytes: int, max_bytes: int) -> Iterator[HostArray]:
        """Yield all of it as consecutive blocks in C order.

        Args:
            block_bytes: Approximate size of a block.
            max_bytes: Approximate limit of bytes held for open chunks, so that each is read once;
                if a row has more, they are read again for every block.

        Raises:
            CheckpointNotFoundError: The checkpoint was deleted, moved or replaced.
            CorruptionError: Stored data is missing or damaged.
            TreeMismatchError: Integers do not fit the requested dtype.
        """
        layout = self.read.layout
        reader = load_batch_of(self.info).reader
        grid = [-(-n // c) for n, c in zip(layout.shape, layout.chunk_shape, strict=True)]
        fits = math.prod(grid[1:]) * DECODER_BYTES <= max_bytes
        if self.shape != layout.shape or not reader.can_stream(layout) or not fits:
            yield from self.blocks(whole(self.shape), block_bytes)
            return
        stream = RegionStream(reader, self.read)
        elements = max(1, block_bytes // self.widest_dtype.itemsize)
        with self.directory.reading(self.info.label):
            for part in split_by_rows(whole(self.shape), (1,) * len(self.shape), elements):
                yield self._next(self._cast(stream.next(part)))

    @property
    def has_sum(self) -> bool:
        """Whether a checksum of the array exists, which is compared when it is read whole."""
        return load_batch_of(self.info).reader.sums.knows(self.read)

    def compare(self, max_bytes: int) -> None:
        """Read all of it once and compare it with its checksum.

        Raises:
            CheckpointNotFoundError: The checkpoint was deleted, moved or replaced.
            CorruptionError: Stored data is missing or damaged.
        """
        with self.directory.reading(self.info.label):
            read_to_end(load_batch_of(self.info).reader, self.read, max_bytes)

    def _next(self, block: HostArray) -> HostArray:
        if self.told is not None:
            self.told(block.nbytes)
        return block

    def _cast(self, host: HostArray) -> HostArray:
        values = host if host.dtype == self.logical else host.view(self.logical)
        return cast_host(values, self.dtype, self.info.location)


def open_leaf(
    info: ParamInfo,
    handler: LazyReader,
    arg: RestoreArgs,
    directory: OpenedDirectory,
    read: ArrayRead,
) -> LazyLeaf:
    """Open a stored array without reading it.

    Raises:
        FormatError: Its records contradict each other.
        TreeMismatchError: The requested shape is not that of the stored array.
        UnsupportedLeafError: It holds PRNG keys that this JAX does not have.
    """
    batch, layout = load_batch_of(info), read.layout
    is_jax = handler.lazy_type is jax.Array
    record = batch.arrays.get(info.name) if is_jax else None
    impl = None if record is None else record.random_key_impl
    if impl is not None:
        dtype, rank = key_type_of(info, layout.dtype)
        shape, logical = layout.shape, layout.dtype
        return LazyLeaf(info, handler, arg, directory, read, shape, logical, impl, dtype, rank)
    shape = layout.shape
    if is_jax and isinstance(arg, ArrayRestoreArgs):
        shape = wanted_shape(info, arg, layout)
    return LazyLeaf(info, handler, arg, directory, read, shape, logical_dtype(info, layout.dtype))

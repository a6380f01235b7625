"""Arrays that stay in a checkpoint until they are needed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
import numpy as np
from msgspec import Struct, structs

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, as_dtype, is_prng_dtype
from orbit_ckpt._src.arrays.indexing import Selection, select
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.slices import Region, Shape, split_by_rows, whole
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.fingerprint import OpenedDirectory
from orbit_ckpt._src.storage.region_stream import read_in_order, read_to_end
from orbit_ckpt._src.type_handlers.array_io import cast_host
from orbit_ckpt._src.type_handlers.array_target import (
    ArrayRestoreArgs,
    requested_sharding,
    wanted_shape,
)
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, load_batch_of, logical_dtype
from orbit_ckpt._src.type_handlers.capabilities import LazyReader
from orbit_ckpt._src.type_handlers.described import key_type_of
from orbit_ckpt._src.type_handlers.prng import wrap_keys
from orbit_ckpt._src.type_handlers.read_ahead import ReadAhead

_MAX_AHEAD_BYTES = 1 << 20
"""Larger arrays are read alone: their data takes longer than the wait for an answer."""


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
        progress: Called with the size in bytes of every block read in order.
        ahead: Reads it, if it is read whole, together with others.
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
    progress: Callable[[int], object] | None = None
    ahead: ReadAhead | None = None

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
            values = reader.read_slice(self.read, part.region)
            chosen = part.apply(values)
            if values.shape == chosen.shape == shape:  # the only part, and all of it
                result = self._cast(values)
                break
            if result is None:
                result = np.zeros(shape, self.dtype)
            result[part.target] = self._cast(chosen)
        if result is None:  # the selection is empty, or beyond the stored array
            result = np.zeros(shape, self.dtype)
        return result[selection.inner]

    def blocks(self, region: Region, max_bytes: int) -> Iterator[HostArray]:
        """Yield a box as consecutive blocks in C order, see `DeferredData`.

        Raises:
            CheckpointNotFoundError: The checkpoint was deleted, moved or replaced.
            CorruptionError: Stored data is missing or damaged.
            TreeMismatchError: Integers do not fit the requested dtype.
        """
        known = self._read_ahead(region, max_bytes)
        if known is not None:
            yield self._next(self._cast(known))
            return
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
        if self.ahead is not None or self.shape != layout.shape:
            yield from self.blocks(whole(self.shape), block_bytes)
            return
        reader = load_batch_of(self.info).reader
        stored = max(1, block_bytes // self.widest_dtype.itemsize) * layout.dtype.itemsize
        with self.directory.reading(self.info.label):
            for block in read_in_order(
                reader, self.read, whole(self.shape), block_bytes=stored, max_bytes=max_bytes
            ):
                yield self._next(self._cast(block))

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

    def _read_ahead(self, region: Region, max_bytes: int) -> HostArray | None:
        """Return the stored values of a region if it is all, and they are read with others."""
        if self.ahead is None or region != whole(self.shape):
            return None
        fits = region.size * self.widest_dtype.itemsize <= max_bytes
        return self.ahead.take(self.read.name) if fits else None

    def _next(self, block: HostArray) -> HostArray:
        if self.progress is not None:
            self.progress(block.nbytes)
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


class LazyArray:
    """An array in a checkpoint, read on demand.

    `get()` returns the same as a load that is not lazy. Indexing reads the chunks that it touches,
    and gives a numpy array. The first slice of a chunk reads and checks the whole chunk. Of a large
    uncompressed chunk on a local disk, further slices read and check only the blocks of 64 KiB that
    they touch. Of other chunks the values are kept, until the arrays of the same load are gone, up
    to the limit of the load's reads or 256 MiB for all of them together. The checkpoint must still
    exist; if it was deleted or replaced this is an error, never other data.

    A lazy array can be saved, even over its own checkpoint; the save reads it in parts. It is a
    leaf of JAX's trees.

    Attributes:
        leaf: Its storage and how it is restored, for type handlers.

    Example:
        >>> orbit_ckpt.save("run/step_3", {"w": np.arange(12).reshape(3, 4)})
        >>> w = orbit_ckpt.load("run/step_3", lazy=True)["w"]
        >>> w.shape, w[-1, ::2].tolist()
        ((3, 4), [8, 10])
    """

    __slots__ = ("leaf",)

    def __init__(self, leaf: LazyLeaf) -> None:
        """Make one; `load(lazy=True)` does."""
        self.leaf = leaf

    @property
    def shape(self) -> Shape:
        """Its shape."""
        leaf = self.leaf
        return leaf.shape[: len(leaf.shape) - leaf.key_rank]

    @property
    def dtype(self) -> DType:
        """Its dtype; that of the key type for typed PRNG keys."""
        return self.leaf.key_dtype or self.leaf.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of its values in memory in bytes."""
        return math.prod(self.leaf.shape) * self.leaf.dtype.itemsize

    @property
    def sharding(self) -> jax.sharding.Sharding | ShardingMetadata | None:
        """The requested sharding, else the recorded one, which may have other devices.

        None for numpy arrays, and where none is recorded.
        """
        return self.leaf.sharding

    def get(self) -> Any:  # jax.Array or np.ndarray
        """Read the array: a `jax.Array` on its sharding, or a numpy array.

        Raises:
            CheckpointNotFoundError: The checkpoint was deleted, moved or replaced.
            CorruptionError: Stored data is missing or damaged; names leaf, chunk and file.
            UnsupportedLeafError: The dtype needs JAX's 64-bit mode, which is off.
        """
        leaf = self.leaf
        with leaf.directory.reading(leaf.info.label):
            return leaf.handler.read_now(leaf.info, leaf.arg)

    async def get_async(self) -> Any:  # jax.Array or np.ndarray
        """Read the array as `get` does, on any asyncio event loop, while threads do the reading."""
        leaf = self.leaf
        with leaf.directory.reading(leaf.info.label):
            return await leaf.handler.read_alone(leaf.info, leaf.arg)

    def astype(self, dtype: object) -> LazyArray:
        """Return the same array with another dtype, to which reads cast.

        They cast once, from the stored values: of several calls the last one counts.

        Raises:
            TypeError: It holds PRNG keys, or the dtype does not exist.
        """
        leaf = self.leaf
        if leaf.key_impl is not None or is_prng_dtype(dtype):
            raise TypeError(f"{leaf.info.label}: PRNG keys cannot be cast, nor made by a cast")
        arg = dataclasses.replace(leaf.arg, dtype=as_dtype(dtype))
        return type(self)(structs.replace(leaf, arg=arg))

    def __getitem__(self, index: Any) -> Any:  # np.ndarray, or jax.Array of keys
        """Read a part as a numpy array; for typed PRNG keys as an array of keys.

        The index is one of numpy's: integers, slices, `...`, None, arrays and lists of integers or
        booleans. A single element is an array without dimensions. Chunks without selected elements
        are not read; for this purpose, several arrays of integers select all crossings of their
        rows and columns.

        Raises:
            IndexError: The index does not fit the array.
            CheckpointNotFoundError: The checkpoint was deleted, moved or replaced.
            CorruptionError: Stored data is missing or damaged.
        """
        leaf, rank = self.leaf, self.ndim
        selection = select(index, leaf.shape[:rank], trailing=leaf.shape[rank:])
        with leaf.directory.reading(leaf.info.label):
            values = leaf.values(selection)
        return values if leaf.key_impl is None else wrap_keys(jnp.asarray(values), leaf.key_impl)

    def __array__(self, dtype: DType | None = None, copy: bool | None = None) -> HostArray:
        leaf = self.leaf
        if leaf.key_impl is not None:
            raise TypeError(f"{leaf.info.label}: PRNG keys are no numbers; call get()")
        if copy is False:
            raise ValueError(f"{leaf.info.label}: a lazy array must be read, which makes a copy")
        return self[...] if dtype is None else self[...].astype(dtype, copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} cannot be pickled; call get() and pickle that")

    def __repr__(self) -> str:
        leaf = self.leaf
        where = f"{leaf.info.label!r} in {str(leaf.directory.path)!r}"
        return f"LazyArray({where}, shape={self.shape}, dtype={self.dtype})"


class LazyHostArray(LazyArray):
    """A lazy array with numpy values; a separate class, because handlers are chosen by class."""

    __slots__ = ()


def read_ahead(leaves: Sequence[object], max_bytes: int) -> list[object]:
    """Return leaves whose small lazy arrays in stores are read ahead, in this order.

    Args:
        leaves: Lazy arrays and other leaves.
        max_bytes: Maximum bytes held.
    """
    small: dict[BatchReader, list[LazyLeaf]] = {}
    for leaf in leaves:
        if isinstance(leaf, LazyArray) and leaf.nbytes <= _MAX_AHEAD_BYTES:
            reader = load_batch_of(leaf.leaf.info).reader
            if reader.store.is_remote and leaf.leaf.shape == leaf.leaf.read.layout.shape:
                small.setdefault(reader, []).append(leaf.leaf)
    found: dict[int, LazyLeaf] = {}
    for reader, group in small.items():
        reads = [structs.replace(o.read, regions=(whole(o.shape),)) for o in group]
        ahead = ReadAhead(reader, group[0].directory, reads, max_bytes // len(small))
        found.update((id(leaf), structs.replace(leaf, ahead=ahead)) for leaf in group)
    return [
        type(leaf)(found[id(leaf.leaf)])
        if isinstance(leaf, LazyArray) and id(leaf.leaf) in found
        else leaf
        for leaf in leaves
    ]

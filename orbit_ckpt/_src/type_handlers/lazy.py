"""Arrays that stay in a checkpoint until they are needed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NoReturn, Self

import jax
import jax.numpy as jnp
from msgspec import structs

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, as_dtype, is_prng_dtype
from orbit_ckpt._src.arrays.indexing import select
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.type_handlers.lazy_leaf import LazyLeaf
from orbit_ckpt._src.type_handlers.prng import wrap_keys


class LazyArray:
    """An array in a checkpoint, read on demand.

    `get()` returns the same as a load that is not lazy. Indexing reads the chunks that it touches,
    and gives a numpy array. Nothing is cached: every request reads again. The checkpoint must still
    exist; if it was deleted or replaced this is an error, never other data.

    A lazy array can be saved, even over its own checkpoint; it is read in parts meanwhile. It is a
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

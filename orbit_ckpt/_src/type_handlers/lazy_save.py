"""Copy arrays from another checkpoint, part by part, into a save."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Iterator, Sequence
from functools import partial

from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import HostArray, as_dtype, why_not_storable
from orbit_ckpt._src.arrays.slices import Region, Shape, chunk_indices, chunk_region, whole
from orbit_ckpt._src.arrays.transfer import ArraySnapshot, DeferredData, Shard
from orbit_ckpt._src.metadata.values import Metadata
from orbit_ckpt._src.runtime.futures import Future
from orbit_ckpt._src.type_handlers.array_io import default_save_args
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, SaveArgs, TypeHandler
from orbit_ckpt._src.type_handlers.capabilities import (
    ArrayStorage,
    SnapshotHandler,
    ValueChecker,
    capability,
)
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyLeaf
from orbit_ckpt._src.type_handlers.lazy_share import SharedLeaf

_COMPARED_BYTES = 1 << 26
"""Maximum bytes held of an array that is read to compare it."""


class LazyHandler(TypeHandler, ValueChecker, SnapshotHandler):
    """Writes `LazyArray` like the handler of its values.

    Chunks stay the same unless others are requested, so that each is read once.
    """

    def __init__(self, values: TypeHandler) -> None:
        """Make a handler.

        Args:
            values: The handler of the values.
        """
        self._values = values

    @override
    def typestr(self) -> str:
        return self._values.typestr()

    @override
    def check(self, value: object) -> str | None:
        leaf = _leaf_of(value)
        return why_not_storable(leaf.dtype)

    @override
    def snapshot(self, values: Sequence[object]) -> Sequence[object]:
        return values  # lazy arrays are immutable

    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[Metadata]:
        return await self._values.metadata(infos)

    @override
    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        # reads nothing; writing the batch does
        leaves = list(map(_leaf_of, values))
        if capability(self._values, ArrayStorage) is None:  # it does not write plain arrays
            whole_values = [_lazy(value).get() for value in values]
            return await self._values.serialize(whole_values, infos, args)
        args = list(map(_keep_chunk_size, leaves, default_save_args(infos, args)))
        return await self._values.serialize(list(map(_snapshot, leaves, args)), infos, args)

    @override
    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[object]:
        """Return the values, not lazy."""
        return await self._values.deserialize(infos, args)


def _leaf_of(value: object) -> LazyLeaf:
    return _lazy(value).leaf


def _lazy(value: object) -> LazyArray:
    if not isinstance(value, LazyArray):
        raise TypeError(f"expected a LazyArray, found {type(value).__qualname__}")
    return value


def _snapshot(leaf: LazyLeaf, arg: SaveArgs) -> ArraySnapshot:
    source = _Compared(leaf) if leaf.has_sum else leaf
    shards = [
        Shard(region, _deferred(leaf, source, region))
        for region in ([whole(leaf.shape)] if arg.read_shapes else _regions(leaf))
    ]
    return ArraySnapshot(leaf.shape, leaf.dtype, shards, leaf.sharding, leaf.key_impl)


def _deferred(leaf: LazyLeaf, source: LazyLeaf | _Compared, region: Region) -> DeferredData:
    fetch = partial(_fetch, source, region.start)
    return DeferredData(leaf.widest_dtype, fetch, SharedLeaf(leaf, region.start))


class _Compared:
    """An array with a checksum, which is compared before its first part is written."""

    def __init__(self, leaf: LazyLeaf) -> None:
        self._leaf = leaf
        self._is_done = False
        self._lock = threading.Lock()

    def blocks(self, region: Region, max_bytes: int) -> Iterator[HostArray]:
        """Yield a box in blocks; compare the array before its first part, or while reading all."""
        if region != whole(self._leaf.read.layout.shape):
            with self._lock:
                if not self._is_done:
                    self._leaf.compare(_COMPARED_BYTES)
                self._is_done = True
        return self._leaf.blocks(region, max_bytes)


def _fetch(
    leaf: LazyLeaf | _Compared, start: Shape, region: Region, max_bytes: int
) -> Iterator[HostArray]:
    """Yield a box of the part of an array that begins at `start`."""
    begin = tuple(s + offset for s, offset in zip(start, region.start, strict=True))
    return leaf.blocks(Region(begin, region.shape), max_bytes)


def _has_whole_chunks(leaf: LazyLeaf) -> bool:
    layout, shape = leaf.read.layout, leaf.shape
    fits = all(n % chunk == 0 for n, chunk in zip(shape, layout.chunk_shape, strict=True))
    return fits and shape == layout.shape and math.prod(shape) > 0


def _regions(leaf: LazyLeaf) -> list[Region]:
    """Return the parts that are written separately: each old chunk stays one."""
    if not _has_whole_chunks(leaf):
        return [whole(leaf.shape)]
    chunk_shape = leaf.read.layout.chunk_shape
    return [chunk_region(i, chunk_shape) for i in chunk_indices(whole(leaf.shape), chunk_shape)]


def _keep_chunk_size(leaf: LazyLeaf, arg: SaveArgs) -> SaveArgs:
    """Return options that keep the size of chunks, unless others are requested."""
    if arg.chunk_byte_size is not None or arg.shard_axes or arg.read_shapes:
        return arg
    itemsize = leaf.dtype.itemsize if arg.dtype is None else as_dtype(arg.dtype).itemsize
    nbytes = math.prod(leaf.read.layout.chunk_shape) * itemsize
    return dataclasses.replace(arg, chunk_byte_size=nbytes)

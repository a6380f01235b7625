"""Move array data between devices and host memory, shard by shard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, cast

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from msgspec import Struct, structs

from orbit_ckpt._src.arrays.device_copies import (
    PINNED,
    DeviceCopy,
    DeviceError,
    copies_of,
    copy_on_device,
    device_of,
    has_pinned_memory,
)
from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.memory import Arena
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.references import sample_checksum
from orbit_ckpt._src.arrays.slices import Region, Shape, from_index, split_by_rows, whole
from orbit_ckpt._src.arrays.snapshot import Snapshots
from orbit_ckpt._src.arrays.watch import LeafWatch


class SharedData(Protocol):
    """Data that other processes can read too."""

    def locate(self, region: Region) -> DeferredData | None:
        """Return a box of it in a form that can be pickled, None if only this process reads it."""
        ...

    def advance(self, nbytes: int) -> None:
        """Report that another process has read some of it."""
        ...


class DeferredData(Struct, frozen=True, gc=False):
    """Data fetched on demand, for example from a stored array.

    Attributes:
        dtype: The widest dtype that it has on its way, which determines its size.
        fetch: Returns a box of it as consecutive blocks in C order, each of about as many bytes as
            the second argument; as one block if the box has no more. Discard the blocks of a box
            unless all of them arrive.
        shared: The same data for other processes, None if they cannot read it.
    """

    dtype: DType
    fetch: Callable[[Region, int], Iterator[HostArray]]
    shared: SharedData | None = None


class DeviceSlice(Struct, frozen=True, gc=False):
    """A box of a JAX array on one device, sliced on demand.

    Attributes:
        array: The array.
        region: The box.
    """

    array: jax.Array
    region: Region

    @property
    def dtype(self) -> DType:
        """The array's."""
        return self.array.dtype

    def blocks(self, region: Region, max_bytes: int) -> Iterator[jax.Array]:
        """Yield a box of it, at most about `max_bytes` at a time."""
        start = tuple(map(sum, zip(self.region.start, region.start, strict=True)))
        inside = Region(start, region.shape)
        elements = max_bytes // self.dtype.itemsize
        for block in split_by_rows(inside, (1,) * len(start), elements):
            yield _slice(self.array, block)


Data = np.ndarray | jax.Array | DeviceSlice | DeferredData
"""Values in a numpy array, on one device, or to be fetched."""


class Shard(Struct, frozen=True, gc=False):
    """A part of an array and its data.

    Attributes:
        region: The part.
        data: Its values.
        in_place: Whether a save reads the data in place instead of copying them first.
        sample: `sample_checksum` of the data when they were taken, if they are the caller's; None
            for a copy.
        on_device: The copy that `data` is, if it is one on a device.
        unchanged: Whether the base step of the save holds the data, which then stay where they are.
        watch: Reports what a save does with the leaf, if a callback listens.
    """

    region: Region
    data: Data
    in_place: bool = False
    watch: LeafWatch | None = None
    sample: int | None = None
    on_device: DeviceCopy | None = None
    unchanged: bool = False

    @property
    def nbytes(self) -> int:
        """Size of the part in bytes."""
        return math.prod(self.region.shape) * self.data.dtype.itemsize


class ArraySnapshot(Struct, frozen=True, gc=False):
    """What a save needs of an array that its owner may change during the save.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        shards: The parts that this process writes; the save replaces them by copies.
        sharding: Its current or recorded sharding; None in host memory.
        key_impl: PRNG implementation if it holds the data of typed keys.
        write_shape: Shape of the pieces that all processes write; None for that of `shards`.
    """

    shape: Shape
    dtype: DType
    shards: list[Shard]
    sharding: jax.sharding.Sharding | ShardingMetadata | None = None
    key_impl: str | None = None
    write_shape: Shape | None = None


def shards_of(value: np.ndarray | jax.Array) -> list[Shard]:
    """Return the distinct parts of an array that this process holds, each exactly once."""
    if isinstance(value, np.ndarray):
        return [Shard(whole(value.shape), value)]
    sharding = value.sharding
    if isinstance(sharding, SingleDeviceSharding) or len(sharding.device_set) == 1:
        return [Shard(whole(value.shape), value)]
    return [
        Shard(from_index(shard.index, value.shape), shard.data)
        for shard in value.addressable_shards
        if shard.replica_id == 0
    ]


def slice_of(data: jax.Array, region: Region) -> np.ndarray | DeviceSlice:
    """Return a box of data on one device, without copying it yet."""
    return np.asarray(data)[region.slices] if is_on_host(data) else DeviceSlice(data, region)


def is_on_host(data: Data) -> bool:
    """Return whether data can be read in place, without a copy from a device."""
    if isinstance(data, DeviceSlice):
        return False
    return isinstance(data, (np.ndarray, DeferredData)) or _is_cpu(data.sharding)


def _is_cpu(sharding: jax.sharding.Sharding) -> bool:
    return all(device.platform == "cpu" for device in sharding.device_set)


Handle = np.ndarray | jax.Array | DeferredData
"""Data whose transfer to the host has begun, or that are there."""


def begin_transfer(data: Data, *, pinned: bool = False) -> Handle:
    """Start copying data to the host, so that a later `np.asarray` of the result need not wait.

    Data on no device is returned unchanged. To free the copy, drop the result: JAX keeps the host
    copy as long as its array, therefore the result is another array over the same device memory.

    Args:
        data: The data.
        pinned: Whether GPUs copy to pinned memory, at several times the speed, where the program
            has as much of it as of the data.
    """
    if isinstance(data, DeviceSlice):
        handle = _slice(data.array, data.region)
    elif not isinstance(data, jax.Array) or is_on_host(data):
        return data
    else:
        if pinned and (copy := _pinned_copy(data)) is not None:
            return copy
        handle = jax.make_array_from_single_device_arrays(data.shape, data.sharding, [data])
    handle.copy_to_host_async()  # pyright: ignore[reportUnknownMemberType] - partly untyped
    return handle


def _pinned_copy(data: jax.Array) -> jax.Array | None:
    """Start copying data to pinned memory; return None if there is none, or not enough."""
    device = device_of(data)
    if not has_pinned_memory(device):
        return None
    put = cast(Callable[[jax.Array, SingleDeviceSharding], jax.Array], jax.device_put)
    try:
        return put(data, SingleDeviceSharding(device, memory_kind=PINNED))
    except (DeviceError, NotImplementedError, ValueError):  # not for every dtype or layout
        return None


def _fetched(handle: Handle, data: Data) -> HostArray:
    """Return data whose transfer has begun once they are on the host."""
    try:
        return np.asarray(handle)
    except DeviceError:  # found only now that pinned memory is short
        return np.asarray(begin_transfer(data))


def begin_transfers(shards: Sequence[Shard]) -> list[Handle]:
    """Start copying parts to the host, all at once."""
    handles: list[Handle] = []
    for shard in shards:
        if shard.watch is not None:
            shard.watch.begin_transfer()
        handles.append(begin_transfer(shard.data, pinned=True))
    return handles


def copy_on_devices(shards: Sequence[Shard], snapshots: Snapshots) -> list[Shard]:
    """Copy parts on their devices where `snapshots` has room for them; return all parts."""

    def maker(data: Data, nbytes: int) -> Callable[[], jax.Array] | None:
        if isinstance(data, DeviceSlice) and snapshots.reserve_on_device(data.array, nbytes):
            return partial(_slice, data.array, data.region)
        if isinstance(data, jax.Array) and snapshots.reserve_on_device(data, nbytes):
            return partial(copy_on_device, data)
        return None

    makers = [maker(shard.data, shard.nbytes) for shard in shards]
    copies = iter(copies_of(filter(None, makers)))
    results: list[Shard] = []
    for shard, make in zip(shards, makers, strict=True):
        copy = None if make is None else next(copies)
        if copy is not None:
            shard = structs.replace(shard, data=copy.array, on_device=copy)  # noqa: PLW2901 - the same shard, copied
        results.append(shard)
    return results


def copy_to_host(
    shards: Sequence[Shard], handles: Sequence[Handle], snapshots: Snapshots
) -> list[Shard]:
    """Bring parts to host memory that nothing changes; none may be deferred.

    Arrays on the CPU are copied like numpy's unless `snapshots` refers to them: JAX may share their
    memory with the numpy array that they were made from.

    Args:
        shards: The parts.
        handles: The result of `begin_transfers` for them.
        snapshots: Takes arrays on the CPU.
    """
    # small arrays one by one: JAX releases their memory faster than an arena's
    large = [math.prod(shard.region.shape) > _SMALL for shard in shards]
    arena = Arena(
        sum(shard.nbytes for shard, is_large in zip(shards, large, strict=True) if is_large),
        snapshots.memory.allocate,
    )
    snapshots.observe(
        shard.data
        for shard, is_large in zip(shards, large, strict=True)
        if not is_large and isinstance(shard.data, jax.Array)
    )

    def take(shard: Shard, handle: Handle, is_large: bool) -> Shard:
        if handle is not shard.data:  # data from a device is already a copy
            return Shard(shard.region, _fetched(handle, shard.data), watch=shard.watch)
        if not is_large:
            return Shard(shard.region, np.array(handle, order="C"), watch=shard.watch)
        view = snapshots.reference(handle) if isinstance(handle, jax.Array) else None
        if view is None:
            return Shard(shard.region, _copy(handle, arena), watch=shard.watch)
        return Shard(shard.region, view, watch=shard.watch, sample=sample_checksum(view))

    return list(map(take, shards, handles, large))


def _copy(data: object, arena: Arena) -> HostArray:
    host = np.asarray(data)
    copy = np.ndarray(host.shape, host.dtype, arena.allocate(host.nbytes))
    copy[...] = host
    return copy


_SMALL = 1 << 13
"""Arrays of at most this many elements are copied one by one."""


def host_blocks(data: Data, region: Region, max_bytes: int) -> Iterator[HostArray]:
    """Yield a box of an array in host memory, as consecutive blocks in C order.

    At most about `max_bytes` are copied from a device, or fetched, at a time.
    """
    if isinstance(data, DeferredData):
        yield from data.fetch(region, max_bytes)
        return
    if isinstance(data, np.ndarray) or is_on_host(data):
        host = np.asarray(data)
        yield host if region.shape == host.shape else host[region.slices]
        return
    if not isinstance(data, DeviceSlice):
        data = DeviceSlice(data, whole(data.shape))
    yield from map(np.asarray, data.blocks(region, max_bytes))


def _slice(data: jax.Array, region: Region) -> jax.Array:
    # the offset is an argument, so that all blocks share one compilation
    dynamic_slice = cast(Callable[..., jax.Array], jax.lax.dynamic_slice)
    return dynamic_slice(data, region.start, region.shape)


def local_regions(sharding: jax.sharding.Sharding, shape: Shape) -> dict[jax.Device, Region]:
    """Return the region that each device of this process holds.

    Raises:
        ValueError: The sharding does not divide the shape evenly.
    """
    if sharding.is_fully_replicated:
        return dict.fromkeys(sharding.addressable_devices, whole(shape))
    indices = sharding.addressable_devices_indices_map(shape)
    return {
        device: from_index(index if index is not None else (), shape)
        for device, index in indices.items()
    }

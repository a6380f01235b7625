"""Move array data between devices and host memory, shard by shard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from orbit_ckpt.arrays.dtypes import HostArray
from orbit_ckpt.arrays.slices import Region, Shape, from_index, whole


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of an array and where its data is.

    Attributes:
        region: The part.
        data: Its values: a numpy array, or a JAX array on one device.
    """

    region: Region
    data: np.ndarray | jax.Array

    @property
    def nbytes(self) -> int:
        """Size of the part in bytes."""
        return self.region.size * self.data.dtype.itemsize


def shards_of(value: np.ndarray | jax.Array) -> list[Shard]:
    """Return the distinct parts of an array that this process owns, each exactly once.

    Replicas other than the first are left out, so that the parts of all processes cover the
    array without overlap.
    """
    if isinstance(value, np.ndarray):
        return [Shard(whole(value.shape), value)]
    return [
        Shard(from_index(shard.index, value.shape), shard.data)
        for shard in value.addressable_shards
        if shard.replica_id == 0
    ]


def start_transfers(shards: Sequence[Shard]) -> None:
    """Begin copying device data to the host, so that later `to_host` calls need not wait."""
    for shard in shards:
        if isinstance(shard.data, jax.Array):
            shard.data.copy_to_host_async()


def to_host(data: np.ndarray | jax.Array, *, copy: bool) -> HostArray:
    """Return data in host memory.

    Args:
        data: Values, possibly on a device.
        copy: Whether the result must stay valid if the caller then donates, deletes or overwrites
            the source. Without it, numpy arrays and arrays of the CPU backend are not copied.
    """
    host = np.asarray(data)
    if copy and (isinstance(data, np.ndarray) or not host.flags.owndata):
        return host.copy()
    return host


def owned_copy(shards: Sequence[Shard]) -> list[Shard]:
    """Return the same parts in host memory that nobody else can change."""
    start_transfers(shards)
    return [Shard(shard.region, to_host(shard.data, copy=True)) for shard in shards]


def local_regions(sharding: jax.sharding.Sharding, shape: Shape) -> dict[jax.Device, Region]:
    """Return the part of an array that every device of this process holds.

    Raises:
        ValueError: The sharding does not divide the shape evenly.
    """
    indices = sharding.addressable_devices_indices_map(shape)
    return {
        device: from_index(index if index is not None else (), shape)
        for device, index in indices.items()
    }

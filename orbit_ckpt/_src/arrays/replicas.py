"""Divide the writing of replicated arrays among processes.

A shard that several processes hold is cut into equal pieces, one or more for each of them, so that
every byte is written once. Every process computes the same division from the array's sharding,
without communication.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import jax
from msgspec import Struct

from orbit_ckpt._src.arrays.slices import Region, Shape, from_index
from orbit_ckpt._src.arrays.transfer import Shard, shards_of, slice_of

_MIN_SLICE_BYTES = 4096
"""Default minimum piece: a smaller one costs more in the index than it saves."""

_MAX_PIECES = 256
"""Default maximum number of pieces of an array. With more shards, each is written by one process
and processes take turns, which balances the load with fewer keys."""


class ReplicaOptions(Struct, frozen=True):
    """How replicas are divided among writers.

    Attributes:
        enabled: Whether they are divided; None divides them unless the devices are GPUs.
        min_slice_bytes: Minimum bytes of a piece; None for 4096, with at most 256 pieces per array.
        max_replicas: Maximum number of processes that write pieces of one shard; None for no limit.
    """

    enabled: bool | None = None
    min_slice_bytes: int | None = None
    max_replicas: int | None = None

    def __post_init__(self) -> None:
        if self.min_slice_bytes is not None and self.min_slice_bytes < 0:
            raise ValueError(
                f"min_slice_bytes_for_replica_parallel must be >= 0, got {self.min_slice_bytes}"
            )
        if self.max_replicas is not None and self.max_replicas < 1:
            raise ValueError(
                f"max_replicas_for_replica_parallel must be >= 1, got {self.max_replicas}"
            )

    def limit(self, processes: int) -> int:
        """Return how many of the processes that hold a shard may write pieces of it."""
        if self.enabled is False:
            return 1
        return processes if self.max_replicas is None else min(processes, self.max_replicas)


class Division(Struct, frozen=True, gc=False):
    """How each shard of an array is cut.

    Attributes:
        shape: Shape of a piece.
        axis: The axis that is cut.
        pieces: The number of pieces.
    """

    shape: Shape
    axis: int
    pieces: int

    def share(self, shard: Region, position: int, processes: int) -> Region | None:
        """Return the pieces of a shard that one of its processes writes.

        Args:
            shard: The shard.
            position: The position of the process among those that hold the shard.
            processes: Their number. With fewer processes than pieces, some write several.
        """
        first = -(-position * self.pieces // processes)
        end = -(-(position + 1) * self.pieces // processes)
        if first == end:
            return None
        if self.pieces == 1:
            return shard
        extent = self.shape[self.axis]
        start, shape = list(shard.start), list(shard.shape)
        start[self.axis] += first * extent
        shape[self.axis] = (end - first) * extent
        return Region(tuple(start), tuple(shape))


def divide(shard: Shape, itemsize: int, *, processes: int, min_bytes: int) -> Division:
    """Cut shards into as many equal pieces as possible, along the first axis that allows it.

    Args:
        shard: Shape of the shards.
        itemsize: Bytes of an element.
        processes: Maximum number of pieces.
        min_bytes: Minimum bytes of a piece.
    """
    size = math.prod(shard) * itemsize
    for count in range(min(processes, size // max(1, min_bytes)), 1, -1):
        for axis, extent in enumerate(shard):
            if extent % count == 0:
                piece = (*shard[:axis], extent // count, *shard[axis + 1 :])
                return Division(piece, axis, count)
    return Division(shard, 0, 1)


def owners_of(places: Iterable[tuple[Region, int]]) -> dict[Region, Sequence[int]]:
    """Return the processes that hold each region, in the order of their first replica of it.

    Args:
        places: The region of each device, and the process that owns the device.
    """
    found: dict[Region, dict[int, None]] = {}
    for region, process in places:
        found.setdefault(region, {})[process] = None
    return {region: tuple(processes) for region, processes in found.items()}


def divide_among(
    owners: Mapping[Region, Sequence[int]], itemsize: int, options: ReplicaOptions
) -> Division:
    """Divide the shards of an array, all of one shape, among the processes that hold them."""
    shard = next(iter(owners)).shape
    processes = options.limit(max(map(len, owners.values())))
    least = options.min_slice_bytes
    if least is None:
        least = _MIN_SLICE_BYTES
        processes = min(processes, max(1, _MAX_PIECES // len(owners)))
    return divide(shard, itemsize, processes=processes, min_bytes=least)


class WriterRotation:
    """Rotates the first writer of arrays that have fewer pieces than processes.

    A save has one rotation; every process asks it about the same arrays in the same order.
    """

    def __init__(self) -> None:
        self._written: dict[int, list[float]] = {}

    def next_writer(self, division: Division, processes: int, itemsize: int) -> int:
        """Return which of a shard's processes writes its first piece.

        Args:
            division: How the array's shards are cut.
            processes: The largest number of processes that hold the same shard.
            itemsize: Bytes of an element.
        """
        if division.pieces == processes:
            return 0
        written = self._written.setdefault(processes, [0.0] * processes)
        first = written.index(min(written))
        nbytes = math.prod(division.shape) * itemsize
        for piece in range(division.pieces):
            written[(first + piece * processes // division.pieces) % processes] += nbytes
        return first


class Holders(Struct, frozen=True, gc=False):
    """The parts of an array that a process holds, and the other holders.

    Attributes:
        division: How they are cut.
        processes: The largest number of processes that hold one.
        positions: For each shard, this process's position among its holders, and their number.
    """

    division: Division
    processes: int
    positions: Mapping[Region, tuple[int, int]]

    def shares(self, first: int) -> dict[Region, Region]:
        """Return the pieces of each shard that the process writes.

        Args:
            first: Position of the process that writes a shard's first piece.
        """
        found: dict[Region, Region] = {}
        for shard, (position, processes) in self.positions.items():
            share = self.division.share(shard, (position - first) % processes, processes)
            if share is not None:
                found[shard] = share
        return found


@functools.lru_cache(maxsize=4096)
def holders_of(
    sharding: jax.sharding.Sharding,
    shape: Shape,
    itemsize: int,
    options: ReplicaOptions,
    process: int,
) -> Holders:
    """Return the parts of an array that a process holds.

    Args:
        sharding: The array's sharding.
        shape: Its shape.
        itemsize: Bytes of an element.
        options: How replicas are divided.
        process: The process.
    """
    if options.enabled is None and any(d.platform == "gpu" for d in sharding.device_set):
        options = _UNDIVIDED
    owners = owners_of(
        (from_index(index or (), shape), device.process_index)
        for device, index in sharding.devices_indices_map(shape).items()
    )
    positions = {
        shard: (processes.index(process), len(processes))
        for shard, processes in owners.items()
        if process in processes
    }
    division = divide_among(owners, itemsize, options)
    return Holders(division, max(map(len, owners.values())), positions)


_UNDIVIDED = ReplicaOptions(enabled=False)


def written_shards(
    array: jax.Array, options: ReplicaOptions, rotation: WriterRotation
) -> tuple[Shape | None, list[Shard]]:
    """Return the shape of an array's pieces, and the shards that this process writes.

    The shape is None if no other process holds any of the array; it is then that of the shards.
    """
    if array.is_fully_addressable:
        return None, shards_of(array)
    itemsize = array.dtype.itemsize
    holders = holders_of(array.sharding, array.shape, itemsize, options, jax.process_index())
    first = rotation.next_writer(holders.division, holders.processes, itemsize)
    pending = holders.shares(first)
    shards: list[Shard] = []
    for shard in array.addressable_shards:
        region = from_index(shard.index, array.shape)
        share = pending.pop(region, None)  # other devices of this process may hold it too
        if share is not None:
            data = shard.data
            shards.append(
                Shard(share, data if share == region else slice_of(data, share.within(region)))
            )
    return holders.division.shape, shards

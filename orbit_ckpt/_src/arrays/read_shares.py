"""Divide the reading of parts of arrays among the processes that need them.

Each part is cut along the boundaries of its chunks, because a chunk is read whole. Every process
computes the same division, without communication.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import jax
from msgspec import Struct

from orbit_ckpt._src.arrays.replicas import owners_of
from orbit_ckpt._src.arrays.slices import Region, Shape, from_index
from orbit_ckpt._src.arrays.transfer import local_regions


class ReadShares:
    """The division of the arrays of one restore.

    Every process asks it about the same arrays in the same order.
    """

    def __init__(self) -> None:
        self._read: list[int] = []
        """Bytes that the holders of a part read, by their positions among its holders."""

    def pieces(
        self, sharding: jax.sharding.Sharding, shape: Shape, chunk_shape: Shape, itemsize: int
    ) -> dict[jax.Device, Sequence[Region]]:
        """Return the regions of the next array that this process reads, by the device they go to.

        Args:
            sharding: The array's sharding.
            shape: Its shape.
            chunk_shape: That of the stored chunks.
            itemsize: Bytes of an element.
        """
        parts = _parts_of(sharding, shape, chunk_shape, jax.process_index())
        self._read += [0] * (parts.processes - len(self._read))
        candidates = self._read[: parts.processes]
        first = candidates.index(min(candidates))
        nbytes = math.prod(shape) * itemsize // parts.regions // parts.pieces
        for piece in range(parts.pieces):
            self._read[(first + piece) % parts.processes] += nbytes
        return {
            part.device: [
                piece
                for i, piece in enumerate(part.pieces)
                if part.holders[(first + i) % parts.processes % len(part.holders)]
                == jax.process_index()
            ]
            for part in parts.local
        }


class _Part(Struct, frozen=True):
    """A part of an array that this process needs.

    Attributes:
        device: The first of its devices that needs it.
        pieces: What it is cut into.
        holders: The processes that need it.
    """

    device: jax.Device
    pieces: Sequence[Region]
    holders: Sequence[int]


class _Parts(Struct, frozen=True):
    """The parts of an array.

    Attributes:
        local: Those that this process needs.
        regions: How many there are in all processes.
        processes: The largest number of processes that need the same one.
        pieces: How many pieces the first part is cut into.
    """

    local: Sequence[_Part]
    regions: int
    processes: int
    pieces: int


@functools.lru_cache(maxsize=4096)
def _parts_of(
    sharding: jax.sharding.Sharding, shape: Shape, chunk_shape: Shape, process: int
) -> _Parts:
    owners = owners_of(
        (from_index(index or (), shape), device.process_index)
        for device, index in sharding.devices_indices_map(shape).items()
    )
    processes = max(map(len, owners.values()))
    devices = {
        region: device for device, region in reversed(local_regions(sharding, shape).items())
    }
    local = [
        _Part(device, cut(region, chunk_shape, processes), owners[region])
        for region, device in devices.items()
    ]
    first = cut(next(iter(owners)), chunk_shape, processes)
    del process  # the result depends on it
    return _Parts(local, len(owners), processes, len(first))


def cut(region: Region, chunk_shape: Shape, count: int) -> list[Region]:
    """Cut a region into at most `count` pieces of about equal size.

    The cuts are between chunks, along the axis that has most of them in the region.

    Args:
        region: What to cut.
        chunk_shape: Shape of the chunks.
        count: Maximum number of pieces, at least 1.
    """
    spans = [
        range(start // chunk, -(-stop // chunk))
        for start, stop, chunk in zip(region.start, region.stop, chunk_shape, strict=True)
    ]
    axis = max(range(len(spans)), key=lambda a: len(spans[a]), default=None)
    if axis is None or len(spans[axis]) <= 1 or count <= 1:
        return [region]
    span, start, stop = spans[axis], region.start[axis], region.stop[axis]
    count = min(count, len(span))
    inner = (span[len(span) * i // count] * chunk_shape[axis] for i in range(1, count))
    bounds = [start, *inner, stop]
    return [
        Region(
            (*region.start[:axis], bounds[i], *region.start[axis + 1 :]),
            (*region.shape[:axis], bounds[i + 1] - bounds[i], *region.shape[axis + 1 :]),
        )
        for i in range(count)
    ]

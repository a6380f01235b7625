"""Bring arrays out of reach of their owner, before a background save returns."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import islice

from orbit_ckpt._src.arrays.snapshot import Snapshots, current_snapshots
from orbit_ckpt._src.arrays.transfer import (
    DeferredData,
    Handle,
    Shard,
    begin_transfers,
    copy_on_devices,
    copy_to_host,
    is_on_host,
)
from orbit_ckpt._src.runtime.limiter import ByteLimiter, batched
from orbit_ckpt._src.runtime.loop import run_all

TASK_BYTES = 1 << 25
"""Bytes that are worth a task of their own."""

THREADS = max(2, min(16, os.cpu_count() or 2))
"""Threads that work on the arrays of a save."""


async def copy_to_host_within(max_bytes: int | None, shards: Sequence[Shard]) -> list[Shard]:
    """Bring parts of arrays to host memory that nothing changes, as `current_snapshots` takes them.

    Deferred data, and those that are read in place, are returned unchanged; copies on devices are
    left there.

    Args:
        max_bytes: Maximum bytes being copied from devices at once, None for no limit.
        shards: The parts.
    """
    snapshots = current_snapshots()
    pending = [shard for shard in shards if not _stays(shard)]
    taken = iter(await asyncio.to_thread(copy_on_devices, pending, snapshots))
    shards = [shard if _stays(shard) else next(taken) for shard in shards]
    pending = [shard for shard in shards if not _stays(shard)]
    copies = iter(await _copy_within(max_bytes, pending, snapshots))
    return [shard if _stays(shard) else next(copies) for shard in shards]


async def _copy_within(
    max_bytes: int | None, shards: Sequence[Shard], snapshots: Snapshots
) -> list[Shard]:
    limiter = ByteLimiter(max_bytes)
    total = sum(shard.nbytes for shard in shards)
    most = max(TASK_BYTES, total // THREADS)  # small data is not worth several threads
    groups = batched(shards, _nbytes_of, most if max_bytes is None else min(most, max_bytes))
    if max_bytes is None:  # devices are busy from the first to the last array
        handles = iter(await asyncio.to_thread(begin_transfers, shards))
        begun = [(group, list(islice(handles, len(group)))) for group, _ in groups]
        copied = [asyncio.to_thread(_copy_begun, *work, snapshots) for work in begun]
    else:
        copied = [_copy_reserved(limiter, group, snapshots) for group, _ in groups]
    return [shard for group in await run_all(copied) for shard in group]


async def _copy_reserved(
    limiter: ByteLimiter, shards: Sequence[Shard], snapshots: Snapshots
) -> list[Shard]:
    def copy() -> list[Shard]:
        return _copy_begun(shards, begin_transfers(shards), snapshots)

    async with limiter.reserve(sum(shard.nbytes for shard in shards if not is_on_host(shard.data))):
        return await asyncio.to_thread(copy)


def _copy_begun(
    shards: Sequence[Shard], handles: Sequence[Handle], snapshots: Snapshots
) -> list[Shard]:
    copies = copy_to_host(shards, handles, snapshots)
    for shard in shards:
        if shard.watch is not None:
            shard.watch.transferred(shard.region.size)
    return copies


def _stays(shard: Shard) -> bool:
    stays = shard.on_device is not None or shard.in_place or shard.unchanged
    return stays or isinstance(shard.data, DeferredData)


def _nbytes_of(shard: Shard) -> int:
    return shard.nbytes

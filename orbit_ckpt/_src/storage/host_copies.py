"""Copy many arrays into host memory at once, within a budget."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from orbit_ckpt._src.arrays.transfer import Shard, copy_to_host, is_on_host
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.runtime.loop import run_all

_SHARE_BYTES = 1 << 25
_THREADS = max(2, min(16, os.cpu_count() or 2))


async def copy_all(shards: Sequence[Shard], max_bytes: int | None) -> list[Shard]:
    """Return the same parts in memory that nobody else can change.

    Args:
        shards: Parts of arrays.
        max_bytes: Most bytes being copied from devices at once, None for no limit.
    """
    limiter = ByteLimiter(max_bytes)

    async def copy(share: Sequence[Shard]) -> list[Shard]:
        if max_bytes is None:
            return await asyncio.to_thread(copy_to_host, share)
        remote = sum(shard.nbytes for shard in share if not is_on_host(shard.data))
        async with limiter.reserve(remote):
            return await asyncio.to_thread(copy_to_host, share)

    copies = await run_all(map(copy, _shares(shards, limiter.max_bytes)))
    return [shard for share in copies for shard in share]


def _shares(shards: Sequence[Shard], max_bytes: int | None) -> list[Sequence[Shard]]:
    """Deal parts out to threads, each about the same number of bytes; few bytes to one."""
    sizes = [shard.nbytes for shard in shards]
    target = max(_SHARE_BYTES, sum(sizes) // _THREADS)
    target = target if max_bytes is None else min(target, max_bytes)
    shares: list[Sequence[Shard]] = []
    first = held = 0
    for position, nbytes in enumerate(sizes):
        if held and held + nbytes > target:
            shares.append(shards[first:position])
            first, held = position, 0
        held += nbytes
    return [*shares, shards[first:]]

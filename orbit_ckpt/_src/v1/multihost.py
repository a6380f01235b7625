"""The barrier of the v1 API, which is a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from orbit_ckpt._src.runtime import multihost

_EVENT = "/jax/checkpoint/sync_global_devices_duration_sec"


async def sync_global_processes(
    key: str,
    *,
    operation_id: str,
    timeout: int | None = None,  # noqa: ASYNC109 - Orbax's signature
    processes: Collection[int] | None = None,
    record_event_name: str = _EVENT,
) -> None:
    """Wait until all processes have called this with the same key.

    Args:
        key: Identifies the barrier.
        operation_id: Identifies the operation that it is part of.
        timeout: Longest wait in seconds, 300 by default.
        processes: The processes to wait for, None for all.
        record_event_name: The event of `jax.monitoring` that reports the wait.

    Raises:
        ProcessTimeoutError: A process has not joined in time.
        ValueError: This process is not among `processes`.
    """
    await asyncio.to_thread(
        multihost.sync_global_processes,
        f"[op={operation_id}] {key}",
        timeout=timeout,
        processes=processes,
        record_event_name=record_event_name,
    )

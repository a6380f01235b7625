"""Read in threads: a few large shares from a local disk, many concurrent requests to a store."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial

from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.chunk_read import SMALL_BYTES
from orbit_ckpt._src.storage.kvstore import ValueStore

_THREADS = max(2, min(8, os.cpu_count() or 2))

_REQUESTS = 16
"""Threads that read from an object store; they mostly wait."""


class ReadThreads:
    """Threads that read values of one store."""

    def __init__(self, store: ValueStore) -> None:
        self._is_remote = store.is_remote
        self.asks_for_each = store.has_object_per_value
        """Whether every value is a request, independent of the others."""
        self.share_objects = store.is_remote and not self.asks_for_each
        """Whether values lie together in objects, so that one request reads several."""

    async def run(
        self,
        read: Callable[[Sequence[int]], None],
        positions: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        """Distribute reads to threads; after one has failed, no other begins.

        Args:
            read: Reads the values at some positions.
            positions: All positions to read.
            sizes: The number of bytes at every position.
        """
        has_failed = threading.Event()

        def read_unless_failed(share: Sequence[int]) -> None:
            if has_failed.is_set():  # in a store each may take a minute to fail
                return
            try:
                read(share)
            except BaseException:  # re-raised; the others have to stop
                has_failed.set()
                raise

        threads = _REQUESTS if self._is_remote else _THREADS
        each = self.asks_for_each
        shares = [[i] for i in positions] if each else _shares(positions, sizes, threads)
        with self._running() as run:
            await run_all(run(read_unless_failed, share) for share in shares)

    @contextmanager
    def _running(self) -> Generator[Callable[..., Awaitable[object]]]:
        """Yield a function that runs calls in a thread, the loop's own on a local disk."""
        if not self._is_remote:
            yield asyncio.to_thread
            return
        loop = asyncio.get_running_loop()  # which has fewer threads than there may be requests
        pool = Workers(_REQUESTS, "orbit_ckpt-store")
        try:
            yield partial(loop.run_in_executor, pool)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _shares(positions: Sequence[int], sizes: Sequence[int], threads: int) -> list[list[int]]:
    """Distribute reads to threads in order, about the same number of bytes to each."""
    small = [i for i in positions if sizes[i] < SMALL_BYTES]
    large = [i for i in positions if sizes[i] >= SMALL_BYTES]
    target = sum(sizes[i] for i in large) / threads
    shares: list[list[int]] = [small]
    held = target
    for i in large:
        if held >= target:
            shares.append([])
            held = 0
        shares[-1].append(i)
        held += sizes[i]
    return [share for share in shares if share]

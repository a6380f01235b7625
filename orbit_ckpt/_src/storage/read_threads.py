"""Read in threads: a few large shares from a local disk, many concurrent requests to a store."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.chunk_read import SMALL_BYTES
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.read_shares import Share, share_by_place
from orbit_ckpt._src.storage.read_units import ReadUnits

_THREADS = max(2, min(8, os.cpu_count() or 2))

_REQUESTS = 16
"""Threads that read from an object store; they mostly wait."""


R = TypeVar("R")


class RunInThread(Protocol):
    """Calls functions in threads."""

    def __call__(self, function: Callable[[], R], /) -> Awaitable[R]:
        """Call a function in a thread."""
        ...


class ReadThreads:
    """Threads that read values of one store."""

    def __init__(self, store: ValueStore) -> None:
        self._is_remote = store.is_remote
        self._asks_for_each = store.has_object_per_value

    def divide(self, units: ReadUnits) -> list[Share]:
        """Divide the units of a read into shares for the threads."""
        if self._asks_for_each:
            return [Share([i]) for i in range(len(units.sizes))]
        if self._is_remote:
            return share_by_place(units.places(), _REQUESTS)
        return _share_by_size(units.sizes, _THREADS)

    async def run(self, read: Callable[[Share], None], shares: Iterable[Share]) -> None:
        """Read shares in threads; after one has failed, no other begins.

        Args:
            read: Reads a share.
            shares: All shares.
        """
        has_failed = threading.Event()

        def read_unless_failed(share: Share) -> None:
            if has_failed.is_set():  # in a store each may take a minute to fail
                return
            try:
                read(share)
            except BaseException:  # re-raised; the others have to stop
                has_failed.set()
                raise

        with self.running() as run:
            await run_all(run(partial(read_unless_failed, share)) for share in shares)

    @contextmanager
    def running(self) -> Generator[RunInThread]:
        """Yield what calls functions in threads, the loop's own on a local disk."""
        if not self._is_remote:
            yield asyncio.to_thread
            return
        loop = asyncio.get_running_loop()  # which has fewer threads than there may be requests
        pool = Workers(_REQUESTS, "orbit_ckpt-store")

        def call(function: Callable[[], R]) -> Awaitable[R]:
            return loop.run_in_executor(pool, function)

        try:
            yield call
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _share_by_size(sizes: Sequence[int], threads: int) -> list[Share]:
    """Share units in order, about the same number of bytes to each thread.

    Args:
        sizes: The number of bytes of every unit.
        threads: Number of threads.
    """
    small = [i for i, size in enumerate(sizes) if size < SMALL_BYTES]
    large = [i for i, size in enumerate(sizes) if size >= SMALL_BYTES]
    target = sum(sizes[i] for i in large) / threads
    shares: list[list[int]] = [small]
    held = target
    for i in large:
        if held >= target:
            shares.append([])
            held = 0
        shares[-1].append(i)
        held += sizes[i]
    return [Share(share) for share in shares if share]

"""Cancel background work from another thread."""

from __future__ import annotations

import asyncio

from orbit_ckpt._src.runtime.process import ForkSafeLock


class Cancellation:
    """Cancels a coroutine in the background until it reaches a point of no return.

    Invariant: a cancellation that `request` has accepted always takes effect, as a
    `CancelledError` in the coroutine, no later than at `close`.
    """

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._is_requested = False
        self._is_closed = False
        self._task: asyncio.Task[object] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_requested(self) -> bool:
        """Whether a cancellation was accepted."""
        return self._is_requested

    def request(self) -> bool:
        """Request the cancellation; return False if it is too late."""
        with self._lock:
            if self._is_closed:
                return False
            if not self._is_requested and self._task is not None and self._loop is not None:
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._is_requested = True
            return True

    def open(self) -> None:
        """Let the running coroutine be cancelled from here on.

        Raises:
            CancelledError: It was requested before.
        """
        with self._lock:
            self._check()
            self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()

    def close(self) -> None:
        """Accept no cancellation from here on.

        Raises:
            CancelledError: It was requested before.
        """
        with self._lock:
            self._is_closed = True
            self._task = self._loop = None
            self._check()

    def _check(self) -> None:
        if self._is_requested:
            raise asyncio.CancelledError

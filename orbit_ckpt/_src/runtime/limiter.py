"""A budget for bytes in flight, and groups of work that fit it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class ByteLimiter:
    """Admits work in arrival order while its bytes fit the budget.

    A request above the whole budget waits until nothing else is in flight and then runs alone: a
    checkpoint with one huge array must neither fail nor hang. Use it from one event loop.
    `wait_for_bytes` and `release_bytes` are the names of Orbax's limiter, for type handlers written
    for it.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        """Make a limiter; None admits everything.

        Raises:
            ValueError: `max_bytes` is not positive.
        """
        if max_bytes is not None and max_bytes <= 0:
            raise ValueError(f"a byte limit must be positive, found {max_bytes}")
        self.max_bytes = max_bytes
        self._in_flight = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def reserve(self, nbytes: int) -> AsyncGenerator[None]:
        """Hold `nbytes` of the budget while the block runs."""
        await self.wait_for_bytes(nbytes)
        try:
            yield
        finally:
            self._release(nbytes)

    async def wait_for_bytes(self, requested_bytes: int) -> None:
        """Return once the bytes are reserved."""
        if not self._waiting and self._fits(requested_bytes):
            self._in_flight += requested_bytes
            return
        ready = asyncio.get_running_loop().create_future()
        self._waiting.append((requested_bytes, ready))
        try:
            await ready
        except asyncio.CancelledError:
            if ready.done() and not ready.cancelled():
                self._release(requested_bytes)
            else:
                self._waiting.remove((requested_bytes, ready))
                self._admit()
            raise

    async def release_bytes(self, requested_bytes: int) -> None:
        """Give reserved bytes back."""
        self._release(requested_bytes)

    def _fits(self, nbytes: int) -> bool:
        if self.max_bytes is None or self._in_flight == 0:
            return True
        return self._in_flight + nbytes <= self.max_bytes

    def _release(self, nbytes: int) -> None:
        self._in_flight -= nbytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            nbytes, ready = self._waiting.popleft()
            self._in_flight += nbytes
            ready.set_result(None)


def batched(
    items: Iterable[T], size: Callable[[T], int], limit: int
) -> Iterator[tuple[list[T], int]]:
    """Yield consecutive items in groups that fit a budget, with the bytes of each group.

    Args:
        items: The items.
        size: Returns the bytes of one.
        limit: Maximum bytes of a group; a larger item makes a group of its own.
    """
    group: list[T] = []
    held = 0
    for item in items:
        nbytes = size(item)
        if group and held + nbytes > limit:
            yield group, held
            group, held = [], 0
        group.append(item)
        held += nbytes
    if group:
        yield group, held

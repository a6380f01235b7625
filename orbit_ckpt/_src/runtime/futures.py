"""Results of background work, which handlers return from `serialize` and `async_save`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from contextvars import ContextVar
from typing import Protocol, runtime_checkable

from typing_extensions import override

from orbit_ckpt._src.runtime.loop import run_in_background
from orbit_ckpt._src.text import warn_set

_logger = logging.getLogger(__name__)


@runtime_checkable
class Future(Protocol):
    """The result of work that completes later."""

    def result(self, timeout: float | None = None) -> object:
        """Wait for it; raise its error, if any."""
        ...


class NoopFuture(Future):
    """The result of work that is complete."""

    @override
    def result(self, timeout: float | None = None) -> None:
        """Return at once."""


class ChainedFuture(Future):
    """The result of several futures and a function to call after them."""

    def __init__(self, futures: Sequence[Future], cb: Callable[[], object]) -> None:
        """Make a future.

        Args:
            futures: What to wait for, in this order.
            cb: Called without arguments after all of them, by each call of `result`.
        """
        self._futures = futures
        self._call = cb

    @override
    def result(self, timeout: float | None = None) -> None:
        """Wait for all futures, then call the function.

        Raises:
            TimeoutError: Not all are complete in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for future in self._futures:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            future.result(left)
        self._call()


class CommitFutureAwaitingContractedSignals(Future):
    """A coroutine that runs in the background, with an event loop of its own.

    The name is Orbax's. There it first waits until the directory of the item exists; here that
    exists before a handler is called.
    """

    def __init__(
        self,
        coro: Coroutine[object, object, object],
        *,
        name: str | None = None,
        send_signals: Sequence[object] | None = None,
        timeout_secs: int | None = None,  # noqa: ARG002 - Orbax's signature
        operation_id: str | None = None,  # noqa: ARG002 - as above
    ) -> None:
        """Start a coroutine.

        Args:
            coro: What to run.
            name: Its name in errors.
            send_signals: Ignored with a warning; no handler waits for signals here.
            timeout_secs: Ignored; Orbax waits for signals that long.
            operation_id: Ignored; Orbax's signals belong to one operation.
        """
        why = "no handler waits for signals; wait for the future itself"
        warn_set(type(self).__name__, {"send_signals": (send_signals or None, None, why)})
        self._outcome = run_in_background(coro if name is None else _named(coro, name))

    @override
    def result(self, timeout: float | None = None) -> object:
        """Return the coroutine's result.

        Raises:
            TimeoutError: It is not complete in time.
        """
        return self._outcome.result(timeout)


async def _named(coro: Coroutine[object, object, object], name: str) -> object:
    try:
        return await coro
    except BaseException as error:  # raised again
        error.add_note(f"Raised in {name}.")
        raise


_begun: ContextVar[list[Future] | None] = ContextVar("orbit_ckpt_begun", default=None)
"""Work of handlers that the save in progress must not outlast."""


@contextlib.contextmanager
def collect_futures(begun: list[Future]) -> Generator[None]:
    """Add what handlers begin in the block to a list."""
    token = _begun.set(begun)
    try:
        yield
    finally:
        _begun.reset(token)


def begin(futures: Iterable[Future] | None) -> list[Future]:
    """Return the futures that a handler returned, after adding them to the save around it."""
    found = list(futures or ())
    begun = _begun.get()
    if begun is not None:
        begun += found
    return found


def wait_for_end(futures: Sequence[Future], timeout_s: float) -> bool:
    """Wait until work has ended, even by an error, so that it writes into no removed directory.

    A separate thread waits, because a handler's future may ignore its timeout.

    Args:
        futures: The work.
        timeout_s: Longest wait in seconds.

    Returns:
        Whether it has ended.
    """
    if not futures:
        return True
    waiting = threading.Thread(
        target=_wait, args=(futures,), name="orbit_ckpt-wait-for-end", daemon=True
    )
    waiting.start()
    waiting.join(timeout_s)
    return not waiting.is_alive()


def _wait(futures: Sequence[Future]) -> None:
    for future in futures:
        try:
            future.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the save has failed, and the first error counts
            _logger.debug("Failed in a save that has failed: %s", error)

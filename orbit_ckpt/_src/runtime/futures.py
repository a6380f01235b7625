"""Results of background work, which handlers return from `serialize` and `async_save`."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Protocol, runtime_checkable

from typing_extensions import override

from orbit_ckpt._src.runtime.loop import run_in_background
from orbit_ckpt._src.text import warn_set


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
        self._name = name
        self._outcome = run_in_background(coro)

    @override
    def result(self, timeout: float | None = None) -> object:
        """Return the coroutine's result.

        Raises:
            TimeoutError: It is not complete in time.
        """
        try:
            return self._outcome.result(timeout)
        except BaseException as error:  # raised again
            if self._name is not None:
                error.add_note(f"Raised in {self._name}.")
            raise

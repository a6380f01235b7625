"""The handle of a background save."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal

from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.runtime.cancellation import Cancellation
from orbit_ckpt._src.runtime.commit import Commit, Progress
from orbit_ckpt._src.runtime.process import reset_in_child
from orbit_ckpt._src.storage.incremental import ReuseCounter, ReusedBytes
from orbit_ckpt._src.text import human_bytes

_GRACE_S = 15.0
"""How much longer to wait for a save than its processes for each other: their error says more."""


_reporting: ContextVar[Commit | None] = ContextVar("orbit_ckpt_reporting", default=None)
"""The save whose callback is running in this thread."""


def note_reporting(commit: Commit) -> None:
    """Note that callbacks of a save run in this thread, until it ends."""
    _reporting.set(commit)


class SaveHandle:
    """A background save; can be awaited too."""

    def __init__(
        self,
        path: Path,
        step: int | None,
        outcome: Future[None],
        commit: Commit,
        cancellation: Cancellation,
        *,
        is_alone: bool = True,
        reused: ReuseCounter | None = None,
    ) -> None:
        self.grace_s = 0.0 if is_alone else _GRACE_S
        self.is_inherited = False
        """Whether it was in progress in another process when that forked this one."""
        self._path = path
        self._step = step
        self._outcome = outcome
        self._commit = commit
        self._cancellation = cancellation
        self._reused = reused or ReuseCounter()
        self._ended: BaseException | Literal[True] | None = None
        outcome.add_done_callback(self._end)
        reset_in_child(self)

    def _end(self, outcome: Future[None]) -> None:
        self._ended = outcome.exception() or True

    def after_fork_in_child(self) -> None:
        """Stop waiting for work that only the parent does."""
        if self._ended is None:
            self.is_inherited = True
            self._ended = CheckpointError(
                f"{self._path} is being saved by process {os.getppid()}, which forked this one "
                f"({os.getpid()}). Only that process can wait for it; wait there before the fork."
            )
        outcome = Future[None]()  # the lock of the old one may be held for ever
        if self._ended is True:
            outcome.set_result(None)
        else:
            outcome.set_exception(self._ended)
        self._outcome = outcome

    @property
    def path(self) -> Path:
        """Path of the checkpoint."""
        return self._path

    @property
    def step(self) -> int | None:
        """Its step, if any."""
        return self._step

    @property
    def progress(self) -> Progress:
        """How much has been written."""
        return self._commit.progress

    @property
    def reused(self) -> ReusedBytes:
        """How much of an incremental save its base holds, once it has ended."""
        return self._reused.now()

    def cancel(self) -> bool:
        """Stop the save unless it is about to end; return whether it will be stopped.

        `result` then raises; nothing is left behind.
        """
        return not self._outcome.done() and self._cancellation.request()

    def cancelled(self) -> bool:
        """Return whether the save was stopped by `cancel`, or will be."""
        return self._cancellation.is_requested

    def done(self) -> bool:
        """Return whether the save has ended, successfully or not."""
        return self._outcome.done()

    def result(self, timeout: float | None = None) -> None:
        """Wait until the checkpoint is durable.

        Args:
            timeout: Longest wait in seconds.

        Raises:
            TimeoutError: The save is still in progress.
            CheckpointError: The save failed; nothing was left behind.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the save has ended; return its error, if any.

        Called by the save's own callback it does not wait: the checkpoint is durable then.

        Raises:
            TimeoutError: The save is still in progress after `timeout` seconds.
        """
        if _reporting.get() is self._commit:
            return None
        if wait([self._outcome], timeout).not_done:
            done = self.progress
            raise TimeoutError(
                f"{self._path}: the save is still in progress after {timeout} seconds; "
                f"{done.nbytes} of {done.total_nbytes} bytes are written"
            )
        return self._outcome.exception()

    def call_when_saved(self, callback: Callable[[], object]) -> None:
        """Call a function once the checkpoint is durable, or now if it is; not if the save fails.

        Exceptions of the function are only logged.
        """

        def call(outcome: Future[None]) -> None:
            if outcome.exception() is None:
                callback()

        self._outcome.add_done_callback(call)

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self._outcome).__await__()

    def __repr__(self) -> str:
        done, path = self.progress, str(self._path)
        written, total = human_bytes(done.nbytes), human_bytes(done.total_nbytes)
        if not self.done():
            part = f", {written} of {total} written" if done.total_nbytes else ""
            return f"SaveHandle({path!r}, saving{part})"
        state = "cancelled" if self.cancelled() else "failed" if self.exception() else "saved"
        return f"SaveHandle({path!r}, {state}, {total})"

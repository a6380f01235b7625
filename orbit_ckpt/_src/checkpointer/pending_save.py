"""The pending background save of a checkpointer; its error is raised exactly once."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator

from orbit_ckpt._src.checkpointer.handle import SaveHandle
from orbit_ckpt._src.errors import BackgroundSaveError
from orbit_ckpt._src.runtime.process import ForkSafeLock, reset_in_child

_logger = logging.getLogger(__name__)


class PendingSave:
    """The last save of a checkpointer, perhaps in progress; its error is raised once.

    Threads may share one: their saves start one after another.
    """

    def __init__(self, timeout_s: float) -> None:
        """Make one without a save.

        Args:
            timeout_s: Longest wait for a save.
        """
        self._timeout_s = timeout_s
        self._handle: SaveHandle | None = None
        self._inherited: SaveHandle | None = None
        self._taking = ForkSafeLock()
        self._beginning = ForkSafeLock()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Disown a save that the parent has started."""
        self._inherited = self._inherited or self._handle
        self._handle = None

    @property
    def handle(self) -> SaveHandle | None:
        """The save, None once its end has been noted."""
        return self._handle

    @property
    def step(self) -> int | None:
        """The step being saved, None if none is."""
        handle = self._handle
        return None if handle is None or handle.done() else handle.step

    def is_running(self) -> bool:
        """Return whether a save is in progress."""
        handle = self._handle
        return handle is not None and not handle.done()

    def has_failed(self) -> bool:
        """Return whether it has ended with an error that has not been raised."""
        handle = self._handle
        if handle is None or not handle.done() or handle.cancelled():
            return False
        return handle.exception() is not None

    def begin(
        self, save: Callable[[], SaveHandle | None], *, deadline: float | None = None
    ) -> None:
        """Start a save once the previous one has ended.

        Args:
            save: Starts a save, or completes it and returns None.
            deadline: The `time.monotonic()` by which both saves must end; without it, only the
                previous one is awaited.

        Raises:
            BackgroundSaveError: The previous save has failed; the new one has started.
            TimeoutError: One of them takes too long.
            CheckpointError: The new save has failed.
        """
        # Invariant: `_beginning` is held from the wait to the start, so at most one save is in
        # progress. The error of the previous save never prevents the new one: it is raised after
        # the new save has started or, if that fails, attached to its error. A timeout of the wait
        # itself is raised before `save` is called, so that the caller knows that nothing has
        # started.
        with self._beginning:
            failed = self._failure(self._seconds_until(deadline))
            try:
                handle = self._handle = save()
                self._inherited = None
                if handle is not None and deadline is not None:
                    self._wait_for(handle, self._seconds_until(deadline))
            except BaseException as error:  # raised again; also an interrupt
                if failed is not None:
                    error.add_note(str(failed))
                raise
        if failed is not None:
            raise failed

    def cancel(self) -> None:
        """Stop the save unless it is about to end; a cancelled save has no error."""
        handle = self._handle
        if handle is not None:
            handle.cancel()

    def wait(self) -> None:
        """Wait until the save has ended, successfully or not.

        Raises:
            TimeoutError: It takes longer than the timeout.
        """
        handle = self._handle
        if handle is not None:
            handle.exception(self._longest)

    def check(self) -> None:
        """Raise the error of a failed save, without waiting.

        Raises:
            BackgroundSaveError: It has failed.
        """
        handle = self._handle
        if handle is not None and handle.done():
            self.finish()

    def finish(self, *, inherited: bool = True) -> None:
        """Wait for the save and raise its error.

        Args:
            inherited: Whether to raise an error for a save that was in progress when this process
                was forked, and cannot be awaited.

        Raises:
            BackgroundSaveError: It has failed.
            TimeoutError: It takes longer than the timeout.
            CheckpointError: Another process is saving it.
        """
        if inherited and self._inherited is not None and self._inherited.is_inherited:
            self._inherited.result()
        failed = self._failure(self._longest)
        if failed is not None:
            raise failed

    def _failure(self, timeout_s: float) -> BackgroundSaveError | None:
        """Wait for the save; return its error, to the first caller only."""
        handle = self._handle
        if handle is None:
            return None
        error = handle.exception(timeout_s)
        if not handle.done():  # called from its own callback
            return None
        if not self._forget(handle) or error is None or handle.cancelled():
            return None
        return _background_error(handle, error)

    def _wait_for(self, handle: SaveHandle, timeout_s: float) -> None:
        error = handle.exception(timeout_s)
        if self._forget(handle) and error is not None:
            raise error

    def _forget(self, handle: SaveHandle) -> bool:
        """Forget the save; return False if it has been replaced."""
        with self._taking:
            if self._handle is not handle:
                return False
            self._handle = None
            return True

    def _seconds_until(self, deadline: float | None) -> float:
        if deadline is None:
            return self._longest
        return min(self._longest, max(0.0, deadline - time.monotonic()))

    @property
    def _longest(self) -> float:
        handle = self._handle
        return self._timeout_s + (0.0 if handle is None else handle.grace_s)


@contextlib.contextmanager
def attach_cleanup_errors(error: BaseException | None) -> Generator[None]:
    """Attach an error raised during cleanup to the one that ended the `with` block.

    Args:
        error: The error that ended the block, None if there was none.
    """
    try:
        yield
    except Exception as late:  # raised, or attached to what ended the block
        if error is None:
            raise
        _logger.exception("Closing after %s failed too", type(error).__name__)
        error.add_note(str(late))


def _background_error(handle: SaveHandle, cause: BaseException) -> BackgroundSaveError:
    what = f"step {handle.step} ({handle.path})" if handle.step is not None else str(handle.path)
    error = BackgroundSaveError(
        f"The save of {what} failed in the background: {cause}",
        path=str(handle.path),
        step=handle.step,
    )
    error.__cause__ = cause
    return error

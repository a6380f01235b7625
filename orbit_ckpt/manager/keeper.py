"""Deletes the steps that no policy wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from orbit_ckpt.errors import CheckpointError, StorageError
from orbit_ckpt.manager.deletion import StepDeleter
from orbit_ckpt.manager.index import StepIndex
from orbit_ckpt.manager.preservation import PreservationContext
from orbit_ckpt.manager.retention import RetentionPlan, RetentionRules


class StepKeeper:
    """Applies retention rules to the steps of an index.

    What goes wrong is told once by `check` or `finish`: a step that could not be deleted is no
    reason for a save to fail.
    """

    def __init__(
        self,
        index: StepIndex,
        rules: RetentionRules,
        deleter: StepDeleter,
        *,
        in_background: bool,
    ) -> None:
        """Make a keeper.

        Args:
            index: The steps.
            rules: What to keep.
            deleter: Deletes directories.
            in_background: Whether deletions are done on a thread of their own.
        """
        self._index = index
        self._rules = rules
        self._deleter = deleter
        self._pool = ThreadPoolExecutor(1, "orbit_ckpt-delete") if in_background else None
        self._lock = threading.Lock()
        self._running: list[Future[None]] = []
        self._error: Exception | None = None

    def plan(self) -> RetentionPlan:
        """Return what would be kept and deleted now, and why."""
        infos = self._index.infos(with_items=bool(self._rules.items))
        return self._rules.plan(infos, PreservationContext())

    def apply(self) -> None:
        """Delete what no policy wants."""
        self._run(self._apply)

    def delete(self, step: int) -> None:
        """Delete a step.

        Raises:
            StepNotFoundError: There is no such step.
        """
        path = self._index.path(step)
        self._run(lambda: self._delete(step, path))

    def check(self) -> None:
        """Raise what has gone wrong so far.

        Raises:
            StorageError: A deletion has failed.
            CheckpointError: A policy has failed; nothing was deleted.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self) -> None:
        """Wait for deletions on the other thread, then as `check`."""
        while self._running:
            self._running.pop().result()
        self.check()

    def close(self) -> None:
        """Give up the thread."""
        if self._pool is not None:
            self._pool.shutdown()

    def _run(self, task: Callable[[], None]) -> None:
        if self._pool is None:
            self._guarded(task)
            return
        self._running = [future for future in self._running if not future.done()]
        self._running.append(self._pool.submit(self._guarded, task))

    def _guarded(self, task: Callable[[], None]) -> None:
        with self._lock:
            try:
                task()
            except Exception as error:  # noqa: BLE001 - a user's policy may raise anything
                self._error = error

    def _apply(self) -> None:
        try:
            plan = self.plan()
        except Exception as error:
            raise CheckpointError(
                f"No step was deleted, because a preservation policy failed: {error}"
            ) from error
        errors: list[Exception] = []
        for step in plan.steps:
            path = self._index.path(step.step)
            try:
                if not step.kept:
                    self._delete(step.step, path)
                for item in step.dropped_items:
                    self._deleter.delete(path / item)
            except StorageError as error:
                errors.append(error)  # the next one may be deleted all the same
        if errors:
            raise errors[0]

    def _delete(self, step: int, path: Path) -> None:
        try:
            self._deleter.delete(path)
        except OSError as error:
            raise StorageError(
                f"Deleting step {step} ({path}) failed: {error}. Check the permissions there, or "
                "delete it yourself."
            ) from error
        finally:
            if not path.exists():
                self._index.remove(step)

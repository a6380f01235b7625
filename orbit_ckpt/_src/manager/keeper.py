"""Deletes the steps that no policy wants."""

from __future__ import annotations

from concurrent.futures import Future, wait
from pathlib import Path

from orbit_ckpt._src.errors import CheckpointError, StepNotFoundError, StorageError
from orbit_ckpt._src.manager.deletion import StepDeleter
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.manager.preservation import PreservationContext
from orbit_ckpt._src.manager.retention import (
    RetentionPlan,
    RetentionRules,
    StepRetention,
    keeps_all,
)
from orbit_ckpt._src.runtime.forking import ForkSafeLock, reset_in_child
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.integrity import forget_files
from orbit_ckpt._src.storage.store_path import StorePath

_THREAD_NAME = "orbit_ckpt-delete"


class StepKeeper:
    """Applies retention rules to the steps of an index.

    What goes wrong is told once by `error`: a step that could not be deleted is no reason for a
    save to fail.
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
            in_background: Whether what has been put aside is removed on a thread of its own.

        Raises:
            ValueError: Single items are to be deleted, which stores cannot do in one step.
        """
        if rules.items and isinstance(deleter.root, StorePath):
            raise ValueError(
                f"{deleter.root}: a policy says how long to keep single items ({rules.items}). In "
                "an object store only whole steps can be deleted; save the items as runs of "
                "their own."
            )
        self._index = index
        self._rules = rules
        self._deleter = deleter
        self._pool = Workers(1, _THREAD_NAME) if in_background else None
        self._running: dict[Path, Future[None]] = {}
        self._aside: dict[Path, tuple[Path, str]] = {}
        self._changing = ForkSafeLock()
        self._telling = ForkSafeLock()
        self._errors: list[CheckpointError] = []
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Forget the deletions in progress, which are the parent's."""
        self._pool = Workers(1, _THREAD_NAME) if self._pool is not None else None
        self._running = {}
        self._aside = {}
        self._errors = []

    def plan(self, just_saved: int | None = None) -> RetentionPlan:
        """Return what would be kept and deleted now, and why."""
        infos = self._index.infos(with_metrics=True)
        return self._rules.plan(infos, PreservationContext(), just_saved=just_saved)

    def apply(self, just_saved: int) -> None:
        """Delete what no policy wants, now that a step is durable."""
        with self._changing:
            try:
                is_kept = keeps_all(self._rules, self._index.infos())
                steps = () if is_kept else self.plan(just_saved).steps
            except Exception as error:  # noqa: BLE001 - a user's policy may raise anything
                what = f"{type(error).__name__}: {error}"
                self.note(
                    f"No step was deleted, because a preservation policy failed: {what}", error
                )
                return
            for aside in list(self._aside):
                running = self._running.get(aside)
                if running is None or running.done():
                    self._finish(aside)  # perhaps it succeeds now
            for step in steps:
                if not step.rules or step.dropped_items:
                    self._apply_to(step)

    def delete(self, step: int) -> None:
        """Delete a step, pinned or not.

        Raises:
            StepNotFoundError: There is no such step.
        """
        with self._changing:
            self._delete(step, self._index.path(step))

    def pin(self, step: int) -> None:
        """Pin a step; see `CheckpointManager.pin`."""
        with self._changing:
            self._index.pin(step)

    def unpin(self, step: int) -> None:
        """Unpin a step; see `CheckpointManager.unpin`."""
        with self._changing:
            self._index.unpin(step)

    def note(self, message: str, cause: BaseException) -> None:
        """Remember what has gone wrong."""
        kind = StorageError if isinstance(cause, OSError) else CheckpointError
        error = kind(message)
        error.__cause__ = cause
        with self._telling:
            self._errors.append(error)

    def error(self) -> CheckpointError | None:
        """Return what has gone wrong since the last call: one error, others in its notes."""
        with self._telling:
            errors, self._errors = self._errors, []
        for other in errors[1:]:
            errors[0].add_note(f"Also: {other}")
        return errors[0] if errors else None

    def wait(self) -> None:
        """Wait for the other thread; several may wait."""
        wait(list(self._running.values()))

    def make_way(self, path: Path) -> None:
        """Before a save, wait until nothing is removed where it writes, as may be in a store."""
        with self._changing:
            running = self._running.get(path)
            if running is not None:
                wait([running])
            self._aside.pop(path, None)  # if that has failed, the save clears the place itself

    def close(self) -> None:
        """Give up the thread; deletions are then done at once."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _apply_to(self, step: StepRetention) -> None:
        try:
            path = self._index.path(step.step)
            if self._index.is_pinned(step.step):
                return  # by hand, or by another process, after the index had looked
            if not step.kept:
                self._delete(step.step, path)
                return
            for item in step.dropped_items:
                self._drop(path / item, f"item {item!r} of step {step.step}")
            self._index.add(step.step, path)
        except StepNotFoundError:
            pass  # somebody else was faster
        except Exception as error:  # noqa: BLE001 - the next one may be deleted all the same
            self.note(f"Deleting step {step.step} failed: {error}", error)

    def _delete(self, step: int, path: Path) -> None:
        aside = self._put_aside(path, f"step {step}")
        if aside is not None or not path.exists():
            self._index.remove(step)
        self._remove(aside)

    def _drop(self, item: Path, what: str) -> None:
        try:
            forget_files(item.parent, f"{item.name}/")
        except OSError as error:
            self._note_failed(what, item, error)
        else:
            self._remove(self._put_aside(item, what))

    def _put_aside(self, path: Path, what: str) -> Path | None:
        try:
            aside = self._deleter.put_aside(path)
        except OSError as error:
            self._note_failed(what, path, error)
            return None
        if aside is not None:
            self._aside[aside] = (path, what)
        return aside

    def _remove(self, aside: Path | None) -> None:
        if aside is None:
            return
        if self._pool is None:
            self._finish(aside)
            return
        running = list(self._running.items())
        self._running = {path: future for path, future in running if not future.done()}
        self._running[aside] = self._pool.submit(self._finish, aside)

    def _finish(self, aside: Path) -> None:
        found = self._aside.pop(aside, None)
        if found is None:
            return  # another thread is removing it
        path, what = found
        try:
            self._deleter.remove(aside, path)
        except Exception as error:  # noqa: BLE001 - told by `error`: nobody waits for a result
            self._aside[aside] = (path, what)
            self._note_failed(what, path, error)

    def _note_failed(self, what: str, path: Path, error: Exception) -> None:
        advice = "Check the permissions there, or delete it yourself."
        self.note(f"Deleting {what} ({path}) failed: {error}. {advice}", error)

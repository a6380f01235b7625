"""Garbage collection: delete the steps that no retention rule keeps.

A crash during a deletion never leaves a partial step listed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from orbit_ckpt._src.errors import StepNotFoundError
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.manager.preservation import PreservationContext
from orbit_ckpt._src.manager.retention import (
    RetentionPlan,
    RetentionRules,
    StepRetention,
    keeps_all,
)
from orbit_ckpt._src.manager.steps import StepNames, StepParser
from orbit_ckpt._src.runtime.process import ForkSafeLock, reset_in_child
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.amend import forget_files
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.path import storage_errors

_logger = logging.getLogger(__name__)


_THREAD_NAME = "orbit_ckpt-delete"


class StepDeleter:
    """Deletes directories of a run in two phases.

    A directory is first renamed to a tombstone, which removes it from every listing at once, and
    then deleted. `sweep` deletes the tombstones of crashed processes; several processes may sweep
    at once. An object store cannot rename: there the commit marker is deleted, and nothing may be
    saved at that path until the rest is gone.
    """

    def __init__(self, root: Path, names: StepNames, *, todelete_subdir: str | None = None) -> None:
        """Make a deleter.

        Args:
            root: The run's directory.
            names: How steps are named.
            todelete_subdir: Subdirectory of `root` that receives deleted steps.

        Raises:
            ValueError: `todelete_subdir` is given in a store, which cannot move directories.
        """
        if todelete_subdir is not None and not directory_of(root).has_rename:
            raise ValueError(
                f"{root}: todelete_subdir={todelete_subdir!r}: object stores have no rename. Leave "
                "it out; steps are then deleted."
            )
        self.root = root
        self._names = names
        self._subdir = todelete_subdir

    def tombstone(self, directory: Path) -> Path | None:
        """Rename a step or item; return its tombstone, None if it is gone already.

        Raises:
            OSError: The storage refused; the directory is unchanged.
        """
        return directory_of(directory).hide(self.root, self._subdir)

    def remove(self, tombstone: Path, directory: Path) -> None:
        """Remove a tombstone, unless the run keeps its deleted steps.

        Args:
            tombstone: Result of `tombstone`.
            directory: Where the step was.

        Raises:
            OSError: The storage refused; the removal may be retried.
        """
        hidden = directory_of(tombstone)
        hidden.sync_hidden(directory)
        if self._subdir is None:
            hidden.delete_hidden()
        _logger.debug("Deleted %s", directory)

    def sweep(self, *, everything: bool = False) -> None:
        """Remove unfinished deletions and saves of crashed processes.

        Args:
            everything: Whether to remove unfinished saves of other writers too, which may still be
                in progress.

        Raises:
            StorageError: The directory cannot be read.
        """
        advice = "Check that it is a directory that may be written."
        with storage_errors(self.root, "removing what was left behind", advice):
            directory_of(self.root).sweep(self._is_step, everything=everything)

    def _is_step(self, name: str) -> bool:
        return isinstance(self._names, StepParser) and self._names.parse(name) is not None


class StepCollector:
    """Applies retention rules to the steps of an index.

    A failed deletion is recorded; it fails no save.
    """

    def __init__(
        self,
        index: StepIndex,
        rules: RetentionRules,
        deleter: StepDeleter,
        record_error: Callable[[str, BaseException], object],
        *,
        now: Callable[[], datetime],
        in_background: bool,
    ) -> None:
        """Make a collector.

        Args:
            index: The steps.
            rules: The retention rules.
            deleter: Deletes directories.
            record_error: Called with a message and its cause when a deletion fails.
            now: Returns the time, with a time zone.
            in_background: Whether a thread removes the tombstones.

        Raises:
            ValueError: The rules delete single items, which a store cannot do atomically.
        """
        if rules.items and not directory_of(deleter.root).has_rename:
            raise ValueError(
                f"{deleter.root}: a policy says how long to keep single items ({rules.items}). In "
                "an object store only whole steps can be deleted; save the items as runs of "
                "their own."
            )
        self._index = index
        self._rules = rules
        self._deleter = deleter
        self._record_error = record_error
        self._now = now
        self._pool = Workers(1, _THREAD_NAME) if in_background else None
        self._running: dict[Path, Future[None]] = {}
        self._tombstones: dict[Path, tuple[Path, str]] = {}
        self._changing = ForkSafeLock()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Forget the deletions in progress, which belong to the parent."""
        self._pool = Workers(1, _THREAD_NAME) if self._pool is not None else None
        self._running = {}
        self._tombstones = {}

    def keep(self, steps: Collection[int]) -> None:
        """Keep steps regardless of the rules."""
        self._rules = replace(self._rules, steps=frozenset(steps))

    def plan(self, just_saved: int | None = None) -> RetentionPlan:
        """Return which steps the rules keep and delete now, and why."""
        infos = self._index.infos(with_metrics=True)
        return self._rules.plan(infos, PreservationContext(now=self._now()), just_saved=just_saved)

    def collect(self, just_saved: int) -> None:
        """Delete the steps that no policy keeps, now that a new step is durable."""
        with self._changing:
            try:
                is_kept = keeps_all(self._rules, self._index.infos())
                steps = () if is_kept else self.plan(just_saved).steps
            except Exception as error:  # noqa: BLE001 - a user's policy may raise anything
                what = f"{type(error).__name__}: {error}"
                self._record_error(
                    f"No step was deleted, because a preservation policy failed: {what}", error
                )
                return
            for tombstone in list(self._tombstones):
                running = self._running.get(tombstone)
                if running is None or running.done():
                    self._remove_now(tombstone)  # retry
            for step in steps:
                if not step.rules or step.dropped_items:
                    self._apply_to(step)

    def delete(self, step: int) -> None:
        """Delete a step, pinned or not.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        with self._changing:
            self._delete(step, self._index.path(step))

    def set_pinned(self, step: int, *, pinned: bool) -> None:
        """Pin or unpin a step; see `CheckpointManager.pin`."""
        with self._changing:
            (self._index.pin if pinned else self._index.unpin)(step)

    def wait(self) -> None:
        """Wait for background deletions; thread-safe."""
        wait(list(self._running.values()))

    def await_deletion(self, path: Path) -> None:
        """Wait before a save until no deletion is in progress at its path; stores delete there."""
        with self._changing:
            running = self._running.get(path)
            if running is not None:
                wait([running])
            self._tombstones.pop(path, None)  # after a failure the save itself deletes it

    def close(self) -> None:
        """Release the thread; later deletions run at once."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _apply_to(self, step: StepRetention) -> None:
        try:
            path = self._index.path(step.step)
            if self._index.is_pinned(step.step):
                return  # deleted by hand or by another process since the index was read
            if not step.kept:
                self._delete(step.step, path)
                return
            for item in step.dropped_items:
                self._drop(path / item, f"item {item!r} of step {step.step}")
            self._index.add(step.step, path)
        except StepNotFoundError:
            pass  # another process was faster
        except Exception as error:  # noqa: BLE001 - the next step can still be deleted
            self._record_error(f"Deleting step {step.step} failed: {error}", error)

    def _delete(self, step: int, path: Path) -> None:
        tombstone = self._tombstone(path, f"step {step}")
        if tombstone is not None or not path.exists():
            self._index.remove(step)
        self._remove(tombstone)

    def _drop(self, item: Path, what: str) -> None:
        try:
            forget_files(item.parent, f"{item.name}/")
        except OSError as error:
            self._note_failed(what, item, error)
        else:
            self._remove(self._tombstone(item, what))

    def _tombstone(self, path: Path, what: str) -> Path | None:
        try:
            tombstone = self._deleter.tombstone(path)
        except OSError as error:
            self._note_failed(what, path, error)
            return None
        if tombstone is not None:
            self._tombstones[tombstone] = (path, what)
        return tombstone

    def _remove(self, tombstone: Path | None) -> None:
        if tombstone is None:
            return
        if self._pool is None:
            self._remove_now(tombstone)
            return
        running = list(self._running.items())
        self._running = {path: future for path, future in running if not future.done()}
        self._running[tombstone] = self._pool.submit(self._remove_now, tombstone)

    def _remove_now(self, tombstone: Path) -> None:
        found = self._tombstones.pop(tombstone, None)
        if found is None:
            return  # another thread is removing it
        path, what = found
        try:
            self._deleter.remove(tombstone, path)
        except Exception as error:  # noqa: BLE001 - recorded: nobody waits for a result
            self._tombstones[tombstone] = (path, what)
            self._note_failed(what, path, error)

    def _note_failed(self, what: str, path: Path, error: Exception) -> None:
        advice = "Check the permissions there, or delete it yourself."
        self._record_error(f"Deleting {what} ({path}) failed: {error}. {advice}", error)

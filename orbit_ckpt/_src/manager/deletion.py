"""Delete steps so that a crash never leaves a partial step listed."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from pathlib import Path

from orbit_ckpt._src.manager.steps import StepNames, StepParser
from orbit_ckpt._src.storage.atomic import make_directories, remove_abandoned, sync_directory
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    COMMIT_MARKER,
    IN_PROGRESS,
    RUN_METADATA,
    TEMPORARY_SUFFIX,
)
from orbit_ckpt._src.storage.object_commit import (
    is_committed,
    is_half_removed,
    remove_checkpoint,
    withdraw,
)
from orbit_ckpt._src.storage.path import storage_errors
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.text import visible

_DELETED = f"{TEMPORARY_SUFFIX}-deleted-"

_logger = logging.getLogger(__name__)


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
        if todelete_subdir is not None and isinstance(root, StorePath):
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
        if isinstance(directory, StorePath):
            return directory if withdraw(directory) else None
        tombstone = self.root / f"{directory.name}{_DELETED}{time.time_ns()}"
        if self._subdir is not None:
            make_directories(self.root / self._subdir)
            tombstone = self.root / self._subdir / directory.name
            if tombstone.exists():
                tombstone = tombstone.with_name(f"{tombstone.name}-{time.time_ns()}")
        try:
            directory.rename(tombstone)
        except FileNotFoundError:
            return None  # another process was faster
        return tombstone

    def remove(self, tombstone: Path, directory: Path) -> None:
        """Remove a tombstone, unless the run keeps its deleted steps.

        Args:
            tombstone: Result of `tombstone`.
            directory: Where the step was.

        Raises:
            OSError: The storage refused; the removal may be retried.
        """
        if isinstance(tombstone, StorePath):
            if not is_committed(tombstone):
                remove_checkpoint(tombstone)
            return
        for parent in (tombstone.parent, directory.parent):
            if parent.exists():  # the step of an item may have been deleted since
                sync_directory(parent)
        if self._subdir is None:
            _remove(tombstone)
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
            if isinstance(self.root, StorePath):
                self._sweep_store(self.root, everything=everything)
                return
            if not self.root.is_dir():
                return
            for name in sorted(os.listdir(self.root)):
                if _DELETED in name or (everything and TEMPORARY_SUFFIX in name):
                    _logger.info("Removing %s, left behind", visible(str(self.root / name)))
                    with contextlib.suppress(OSError):
                        _remove(self.root / name)
            remove_abandoned(self.root, self._is_step)

    def _sweep_store(self, root: StorePath, *, everything: bool) -> None:
        keys = set(root.keys_below())  # one listing spares a request per step
        names = {key.partition("/")[0] for key in keys if "/" in key}
        for name in sorted(filter(self._is_step, names)):
            path = root / name
            is_foreign = any(f"{name}/{file}" in keys for file in (AGGREGATE, RUN_METADATA))
            unmarked = everything and not is_foreign and f"{name}/{COMMIT_MARKER}" not in keys
            begun = f"{name}/{IN_PROGRESS}" in keys
            if (unmarked and not is_committed(path)) or (begun and is_half_removed(path)):
                _logger.info("Removing %s, left behind", visible(str(path)))
                remove_checkpoint(path)

    def _is_step(self, name: str) -> bool:
        return isinstance(self._names, StepParser) and self._names.parse(name) is not None


def _remove(path: Path) -> None:
    """Remove a directory or a link to one; other processes may be removing it too."""
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
        return
    # from Python 3.12 on this is `onexc`
    while True:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            if path.exists():
                continue  # only part of it was gone
        return

"""Delete steps so that a crash never leaves half of one that is listed."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path

from orbit_ckpt.storage.atomic import remove_abandoned, sync_directory
from orbit_ckpt.storage.layout import TEMPORARY_SUFFIX

_DELETED = f"{TEMPORARY_SUFFIX}-deleted-"

_logger = logging.getLogger(__name__)


class StepDeleter:
    """Deletes directories below a run's directory.

    A directory is first renamed, which takes it out of every listing at once, and then removed.
    What a process that died left of this is removed by `sweep`.
    """

    def __init__(self, root: Path, *, todelete_subdir: str | None = None) -> None:
        """Make a deleter.

        Args:
            root: The run's directory.
            todelete_subdir: Where to put directories instead of removing them, below `root`.
        """
        self._root = root
        self._subdir = todelete_subdir

    def delete(self, directory: Path) -> None:
        """Delete a step, or an item of one.

        Raises:
            OSError: The storage refused; the directory is as it was, or no longer listed.
        """
        if self._subdir is not None:
            self._move(directory, self._root / self._subdir)
            return
        aside = self._root / f"{directory.name}{_DELETED}{time.time_ns()}"
        try:
            directory.rename(aside)
        except FileNotFoundError:
            return  # another process was faster
        sync_directory(directory.parent)
        shutil.rmtree(aside)
        _logger.debug("Deleted %s", directory)

    def sweep(self, *, everything: bool = False) -> None:
        """Remove what processes that died have left: half deletions and saves.

        Args:
            everything: Whether to remove unfinished saves of other writers too, which may still
                go on.
        """
        for name in sorted(os.listdir(self._root)):
            path = self._root / name
            if _DELETED in name:
                _logger.info("Removing %s, whose deletion did not finish", path)
                shutil.rmtree(path, ignore_errors=True)
            elif everything and TEMPORARY_SUFFIX in name and path.is_dir():
                _logger.info("Removing %s, left behind by a save that did not finish", path)
                shutil.rmtree(path, ignore_errors=True)
        remove_abandoned(self._root)

    def _move(self, directory: Path, into: Path) -> None:
        into.mkdir(exist_ok=True)
        free = into / directory.name
        directory.rename(free if not free.exists() else into / f"{free.name}-{time.time_ns()}")
        sync_directory(into)
        sync_directory(directory.parent)

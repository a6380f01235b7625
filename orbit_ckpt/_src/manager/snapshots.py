"""Copies of the step in use, which outlive its deletion from the run."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.runtime.process import process_of_jax
from orbit_ckpt._src.storage.path import PathLike, resolve_local, storage_errors

_SNAPSHOTS = "_SNAPSHOTS"

_logger = logging.getLogger(__name__)


def get_snapshot_dir_from_step_dir(
    step_dir: PathLike, snapshot_dir: PathLike | None = None
) -> Path:
    """Return the path of a step's snapshot.

    Args:
        step_dir: The step's directory.
        snapshot_dir: The directory of the snapshots; `_SNAPSHOTS` in the run by default.
    """
    step = resolve_local(step_dir)
    directory = step.parent / _SNAPSHOTS if snapshot_dir is None else resolve_local(snapshot_dir)
    return directory / step.name


@dataclass(frozen=True, slots=True)
class Snapshots:
    """A directory of snapshots, which the first of several processes creates.

    Files are linked where the file system permits, because a committed step never changes.

    Attributes:
        directory: The directory; None for no snapshots.
        ignore_missing: Whether to continue without a snapshot if the run deletes the step
            meanwhile.
    """

    directory: Path | None
    ignore_missing: bool

    @contextlib.contextmanager
    def hold(self, step: Path) -> Generator[None]:
        """Keep a snapshot of a step until the context ends.

        Raises:
            FileNotFoundError: The step has been deleted, and `ignore_missing` is false.
            StorageError: The snapshot cannot be written or removed.
        """
        if self.directory is None or process_of_jax().index != 0:
            yield
            return
        snapshot = get_snapshot_dir_from_step_dir(step, self.directory)
        self._make(resolve_local(step), snapshot)
        try:
            yield
        finally:
            _remove(snapshot)

    def _make(self, step: Path, snapshot: Path) -> None:
        _remove(snapshot)  # left behind by a killed process
        try:
            with storage_errors(snapshot, "making a snapshot", "Free space or check permissions."):
                snapshot.parent.mkdir(parents=True, exist_ok=True)
                _copy(step, snapshot)
        except StorageError as error:
            missing = error.__cause__
            if not isinstance(missing, FileNotFoundError):
                raise
            _remove(snapshot)
            if not self.ignore_missing:
                raise missing from None
            _logger.warning("No snapshot of %s, which has been deleted meanwhile", step)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir()
        for entry in source.iterdir():
            _copy(entry, target / entry.name)
    elif source.is_symlink() or not _link(source, target):
        shutil.copy2(source, target)


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        return False
    return True


def _remove(snapshot: Path) -> None:
    with storage_errors(snapshot, "removing a snapshot", "Delete it by hand."):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            shutil.rmtree(snapshot)
        snapshot.unlink(missing_ok=True)  # a step that is one file

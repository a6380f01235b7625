"""Directories that appear complete or not at all.

On a local disk a save writes into a temporary directory beside its destination and renames it. In
marker mode, for file systems whose rename is not atomic, it writes in place: the directory counts
as a checkpoint once it holds the commit marker and no longer the in-progress file.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import shutil
import time
from enum import StrEnum
from pathlib import Path

from orbit_ckpt.errors import CheckpointExistsError, StorageError
from orbit_ckpt.storage.layout import COMMIT_MARKER, IN_PROGRESS, TEMPORARY_SUFFIX

_logger = logging.getLogger(__name__)


class AtomicityMode(StrEnum):
    """How a checkpoint becomes visible.

    Attributes:
        AUTO: By renaming; the same as `ATOMIC_RENAME` on local disks.
        COMMIT_FILE: By a marker file written last.
        ATOMIC_RENAME: By renaming a temporary directory.
    """

    AUTO = "auto"
    COMMIT_FILE = "commit_file"
    ATOMIC_RENAME = "atomic_rename"


class AtomicDirectory:
    """A directory being written that will replace or create `final` in one step.

    Use as a context manager: leaving it without `commit` removes everything written. While it is
    open the temporary directory is locked, so that another save can tell it from one left behind
    by a process that died.
    """

    def __init__(
        self,
        final: Path,
        *,
        overwrite: bool = False,
        mode: AtomicityMode = AtomicityMode.AUTO,
        permissions: int | None = None,
    ) -> None:
        self.final = final
        self._overwrite = overwrite
        self._in_place = mode is AtomicityMode.COMMIT_FILE
        self._permissions = permissions
        self._lock: int | None = None
        suffix = f"{TEMPORARY_SUFFIX}-{time.time_ns()}"
        self.path = final if self._in_place else final.with_name(final.name + suffix)

    def __enter__(self) -> AtomicDirectory:
        if self.final.exists() and not self._overwrite:
            raise CheckpointExistsError(
                f"Destination {self.final} already exists. Choose another path, or pass "
                "overwrite=True (force=True) to replace it."
            )
        try:
            self.final.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(self.final)
            if self._in_place and self.final.exists():
                shutil.rmtree(self.final)
            self.path.mkdir()
            if self._permissions is not None:
                self.path.chmod(self._permissions)
            self._lock = _try_lock(self.path)
            if self._in_place:
                write_file(self.path / IN_PROGRESS, b"")
        except OSError as error:
            raise StorageError(
                f"{self.final}: cannot create a directory to save into: {error}. Check that "
                f"{self.final.parent} is a writable directory with space left."
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is None:
            return
        os.close(self._lock)
        self._lock = None
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self) -> None:
        """Make the directory durable and visible under its final name."""
        marker = f"Checkpoint commit was successful to {self.final}"
        write_file(self.path / COMMIT_MARKER, marker.encode())
        _sync_tree(self.path)
        replaced = None
        if self._in_place:
            (self.path / IN_PROGRESS).unlink()
            sync_directory(self.path)
        elif self._overwrite and self.final.exists():
            replaced = _exchange(self.path, self.final)
        else:
            self.path.rename(self.final)
        sync_directory(self.final.parent)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)


def is_in_progress(directory: Path) -> bool:
    """Whether a directory was begun in marker mode and never committed."""
    return (directory / IN_PROGRESS).exists()


def write_file(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Wait until a directory's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        sync_directory(Path(directory))


def _remove_abandoned(final: Path) -> None:
    """Remove temporary directories of saves to `final` whose process is gone."""
    prefix = final.name + TEMPORARY_SUFFIX
    for entry in os.scandir(final.parent):
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        lock = _try_lock(Path(entry.path))
        if lock is None:
            _logger.warning("%s: another process is saving to %s", entry.path, final)
            continue
        _logger.info("Removing %s, left behind by a save that did not finish", entry.path)
        shutil.rmtree(entry.path, ignore_errors=True)
        os.close(lock)


def _try_lock(directory: Path) -> int | None:
    """Return a descriptor that holds the lock of a directory, None if another one does."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        # some network file systems have no locks; every process then owns its own directory
        _logger.debug("%s cannot be locked: %s", directory, error)
    return descriptor


def _exchange(new: Path, final: Path) -> Path:
    """Put `new` in the place of `final`; return where the replaced directory now is."""
    if _rename_exchange(new, final):
        return new
    aside = new.with_name(new.name + "-replaced")
    final.rename(aside)
    new.rename(final)
    return aside


def _rename_exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step, so that a crash leaves one or the other; False if unsupported."""
    at_fdcwd, rename_exchange = -100, 2
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(at_fdcwd, os.fsencode(a), at_fdcwd, os.fsencode(b), rename_exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(b))

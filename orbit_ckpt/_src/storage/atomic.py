"""Directories that appear complete or not at all.

On a local disk a save writes into a temporary directory next to its destination and renames it. In
marker mode, for file systems whose rename is not atomic, it writes in place: the directory counts
as a checkpoint once it holds the commit marker and no longer the in-progress file.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path

from orbit_ckpt._src.errors import CheckpointError, CheckpointExistsError
from orbit_ckpt._src.runtime.process import reset_in_child
from orbit_ckpt._src.storage import system
from orbit_ckpt._src.storage.durable import make_directories, sync_directory, write_file
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    COMMIT_MARKER,
    COMMITTED,
    IN_PROGRESS,
    MANIFEST,
    OCDBT_MANIFEST,
    RECORDED_NOTE,
    STEP_METADATA,
    TEMPORARY_SUFFIX,
    TREE_METADATA,
    is_temporary_name,
)
from orbit_ckpt._src.storage.partial import remove_partial, try_lock, unlock
from orbit_ckpt._src.storage.path import describe_directory, storage_errors
from orbit_ckpt._src.storage.system import exchange as _rename_exchange
from orbit_ckpt._src.text import visible

_OURS = f"{TEMPORARY_SUFFIX}-orbit-"
"""Part of the names of temporary directories that are locked during a save."""

_REPLACED = "-replaced"

_SIGNS = frozenset(
    {STEP_METADATA, TREE_METADATA, OCDBT_MANIFEST, AGGREGATE, COMMIT_MARKER, MANIFEST}
)
"""Any of these makes a directory a checkpoint."""

_JSON_ITEM = "metadata"
"""This file makes a directory an item in releases that write no other mark."""

_REMOVING = "Removing %s, left behind by a save that did not finish"

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
    """A directory in progress that creates or replaces `final` in one step.

    Use as a context manager: leaving it without `commit` removes everything written. The directory
    is locked while open, so that another save can tell it from one that a dead process left behind.
    """

    def __init__(
        self,
        final: Path,
        *,
        overwrite: bool = False,
        mode: AtomicityMode = AtomicityMode.AUTO,
        permissions: int | None = None,
    ) -> None:
        if not final.name:
            raise ValueError(f"{final} cannot be replaced by a checkpoint; give a directory in it.")
        # resolve symlinks: replace the target, keep the link
        self.final = final.resolve() if final.is_symlink() else final
        self._overwrite = overwrite
        self._in_place = mode is AtomicityMode.COMMIT_FILE
        self._permissions = permissions
        self._lock: int | None = None
        reset_in_child(self)
        self.path: Path = self.final if self._in_place else _temporary(self.final)

    def __enter__(self) -> AtomicDirectory:
        advice = f"Check that {self.final.parent} is a writable directory with space left."
        with storage_errors(self.final, "creating a directory to save into", advice):
            make_directories(self.final.parent)
            _remove_abandoned(self.final)
            self._check_free()
            if self._in_place:
                self._clear_place()
            self._make()
        return self

    def _make(self) -> None:
        """Make and lock the directory; retry if it was removed before it was locked."""
        while True:
            self.path.mkdir()
            try:
                self._lock = try_lock(self.path)
                if self._lock is not None:
                    self._prepare()
                    return
            except OSError:
                shutil.rmtree(self.path, ignore_errors=True)
                self._unlock()
                raise
            self.path = self.final if self._in_place else _temporary(self.final)

    def _prepare(self) -> None:
        if self._permissions is not None:
            self.path.chmod(self._permissions)
        if self._in_place:
            write_file(self.path / IN_PROGRESS, b"")
            sync_directory(self.path)

    def __exit__(self, *_: object) -> None:
        if self._lock is None:
            return
        if self._in_place:
            _remove_marked(self.path, ignore_errors=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        self._unlock()  # last: unlocking lets the next save to this path begin

    def after_fork_in_child(self) -> None:
        """Leave the directory to the parent: remove and commit nothing here."""
        self._lock = None  # closed already, as all locks are

    def commit(self) -> None:
        """Make the directory durable and visible under its final name.

        Raises:
            CheckpointError: It is not open in this process.
            CheckpointExistsError: Another writer has created `final` in the meantime.
            OSError: The storage failed; `final` is unchanged.
        """
        if self._lock is None:
            raise not_open_here(self.final)
        write_marker(self.path, self.final)
        _sync_tree(self.path)
        if self._in_place:
            sync_directory(self.final.parent)
            (self.path / IN_PROGRESS).unlink()
            sync_directory(self.path)
            self._unlock()
        else:
            self._rename()

    def _rename(self) -> None:
        exchanged = self._overwrite and self.final.exists()
        old = _exchange(self.path, self.final) if exchanged else self._rename_to_free()
        try:
            sync_directory(self.final.parent)
        except OSError:
            if exchanged:
                _exchange(old, self.final)
            else:
                self.final.rename(self.path)
            raise
        self._unlock()
        if exchanged:
            shutil.rmtree(old, ignore_errors=True)

    def _rename_to_free(self) -> Path:
        try:
            self.path.rename(self.final)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise _exists(self.final) from error
            raise
        return self.path

    def _check_free(self) -> None:
        if not self.final.exists():
            return
        if self._in_place and (is_in_progress(self.final) or _is_empty(self.final)):
            return
        if not self._overwrite:
            raise _exists(self.final)
        if not (_is_replaceable(self.final) or _is_empty(self.final)):
            raise CheckpointExistsError(
                f"{self.final} exists and is no checkpoint: {describe_directory(self.final)}. It "
                "is not overwritten; choose another path, or remove it yourself."
            )

    def _clear_place(self) -> None:
        """Remove what exists where a save in marker mode will write."""
        if not self.final.exists():
            return
        lock = try_lock(self.final)
        if lock is None:
            raise CheckpointExistsError(
                f"{self.final}: another process is saving there. Wait for it, or choose another "
                "path."
            )
        try:
            self._check_free()  # again, because its save may have ended before it was locked
            _remove_marked(self.final)
        finally:
            unlock(lock)

    def _unlock(self) -> None:
        if self._lock is not None:
            unlock(self._lock)
            self._lock = None


def not_open_here(final: Path) -> CheckpointError:
    """Return the error for a forked child that commits its parent's save."""
    return CheckpointError(
        f"{final}: this process ({os.getpid()}) has not begun the save that it would commit; a "
        "process that it was forked from has. Begin and end a save in one process."
    )


def is_in_progress(directory: Path) -> bool:
    """Return whether a directory was begun in marker mode and never committed."""
    return (directory / IN_PROGRESS).exists()


def looks_like_checkpoint(
    directory: Path, entries: Iterable[os.DirEntry[str]] | None = None
) -> bool:
    """Return whether a directory holds the files of a checkpoint or of an item.

    It may be uncommitted: see `is_in_progress` and `is_temporary_name`.

    Args:
        directory: The directory.
        entries: Its entries, if known.
    """
    entries = list(os.scandir(directory) if entries is None else entries)
    if not _SIGNS.isdisjoint(entry.name for entry in entries):
        return True
    return any(
        not is_temporary_name(entry.name)
        and system.is_directory(entry)
        and _is_item(Path(entry.path))
        for entry in entries
    )


def write_marker(directory: Path, final: Path) -> None:
    """Write the file that makes a complete directory a checkpoint or item at `final`."""
    write_file(directory / COMMIT_MARKER, os.fsencode(marker_text(directory, final)))


def marker_text(directory: Path, final: Path) -> str:
    """Return the content of a directory's commit marker; see `write_marker`."""
    note = f"\n{RECORDED_NOTE}" if (directory / MANIFEST).is_file() else ""
    return f"{COMMITTED}{final}{note}"


def _sync_tree(root: Path) -> None:
    for directory, _, _ in os.walk(root):
        sync_directory(Path(directory))


def _exists(final: Path) -> CheckpointExistsError:
    return CheckpointExistsError(
        f"Destination {final} already exists. Choose another path, or pass overwrite=True "
        "(force=True) to replace it."
    )


def _has_sign(directory: Path) -> bool:
    return any((directory / name).exists() for name in _SIGNS)


def _is_replaceable(path: Path) -> bool:
    return path.is_dir() and (is_in_progress(path) or looks_like_checkpoint(path))


def _is_item(directory: Path) -> bool:
    # a checkpoint in a directory makes that a run, not a checkpoint
    is_checkpoint = (directory / STEP_METADATA).exists()
    return not is_checkpoint and (_has_sign(directory) or (directory / _JSON_ITEM).is_file())


def _is_empty(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove_abandoned(root: Path, is_destination: Callable[[str], bool]) -> None:
    """Remove what dead processes left of saves into a directory.

    Saves in progress are locked and stay, as does everything on file systems without locks.

    Args:
        root: The directory.
        is_destination: Returns whether saves make directories of a name. In marker mode one is
            empty at first.
    """

    def is_left(path: Path) -> bool:
        return is_in_progress(path) or (is_destination(path.name) and _is_empty(path))

    with os.scandir(root) as entries:
        found = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    for name in found:
        path = root / name
        if _OURS in name:
            _remove_unlocked(path, root / name.partition(_OURS)[0], needs_lock=True)
        elif is_left(path):
            lock = try_lock(path, needs_lock=True)
            if lock is None:
                continue
            if is_left(path):  # else its save ended before it was locked
                _logger.info(_REMOVING, visible(str(path)))
                _remove_marked(path, ignore_errors=True)
            unlock(lock)


def _remove_abandoned(final: Path) -> None:
    """Remove temporary directories that dead processes left of saves to `final`."""
    prefix = final.name + TEMPORARY_SUFFIX
    names = os.listdir(final.parent)  # faster than scandir for tens of thousands of entries
    for path in [final.parent / n for n in names if n.startswith(prefix)]:
        if not path.is_symlink() and path.is_dir():
            _remove_unlocked(path, final, needs_lock=False)
    remove_partial(final, names)


def _remove_unlocked(path: Path, final: Path, *, needs_lock: bool) -> None:
    lock = try_lock(path, needs_lock=needs_lock)
    if lock is None:
        _logger.debug("%s: a save to %s is in progress", path, final)
        return
    try:
        if path.name.endswith(_REPLACED) and not final.exists():
            path.rename(final)  # a save died between the two renames of `_exchange`
        else:
            _logger.info(_REMOVING, visible(str(path)))
            shutil.rmtree(path, ignore_errors=True)
    finally:
        unlock(lock)


def _remove_marked(path: Path, *, ignore_errors: bool = False) -> None:
    """Remove a directory, marked as unfinished until it is gone: it never looks complete."""
    with contextlib.suppress(OSError) if ignore_errors else contextlib.nullcontext():
        if not (is_in_progress(path) or _is_empty(path)):
            write_file(path / IN_PROGRESS, b"")
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=ignore_errors)
            elif entry.name != IN_PROGRESS:
                os.unlink(entry.path)
    shutil.rmtree(path, ignore_errors=ignore_errors)


def _temporary(final: Path) -> Path:
    return final.with_name(f"{final.name}{_OURS}{time.time_ns()}")


def _exchange(new: Path, final: Path) -> Path:
    """Put `new` in the place of `final`; return the new path of the replaced directory."""
    if _rename_exchange(new, final):
        return new
    aside = new.with_name(new.name + _REPLACED)
    final.rename(aside)
    new.rename(final)
    return aside

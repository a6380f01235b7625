"""Lock directories, and find files and directories of writers whose process died.

A save and a conversion lock what they write, so that another process can tell a write in progress
from leftovers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

from orbit_ckpt._src.runtime.process import reset_in_child
from orbit_ckpt._src.storage import system
from orbit_ckpt._src.storage.layout import partial_name, partial_of

logger = logging.getLogger(__name__)


class _HeldLocks:
    """Descriptors of locks that this process holds or is acquiring."""

    def __init__(self) -> None:
        self.descriptors: set[int] = set()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Close them, or the child would keep the locks of a parent that dies.

        Unlocking instead would unlock them for the parent.
        """
        while self.descriptors:
            system.close(self.descriptors.pop())


_held = _HeldLocks()
"""Process-wide, as descriptors are."""


def try_lock(directory: Path, *, needs_lock: bool = False) -> int | None:
    """Lock a directory and return the descriptor that holds the lock.

    None if another descriptor holds it, or if the directory was removed before it was locked.

    Args:
        directory: The directory.
        needs_lock: Whether to return None also where the file system has no locks.
    """
    try:
        descriptor = system.open_directory(directory)
    except FileNotFoundError:
        return None
    _held.descriptors.add(descriptor)
    try:
        system.lock(descriptor)
    except BlockingIOError:
        _close(descriptor)
        return None
    except OSError as error:
        # some network file systems have no locks; each process then owns its directory
        logger.debug("%s cannot be locked: %s", directory, error)
        if needs_lock:
            _close(descriptor)
            return None
    if not _is_at(descriptor, directory):
        unlock(descriptor)
        return None
    return descriptor


def unlock(descriptor: int) -> None:
    """Release a lock and close its descriptor."""
    _held.descriptors.discard(descriptor)
    system.unlock(descriptor)


def _close(descriptor: int) -> None:
    _held.descriptors.discard(descriptor)
    system.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    if descriptor == system.NO_DESCRIPTOR:
        return path.is_dir()
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def partial_path(final: Path, make: Callable[[Path], None]) -> Generator[Path]:
    """Make and lock a path to be renamed to `final`; remove it if it remains after the block.

    Leftovers of earlier writers of the same path are removed first.

    Args:
        final: The path.
        make: Makes an empty file or directory.
    """
    remove_partial(final, os.listdir(final.parent))
    while True:
        temporary = final.with_name(partial_name(final.name, os.urandom(4).hex()))
        make(temporary)
        lock = try_lock(temporary)
        if lock is not None:
            break  # else another process removed it before it was locked
    try:
        yield temporary
    finally:
        remove_path(temporary)
        unlock(lock)


def remove_partial(final: Path, names: Iterable[str]) -> None:
    """Remove leftovers of a path's writers whose process is gone.

    Args:
        final: The path.
        names: The entries of its directory, perhaps tens of thousands of steps.
    """
    prefix = f".{final.name}."
    found = [name for name in names if name.startswith(prefix)]
    for path in sorted(final.with_name(name) for name in found if partial_of(name) == final.name):
        lock = None if path.is_symlink() else try_lock(path, needs_lock=True)
        if lock is not None:
            logger.info("Removing %s, left behind by a conversion that did not finish", path)
            remove_path(path)
            unlock(lock)


def remove_path(path: Path) -> None:
    """Remove a file or a directory, if it exists and can be removed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        path.unlink()

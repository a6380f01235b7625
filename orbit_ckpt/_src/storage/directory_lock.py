"""Locks of directories, which tell a save that goes on from one whose process has died."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from orbit_ckpt._src.runtime.forking import reset_in_child
from orbit_ckpt._src.storage import system

_logger = logging.getLogger(__name__)


class _HeldLocks:
    """The descriptors of locks that this process holds, or is about to."""

    def __init__(self) -> None:
        self.descriptors: set[int] = set()
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Close them, or the child would hold the locks of a parent that has died.

        They are not unlocked: that would unlock them for the parent.
        """
        while self.descriptors:
            system.close(self.descriptors.pop())


_held = _HeldLocks()
"""Process-wide, as descriptors are."""


def try_lock(directory: Path, *, needs_lock: bool = False) -> int | None:
    """Return a descriptor that holds the lock of a directory.

    None if another one does, or if the directory was removed before it was locked.

    Args:
        directory: The directory.
        needs_lock: Whether to return None too where the file system has no locks.
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
        # some network file systems have no locks; every process then owns its own directory
        _logger.debug("%s cannot be locked: %s", directory, error)
        if needs_lock:
            _close(descriptor)
            return None
    if not _is_at(descriptor, directory):
        unlock(descriptor)
        return None
    return descriptor


def unlock(descriptor: int) -> None:
    """Give up a lock and close its descriptor."""
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

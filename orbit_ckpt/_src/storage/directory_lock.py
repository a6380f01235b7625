"""Directory locks, which distinguish a save in progress from one whose process died."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from orbit_ckpt._src.runtime.forking import reset_in_child
from orbit_ckpt._src.storage import system

_logger = logging.getLogger(__name__)


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
        _logger.debug("%s cannot be locked: %s", directory, error)
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

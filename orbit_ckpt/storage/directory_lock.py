"""Locks of directories, which tell a save that goes on from one whose process has died."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path

_logger = logging.getLogger(__name__)


def try_lock(directory: Path, *, needs_lock: bool = False) -> int | None:
    """Return a descriptor that holds the lock of a directory.

    None if another one does, or if the directory was removed before it was locked.

    Args:
        directory: The directory.
        needs_lock: Whether to return None too where the file system has no locks.
    """
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        # some network file systems have no locks; every process then owns its own directory
        _logger.debug("%s cannot be locked: %s", directory, error)
        if needs_lock:
            os.close(descriptor)
            return None
    if not _is_at(descriptor, directory):
        unlock(descriptor)
        return None
    return descriptor


def unlock(descriptor: int) -> None:
    """Give up a lock and close its descriptor.

    Closing alone would not do: forked processes have descriptors of the same lock.
    """
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

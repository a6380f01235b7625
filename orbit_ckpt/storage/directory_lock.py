"""Locks of directories, which tell a save that goes on from one whose process has died."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from orbit_ckpt.storage import system

_logger = logging.getLogger(__name__)


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
    try:
        system.lock(descriptor)
    except BlockingIOError:
        system.close(descriptor)
        return None
    except OSError as error:
        # some network file systems have no locks; every process then owns its own directory
        _logger.debug("%s cannot be locked: %s", directory, error)
        if needs_lock:
            system.close(descriptor)
            return None
    if not _is_at(descriptor, directory):
        system.unlock(descriptor)
        return None
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    if descriptor == system.NO_DESCRIPTOR:
        return path.is_dir()
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False

"""Reads of directories that other processes may replace meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from orbit_ckpt._src.errors import CheckpointError, StorageError
from orbit_ckpt._src.storage.fingerprint import checkpoint_fingerprint
from orbit_ckpt._src.storage.path import storage_errors
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.storage.store_view import StoreView, viewing

T = TypeVar("T")

_MAX_ATTEMPTS = 5


def read_consistently(paths: Sequence[Path], read: Callable[..., T]) -> T:
    """Read from directories; start over if another process replaces one during the read.

    A reader opens many files one after the other and could otherwise mix two checkpoints.

    Args:
        paths: The directories.
        read: Called with all of them.

    Raises:
        StorageError: The storage failed, or a directory is replaced faster than it can be read.
    """
    where = " and ".join(map(str, paths))
    advice = "Check that the checkpoint is complete and readable."
    for attempt in range(_MAX_ATTEMPTS):
        with viewing(paths, anew=attempt > 0) as views:
            before = [checkpoint_fingerprint(path) for path in paths]
            try:
                with storage_errors(where, "reading", advice):
                    result = read(*paths)
            except CheckpointError:
                if not _has_changed(paths, before, views):
                    raise
            else:
                if not _has_changed(paths, before, views):
                    return result
    raise StorageError(
        f"{where}: other processes replaced the checkpoint {_MAX_ATTEMPTS} times while it was "
        "being read. Read a checkpoint that is not being overwritten."
    )


def _has_changed(
    paths: Sequence[Path], before: Sequence[object], views: Iterable[StoreView]
) -> bool:
    """Return whether another checkpoint has replaced one of some since they were looked at."""
    views = iter(views)
    for path, was in zip(paths, before, strict=True):
        if isinstance(path, StorePath):
            if not next(views).is_unchanged(path):
                return True
        elif checkpoint_fingerprint(path) != was:
            return True
    return False

"""Fingerprints of files and checkpoints, which change when another one replaces them.

A lazy array is read long after the checkpoint's index. A checkpoint that has replaced the first one
meanwhile may have files of the same names, with correct checksums. A read that meets a replacement
starts again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.errors import CheckpointError, CheckpointNotFoundError
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    MANIFEST,
    OCDBT_MANIFEST,
    TREE_METADATA,
)
from orbit_ckpt._src.storage.path import storage_errors
from orbit_ckpt._src.storage.store_path import StorePath, map_requests
from orbit_ckpt._src.storage.store_view import commit_markers

Fingerprint = tuple[int, ...] | bytes

_WRITTEN_ONCE = (OCDBT_MANIFEST, MANIFEST, TREE_METADATA, AGGREGATE)
"""Every save writes some of these anew, and nothing changes them later.

A store identifies objects by their contents; the first of these contains a random number."""

_ADVICE = "Check that the checkpoint is complete and readable."


class OpenedDirectory(Struct, frozen=True):
    """The state of a checkpoint's directory when it was opened.

    Attributes:
        path: The directory.
        file: The file that identifies it.
        fingerprint: Distinguishes this file from a replacement.
    """

    path: Path
    file: Path
    fingerprint: Fingerprint | None

    @classmethod
    def now(cls, path: Path, file: Path | None = None) -> OpenedDirectory:
        """Record the current state of a directory.

        Args:
            path: The directory, or a checkpoint that is a single file.
            file: The file that identifies it; None for one of our own format's.
        """
        if file is not None:
            return cls(path, file, _fingerprint_if_any(file))
        files = (path / name for name in _WRITTEN_ONCE)
        file = next((file for file in files if _fingerprint_if_any(file) is not None), path)
        return cls(path, file, _fingerprint_if_any(file))

    @contextlib.contextmanager
    def reading(self, where: str) -> Generator[None]:
        """Ensure that all reads in a `with` block were of this directory.

        One look after them is enough, a directory that was replaced never comes back.

        Args:
            where: What is read, for messages.

        Raises:
            CheckpointNotFoundError: The checkpoint has been deleted, moved or replaced.
            StorageError: The storage refused a read.
        """
        try:
            with storage_errors(self.path, f"reading {where}", _ADVICE):
                yield
        except CheckpointError:
            self._check(where)  # more specific than a missing file
            raise
        self._check(where)

    def _check(self, where: str) -> None:
        found = _fingerprint_if_any(self.file)
        if found == self.fingerprint:
            return
        what = "deleted or moved" if found is None else "replaced by another one"
        raise CheckpointNotFoundError(
            f"{where} cannot be read any more: the checkpoint at {self.path} was {what} after it "
            "was opened. Load it again; keep checkpoints until all that is read lazily has been "
            "read."
        )


def checkpoint_fingerprint(path: Path) -> object:
    """Return a value that changes when another checkpoint replaces this one; None without one."""
    if isinstance(path, StorePath):
        found = map_requests(StorePath.generation, commit_markers(path))
        return found if any(found) else None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def fingerprint_of(file: Path) -> Fingerprint:
    """Return a value that distinguishes a file from any replacement.

    Raises:
        OSError: The file does not exist, or cannot be reached.
    """
    if isinstance(file, StorePath):
        generation = file.generation()
        if generation is None:
            raise FileNotFoundError(2, "No such object", str(file))
        return generation
    return fingerprint_from(os.stat(file))


def fingerprint_from(status: os.stat_result) -> Fingerprint:
    """Return what `stamp_of` does, of a local file whose status is known."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _fingerprint_if_any(file: Path) -> Fingerprint | None:
    try:
        return fingerprint_of(file)
    except CheckpointError:  # the store says nothing of the file
        raise
    except OSError:
        return None

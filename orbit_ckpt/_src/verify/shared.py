"""Chunks in files that steps of a run share, which need to be checked only once."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.layout import Extent, Value

_FileKey = tuple[int, int, int, int]
"""Device, inode, size and time of the last change: a number may be used again for another file."""

ChunkKey = tuple[_FileKey, int, int, int | None, tuple[int, ...], str]
"""File, offset, length and checksum of a chunk; its shape and dtype."""


class CheckedChunks:
    """The intact chunks in files with several names.

    Each is found by its place, so that the step that is checked later does not read it again. A
    damaged one is not kept: each step that has it reports it.
    """

    def __init__(self) -> None:
        self._intact: set[ChunkKey] = set()
        self._files: dict[str, _FileKey | None] = {}

    def key(self, read: ArrayRead, value: Value) -> ChunkKey | None:
        """Return what identifies a chunk; None if no other step can have it."""
        if not isinstance(value, Extent):
            return None
        if value.file not in self._files:
            self._files[value.file] = linked_file(value.file)
        file = self._files[value.file]
        if file is None:
            return None
        shape, dtype = read.layout.chunk_shape, str(read.layout.dtype)
        return (file, value.offset, value.length, value.checksum, shape, dtype)

    def is_intact(self, key: ChunkKey) -> bool:
        """Return whether a chunk has been checked, and is intact."""
        return key in self._intact

    def add(self, keys: Iterable[ChunkKey]) -> None:
        """Add chunks that have been read to their ends, and are intact."""
        self._intact.update(keys)

    def begin(self) -> None:
        """Forget which files have several names, since steps may have changed."""
        self._files.clear()


@dataclass(frozen=True, slots=True)
class SharedDamage:
    """A damaged file that several checkpoints have.

    Attributes:
        file: One of its names.
        checkpoints: The checkpoints that need what is damaged in it.
    """

    file: str
    checkpoints: tuple[Path, ...]

    def __str__(self) -> str:
        names = ", ".join(path.name for path in self.checkpoints)
        return f"{self.file}: the same file in {names}"


def find_shared(damaged: Iterable[tuple[Path, str | None]]) -> tuple[SharedDamage, ...]:
    """Return the files that damage several checkpoints.

    Args:
        damaged: Checkpoints, each with the file of a damage in it.
    """
    holders: defaultdict[_FileKey, dict[Path, str]] = defaultdict(dict)
    for checkpoint, file in damaged:
        key = None if file is None else linked_file(file)
        if key is not None and file is not None:
            holders[key].setdefault(checkpoint, file)
    return tuple(
        SharedDamage(next(iter(files.values())), tuple(files))
        for files in holders.values()
        if len(files) > 1
    )


def linked_file(file: str) -> _FileKey | None:
    """Return what identifies a local file that has several names; None for any other."""
    try:
        found = os.lstat(file)
    except (OSError, ValueError):
        return None
    if found.st_nlink < 2:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

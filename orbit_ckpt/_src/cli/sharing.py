"""The bytes of steps on a local disk, and those that they share by hard links.

A step that was saved incrementally holds links to the files of an earlier one.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.cli.runs import ListedStep
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.text import human_bytes

FileKey = tuple[int, int]
"""Device and inode of a file."""


class StoredFiles(Struct, frozen=True):
    """The files of a step.

    Attributes:
        nbytes: Size of all.
        count: Their number.
        alone: Size of those that have one name only.
        linked: Sizes of the others.
    """

    nbytes: int
    count: int
    alone: int
    linked: dict[FileKey, int]


class Share(Struct, frozen=True):
    """What a step takes of the disk.

    Attributes:
        nbytes: Size of its files.
        new: Size of those that no earlier step has.
        shared: Size of those that another step has too, earlier or later.
        files: Number of its files.
    """

    nbytes: int
    new: int
    shared: int
    files: int


def scan_files(path: Path, entries: Iterable[os.DirEntry[str]] = ()) -> StoredFiles:
    """Return the sizes of a local file, or of all files below a directory.

    Args:
        path: The file or directory.
        entries: What the directory holds, if that is known.
    """
    nbytes = count = alone = 0
    linked: dict[FileKey, int] = {}
    for found in _stats(path, entries):
        nbytes += found.st_size
        count += 1
        if found.st_nlink > 1:
            linked[found.st_dev, found.st_ino] = found.st_size
        else:
            alone += found.st_size
    return StoredFiles(nbytes, count, alone, linked)


def compare_files(steps: Sequence[StoredFiles]) -> list[Share]:
    """Return what each of several steps, ascending, takes of the disk.

    The sum of their new bytes is the size of all on the disk, each file counted once.
    """
    holders = Counter(key for step in steps for key in step.linked)
    seen: set[FileKey] = set()
    found: list[Share] = []
    for step in steps:
        new = sum(size for key, size in step.linked.items() if key not in seen)
        shared = sum(size for key, size in step.linked.items() if holders[key] > 1)
        seen.update(step.linked)
        found.append(Share(step.nbytes, step.alone + new, shared, step.count))
    return found


def shares_of(entries: Sequence[ListedStep]) -> list[Share] | None:
    """Return what each step of a run takes of the disk; None in a store."""
    if not all(directory_of(entry.path).has_local_files for entry in entries[:1]):
        return None
    return compare_files([scan_files(entry.path, entry.entries) for entry in entries])


def describe_sharing(path: Path, run: Callable[[], Sequence[ListedStep]]) -> str | None:
    """Return in words what a step shares with others; None if nothing.

    Args:
        path: The step.
        run: Returns the steps of its run; called only if it may share any file.
    """
    files = scan_files(path)
    if not files.linked:
        return None
    held = {
        other.info.step: scan_files(other.path, other.entries).linked.keys() & files.linked
        for other in run()
        if other.path != path
    }
    shared = set[FileKey]().union(*held.values())
    if not shared:
        return None
    nbytes = sum(files.linked[key] for key in shared)
    steps = [str(step) for step, keys in held.items() if keys]
    of = f"{len(steps)} other steps" if len(steps) > _MOST_NAMED else f"step {', '.join(steps)}"
    return f"{human_bytes(files.nbytes)} stored, {human_bytes(nbytes)} of it shared with {of}"


_MOST_NAMED = 5


def _stats(path: Path, entries: Iterable[os.DirEntry[str]]) -> Iterator[os.stat_result]:
    if not entries and not path.is_dir():
        yield path.lstat()
        return
    pending = [entries or _scan(path)]
    while pending:
        for entry in pending.pop():
            # a save in progress, or a deletion, may remove it meanwhile
            with contextlib.suppress(FileNotFoundError):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(_scan(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False)


def _scan(path: str | Path) -> list[os.DirEntry[str]]:
    with os.scandir(os.fspath(path)) as found:
        return list(found)

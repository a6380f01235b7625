"""Directories on a local disk."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path

from typing_extensions import override

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import (
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    UnsafePathError,
)
from orbit_ckpt._src.storage.atomic import (
    AtomicDirectory,
    AtomicityMode,
    is_in_progress,
    remove_abandoned,
)
from orbit_ckpt._src.storage.directory import Directory, Entry
from orbit_ckpt._src.storage.durable import make_directories, sync_directory, sync_files, write_file
from orbit_ckpt._src.storage.fingerprint import Fingerprint, fingerprint_of
from orbit_ckpt._src.storage.inner_path import InnerFiles, sizes_below
from orbit_ckpt._src.storage.layout import (
    COMMIT_MARKER,
    TEMPORARY_SUFFIX,
    is_temporary_name,
    partial_of,
)
from orbit_ckpt._src.storage.path import explain_no_checkpoint
from orbit_ckpt._src.storage.store_path import read_blocks
from orbit_ckpt._src.storage.system import is_directory
from orbit_ckpt._src.text import visible

_TOMBSTONE = f"{TEMPORARY_SUFFIX}-deleted-"
"""Part of the names of directories that are being deleted."""

_logger = logging.getLogger(__name__)


class LocalDirectory(Directory):
    """A directory on a local disk."""

    has_rename = True
    has_local_files = True
    has_markers = False
    knows_sizes = True

    def __init__(self, path: Path) -> None:
        self.path = path

    @override
    def is_outage(self, error: BaseException) -> bool:
        return False

    @override
    def entries(self) -> list[Entry]:
        with os.scandir(self.path) as entries:
            return list(entries)

    @override
    def subdirectories(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return sorted(entry.name for entry in entries if is_directory(entry))

    @override
    def subdirectories_with(self, file: str, names: Iterable[str]) -> list[str]:
        return [name for name in names if os.path.isfile(f"{self.path}/{name}/{file}")]

    @override
    def find_in_children(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        with os.scandir(self.path) as entries:  # of a run, perhaps tens of thousands
            below = [entry for entry in entries if is_directory(entry)]
        for name in names:
            yield from ((at.name, name) for at in below if os.path.isfile(f"{at.path}/{name}"))

    @override
    def find_below(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        for at, below, files in os.walk(self.path):
            below.sort()
            folder = Path(at).relative_to(self.path).as_posix()
            if folder != ".":
                yield from ((folder, name) for name in names if name in files)

    @override
    def files_below(self) -> list[str]:
        found = (Path(at, name) for at, _, names in os.walk(self.path) for name in names)
        return sorted(file.relative_to(self.path).as_posix() for file in found)

    @override
    def files_to_copy(self, *, allow_linked_files: bool) -> dict[str, int]:
        files = InnerFiles(self.path, allow_linked_files=allow_linked_files)
        return {n: size for n, size in files.walk(skip=is_temporary_name) if n != COMMIT_MARKER}

    @override
    def nbytes(self) -> int | None:
        if not self.path.is_dir():
            return self.path.stat().st_size
        with os.scandir(self.path) as entries:
            return entries_bytes(entries)

    @override
    def modified_ns(self) -> int | None:
        return self.path.stat().st_mtime_ns

    @override
    def fingerprints(self) -> dict[Path, Fingerprint] | None:
        return {file: fingerprint_of(file) for file in self.path.rglob("*") if file.is_file()}

    @override
    def follows(self, name: str) -> bool:
        return InnerFiles(self.path).is_followed(name)

    @override
    def check_links(self, names: Iterable[str], *, allow_linked_files: bool) -> None:
        files = InnerFiles(self.path, allow_linked_files=allow_linked_files)
        for name in names:
            files.status(name)

    @override
    def refused_files(self, *, allow_linked_files: bool) -> list[UnsafePathError]:
        return sizes_below(self.path, allow_linked_files=allow_linked_files)[1]

    @override
    def is_unfinished(self) -> bool:
        return is_temporary_name(self.path.name) or is_in_progress(self.path)

    @override
    def is_committed(self) -> bool:
        return not self.is_unfinished()

    @override
    def check_complete(self, *, needs_marker: bool = False) -> None:
        path = self.path
        unmarked = needs_marker and not (path / COMMIT_MARKER).exists()
        if is_temporary_name(path.name) or (path.is_dir() and (unmarked or is_in_progress(path))):
            raise IncompleteCheckpointError(
                f"Found incomplete checkpoint at {path}: the save that wrote it did not finish. "
                "Restore an earlier one; this directory can be deleted."
            )
        if not path.is_dir():
            raise CheckpointNotFoundError(
                explain_no_checkpoint(path, "Give the directory that was saved to.")
            )

    @override
    def unfinished_below(
        self, known: Container[str], is_temporary: Callable[[str], bool]
    ) -> list[str]:
        with os.scandir(self.path) as entries:
            others = [(e.name, is_directory(e)) for e in entries if e.name not in known]
        return sorted(
            name
            for name, is_dir in others
            if is_temporary(name)
            or partial_of(name) is not None
            or (is_dir and is_in_progress(self.path / name))
        )

    @override
    def begin_save(
        self, *, overwrite: bool, mode: AtomicityMode, permissions: int | None = None
    ) -> AtomicDirectory:
        return AtomicDirectory(self.path, overwrite=overwrite, mode=mode, permissions=permissions)

    @override
    def create_document(self, folder: str, name: str, data: bytes) -> None:
        directory = self.path / folder
        directory.mkdir(exist_ok=True)
        # never committed; if this process dies, cleanup removes it like an unfinished save
        with AtomicDirectory(self.path / name) as scratch:
            write_file(scratch.path / name, data)
            (scratch.path / name).rename(directory / name)
        sync_directory(directory)
        sync_directory(self.path)

    @override
    def copy_file(self, source: Path, name: str, advance: Callable[[int], object]) -> int:
        checksum, file = 0, self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as writing:
            for block in read_blocks(source):
                writing.write(block)
                checksum = crc32c(block, checksum)
                advance(len(block))
        return checksum

    @override
    def sync_files(self) -> None:
        sync_files(self.path)

    @override
    def hide(self, root: Path, subdirectory: str | None) -> Path | None:
        tombstone = root / f"{self.path.name}{_TOMBSTONE}{time.time_ns()}"
        if subdirectory is not None:
            make_directories(root / subdirectory)
            tombstone = root / subdirectory / self.path.name
            if tombstone.exists():
                tombstone = tombstone.with_name(f"{tombstone.name}-{time.time_ns()}")
        try:
            self.path.rename(tombstone)
        except FileNotFoundError:
            return None  # another process was faster
        return tombstone

    @override
    def sync_hidden(self, original: Path) -> None:
        for parent in (self.path.parent, original.parent):
            if parent.exists():  # the step of an item may have been deleted since
                sync_directory(parent)

    @override
    def delete_hidden(self) -> None:
        path = self.path
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)
            return
        # from Python 3.12 on this is `onexc`
        while True:
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                if path.exists():
                    continue  # only part of it was gone
            return

    @override
    def sweep(self, is_step: Callable[[str], bool], *, everything: bool) -> None:
        if not self.path.is_dir():
            return
        for name in sorted(os.listdir(self.path)):
            if _TOMBSTONE in name or (everything and TEMPORARY_SUFFIX in name):
                _logger.info("Removing %s, left behind", visible(str(self.path / name)))
                with contextlib.suppress(OSError):
                    LocalDirectory(self.path / name).delete_hidden()
        remove_abandoned(self.path, is_step)


def entries_bytes(entries: Iterable[os.DirEntry[str]]) -> int:
    """Return the total size of all files among a local directory's entries and below them."""
    total = 0
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            with os.scandir(entry.path) as below:
                total += entries_bytes(below)
        else:
            total += entry.stat(follow_symlinks=False).st_size
    return total

"""The command that shows where the bytes of a run, or of a checkpoint, are on the disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.runs import ListedStep, list_run, unfinished_saves
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import select_step
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.text import human_bytes


class _Usage(Struct, frozen=True):
    """The bytes of one entry.

    Attributes:
        name: Its name in the directory.
        nbytes: Size of its files.
        shared: Size of those that another entry holds too, by hard links.
        files: Number of its files.
        is_unfinished: Whether it is a save in progress or an abandoned one.
    """

    name: str
    nbytes: int
    shared: int
    files: int
    is_unfinished: bool = False

    @property
    def fields(self) -> dict[str, object]:
        return {
            "name": self.name,
            "bytes": self.nbytes,
            "shared": self.shared,
            "files": self.files,
            "unfinished": self.is_unfinished,
        }


def du(path: str, as_json: bool) -> None:
    """Show the sizes of the steps of a run, or of the parts of a checkpoint."""
    root = select_step(path)
    if not directory_of(root).has_local_files:
        raise ValueError(f"{root} is in an object store, which reports no sizes.")
    located = locate(root)
    steps = list_run(located)
    names = [p.name for p in sorted(root.iterdir())] if steps is None and root.is_dir() else []
    left = unfinished_saves(root, steps) if steps else []
    entries = _measure(root, steps, left, names)
    total = sum(entry.nbytes for entry in entries)
    unique = _unique_bytes(root, entries)
    if as_json:
        rows = [entry.fields for entry in entries]
        print_json("du", path=root, entries=rows, bytes=total, disk_bytes=unique)
        return
    rows = [
        [
            entry.name,
            human_bytes(entry.nbytes),
            human_bytes(entry.shared) if entry.shared else "",
            str(entry.files),
            "unfinished" if entry.is_unfinished else "",
        ]
        for entry in entries
    ]
    styles = {i: "yellow" for i, entry in enumerate(entries) if entry.is_unfinished}
    header = ["part" if steps is None else "step", "size", "shared", "files", "state"]
    print_table(header, rows, right={"step", "size", "shared", "files"}, styles=styles)
    saved = f", {human_bytes(total - unique)} of it saved by sharing" if unique < total else ""
    echo(f"{human_bytes(total)}{saved}")


def _measure(
    root: Path, steps: Sequence[ListedStep] | None, left: Sequence[str], names: Sequence[str]
) -> list[_Usage]:
    chosen = [step.name for step in steps] if steps is not None else list(names) or [""]
    found = {name: list(_files(root / name)) for name in (*chosen, *left)}
    holders = Counter(key for files in found.values() for key in {key for key, _ in files})
    return [
        _Usage(
            name or root.name,
            sum(size for _, size in files),
            sum(size for key, size in files if holders[key] > 1),
            len(files),
            name in left,
        )
        for name, files in found.items()
    ]


def _unique_bytes(root: Path, entries: Sequence[_Usage]) -> int:
    """Return the size of all files, each counted once however many names it has."""
    if not any(entry.shared for entry in entries):
        return sum(entry.nbytes for entry in entries)
    return sum({key: n for entry in entries for key, n in _files(root / entry.name)}.values())


_FileKey = tuple[int, int]
"""Device and inode of a file."""


def _files(path: Path) -> Iterator[tuple[_FileKey, int]]:
    """Yield the files below a directory, or a file itself, with their sizes."""
    if not path.is_dir():
        found = path.lstat()
        yield (found.st_dev, found.st_ino), found.st_size
        return
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                found = os.lstat(os.path.join(folder, name))
            except FileNotFoundError:  # a save in progress, or a deletion
                continue
            yield (found.st_dev, found.st_ino), found.st_size

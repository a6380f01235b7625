"""The command that shows where the bytes of a run, or of a checkpoint, are on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.runs import ListedStep, list_run, unfinished_saves
from orbit_ckpt._src.cli.sharing import Share, compare_files, scan_files
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import select_step
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.text import human_bytes


class _Usage(Struct, frozen=True):
    """The bytes of one entry.

    Attributes:
        name: Its name in the directory.
        share: What it takes of the disk.
        is_unfinished: Whether it is a save in progress or an abandoned one.
    """

    name: str
    share: Share
    is_unfinished: bool = False

    @property
    def fields(self) -> dict[str, object]:
        return {
            "name": self.name,
            "bytes": self.share.nbytes,
            "new": self.share.new,
            "shared": self.share.shared,
            "files": self.share.files,
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
    total = sum(entry.share.nbytes for entry in entries)
    unique = sum(entry.share.new for entry in entries)
    if as_json:
        rows = [entry.fields for entry in entries]
        print_json("du", path=root, entries=rows, bytes=total, disk_bytes=unique)
        return
    has_shared = any(entry.share.shared for entry in entries)
    rows = [
        [
            entry.name,
            human_bytes(entry.share.nbytes),
            human_bytes(entry.share.new) if has_shared else "",
            human_bytes(entry.share.shared) if has_shared else "",
            str(entry.share.files),
            "unfinished" if entry.is_unfinished else "",
        ]
        for entry in entries
    ]
    styles = {i: "yellow" for i, entry in enumerate(entries) if entry.is_unfinished}
    header = ["part" if steps is None else "step", "size", "new", "shared", "files", "state"]
    print_table(header, rows, right={"step", "size", "new", "shared", "files"}, styles=styles)
    if unique < total:
        saved = human_bytes(total - unique)
        echo(f"{human_bytes(unique)} on the disk, {saved} less than without sharing")
    else:
        echo(human_bytes(total))


def _measure(
    root: Path, steps: Sequence[ListedStep] | None, left: Sequence[str], names: Sequence[str]
) -> list[_Usage]:
    chosen = [step.name for step in steps] if steps is not None else list(names) or [""]
    found = [*chosen, *left]
    shares = compare_files([scan_files(root / name) for name in found])
    return [
        _Usage(name or root.name, share, name in left)
        for name, share in zip(found, shares, strict=True)
    ]

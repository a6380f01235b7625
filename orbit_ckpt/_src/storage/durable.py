"""Write files and directories so that they survive a crash of the machine."""

from __future__ import annotations

import os
from pathlib import Path

from orbit_ckpt._src.storage import system
from orbit_ckpt._src.storage.layout import TEMPORARY_SUFFIX
from orbit_ckpt._src.storage.store_path import StorePath


def write_file(path: Path, data: bytes) -> None:
    """Write a file and wait until it is durable."""
    if isinstance(path, StorePath):
        path.write_bytes(data)
        return
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes, temporary: Path | None = None) -> None:
    """Replace a file in one step.

    Args:
        path: The file.
        data: Its new contents.
        temporary: The file to write them to first, in the same directory.
    """
    if isinstance(path, StorePath):
        path.write_bytes(data)
        return
    new = temporary or path.with_name(f"{path.name}{TEMPORARY_SUFFIX}")
    new.unlink(missing_ok=True)
    write_file(new, data)
    new.replace(path)


def sync_directory(path: Path) -> None:
    """Wait until a directory's entries are durable; in a store they are at once."""
    if isinstance(path, StorePath):
        return
    system.sync_directory(path)


def sync_files(root: Path) -> None:
    """Wait until all files below a directory are durable."""
    for directory, _, names in os.walk(root):
        for name in names:
            system.sync_file(os.path.join(directory, name))


def make_directories(path: Path) -> None:
    """Make a directory and those above it, each durable before something is put into it."""
    if isinstance(path, StorePath) or path.is_dir():
        return
    make_directories(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)

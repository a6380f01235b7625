"""Add, replace and delete files of a recorded checkpoint; no record is wrong at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from pathlib import Path

from msgspec import structs

from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.storage.durable import sync_directory
from orbit_ckpt._src.storage.integrity import read_manifest, replace_manifest, write_manifest
from orbit_ckpt._src.storage.layout import STEP_METADATA


@contextlib.contextmanager
def replacing_item(directory: Path) -> Generator[None]:
    """Renew the enclosing checkpoint's record of an item that the block replaces.

    An existing item of a step is recorded even if the step lacks a record of it, because the
    process that replaced it last may have been killed.

    Args:
        directory: The item, or any other place, where this does nothing.
    """
    prefix = f"{directory.name}/"
    try:
        around = read_manifest(directory.parent)
    except CheckpointError:
        around = None  # a damaged manifest stays for `verify` to report
    if around is None or not (
        any(path.startswith(prefix) for path in around.files)
        or (STEP_METADATA in around.files and directory.exists())
    ):
        yield
        return
    forget_files(directory.parent, prefix)  # no record is wrong, whenever this process dies
    try:
        yield
    finally:
        write_manifest(directory.parent, below=prefix)
        sync_directory(directory.parent)


@contextlib.contextmanager
def adding_item(item: Path, record: Callable[[], object]) -> Generator[None]:
    """Extend the records of a checkpoint by an item that the block adds.

    Whenever this process dies, no record is wrong: that of the checkpoint's document is missing
    while it changes, and the item is complete before anything refers to it.

    Args:
        item: The item.
        record: Adds the item to the checkpoint's document.
    """
    directory = item.parent
    has_manifest = read_manifest(directory) is not None
    forget_files(directory, STEP_METADATA)
    yield
    record()
    if has_manifest:
        write_manifest(directory)
    sync_directory(directory)


def forget_files(directory: Path, prefix: str) -> None:
    """Remove files that are about to be deleted on purpose from a manifest.

    Args:
        directory: The directory of the manifest; it may have none.
        prefix: Prefix of the paths of the files.
    """
    manifest = read_manifest(directory)
    if manifest is None or not any(path.startswith(prefix) for path in manifest.files):
        return
    kept = {path: r for path, r in manifest.files.items() if not path.startswith(prefix)}
    replace_manifest(directory, structs.replace(manifest, files=kept))
    sync_directory(directory)  # before the files are deleted

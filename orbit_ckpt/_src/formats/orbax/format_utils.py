"""Orbax's functions that recognize its checkpoints."""

from __future__ import annotations

from orbit_ckpt._src.formats.orbax.layout import find_items, holds_tree
from orbit_ckpt._src.storage.layout import OCDBT_MANIFEST, STEP_METADATA
from orbit_ckpt._src.storage.path import PathLike, resolve_path


def is_ocdbt_checkpoint(path: PathLike) -> bool:
    """Return whether the arrays of a tree share one database."""
    return (resolve_path(path) / OCDBT_MANIFEST).is_file()


def is_orbax_checkpoint(path: PathLike) -> bool:
    """Return whether a directory looks like a checkpoint in Orbax's format, or a part of one.

    Raises:
        FileNotFoundError: The path does not exist.
        NotADirectoryError: It is a file.
    """
    directory = resolve_path(path)
    if not directory.exists():
        raise FileNotFoundError(f"There is nothing at {directory}; give the path of a checkpoint.")
    if not directory.is_dir():
        raise NotADirectoryError(f"{directory} is a file; give the directory of a checkpoint.")
    if (directory / STEP_METADATA).is_file() or holds_tree(directory):
        return True
    return any(holds_tree(directory / name) for name in find_items(directory))

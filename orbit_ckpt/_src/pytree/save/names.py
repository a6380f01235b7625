"""Check that the leaves of a tree can be stored under their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from orbit_ckpt._src.errors import NameCollisionError, UnsupportedLeafError
from orbit_ckpt._src.storage.layout import (
    RESERVED,
    ZARR2_DOCUMENT,
    ZARR3_DOCUMENT,
    is_process_directory,
)
from orbit_ckpt._src.tree.flatten import FlatTree
from orbit_ckpt._src.tree.keypath import (
    KeyPath,
    NamePath,
    find_name_collisions,
    format_path,
    key_value,
)

_MAX_FILE_NAME = 255
_DOCUMENTS = "|".join(map(re.escape, (ZARR2_DOCUMENT, ZARR3_DOCUMENT)))
_ZARR3_FILES = re.compile(rf"c|{_DOCUMENTS}")
_ZARR2_FILES = re.compile(rf"[0-9]+(\.[0-9]+)*|{_DOCUMENTS}")
"""File names in the directory of an array: its chunks and its document."""

_MAX_DEPTH = 200
"""Rebuilding containers recurses; JSON decoders do too."""


def check_depth(names: Sequence[NamePath]) -> None:
    """Check that no leaf lies too deep.

    Raises:
        UnsupportedLeafError: One does.
    """
    deepest = max(names, key=len, default=())
    if len(deepest) > _MAX_DEPTH:
        where = format_path(deepest[:8])
        raise UnsupportedLeafError(
            f"{where}...: a leaf lies {len(deepest)} levels deep; at most {_MAX_DEPTH} can be "
            "rebuilt without a target. Flatten the tree there.",
            paths=[format_path(deepest)],
        )


def check_names(flat: FlatTree, *, use_ocdbt: bool, use_zarr3: bool) -> None:
    """Check that every leaf can be stored under its name.

    Args:
        flat: The leaves.
        use_ocdbt: Whether arrays go into a database, else names become directories.
        use_zarr3: Whether arrays are zarr3, else zarr2.

    Raises:
        NameCollisionError: One cannot.
    """
    stored = flat.places.storage_names
    array_files = None if use_ocdbt else _ZARR3_FILES if use_zarr3 else _ZARR2_FILES
    if len(set(stored)) < len(stored):
        collisions = find_name_collisions(flat.names)
        pairs = [(flat.paths[a], flat.paths[b]) for a, b in collisions]
        lines = "\n".join(f"  {_in_brackets(a)} and {_in_brackets(b)}" for a, b in pairs[:20])
        raise NameCollisionError(
            f"{len(pairs)} pairs of leaves would share a storage name, because key names are "
            f"joined with dots; one of each would be lost:\n{lines}\nRename a key of each pair.",
            paths=[format_path(path) for pair in pairs for path in pair],
        )
    if array_files is None and all(map(str.isascii, stored)):
        return
    empty = flat.empty_positions
    folders = {name for i, name in enumerate(stored) if array_files and i not in empty}
    for path, name in zip(flat.names, stored, strict=True):
        reason = _bad_name(name, is_directory=name in folders)
        if reason is None and array_files is not None and name in folders:
            reason = _taken_by(name, folders, array_files)
        if reason:
            raise NameCollisionError(
                f"{format_path(path)}: cannot be stored under its name: {reason}. Rename the key"
                + (" or save with use_ocdbt=True." if array_files else "."),
                paths=[format_path(path)],
            )


def _in_brackets(path: KeyPath) -> str:
    """Format a path as subscripts, which distinguish `a.b` from `b` in `a`."""
    return "".join(f"[{key_value(key)!r}]" for key in path)


def _bad_name(name: str, *, is_directory: bool) -> str | None:
    """Return why a storage name cannot be used, None if it can."""
    if not is_directory and name.isascii():
        return None
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if not is_directory or not name:
        return None
    parts = name.split("/")
    reasons = {
        f"{parts[0]!r} is the name of a file of the checkpoint": (
            parts[0] in RESERVED or is_process_directory(parts[0])
        ),
        "TensorStore takes a backslash in a file name for a slash": "\\" in name,
        "it is not the name of a directory": (
            any(part in ("", ".", "..") for part in parts) or b"\0" in encoded
        ),
        "it is too long for a file name": (
            any(len(part.encode()) > _MAX_FILE_NAME for part in parts)
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _taken_by(name: str, folders: Collection[str], array_files: re.Pattern[str]) -> str | None:
    """Return a leaf with a file where another leaf's directory would be, None without one.

    A leaf called "" has its files in the directory of all leaves.
    """
    parts = name.split("/")
    for depth, part in enumerate(parts):
        outer = "/".join(parts[:depth])
        if outer != name and outer in folders and array_files.fullmatch(part):
            owner = outer or '""'
            return f"{part!r} may be the name of a file in the directory of the leaf {owner}"
    return None

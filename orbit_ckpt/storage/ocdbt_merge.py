"""Make one checkpoint of what several processes have written.

Databases below its root become one; files of arrays only have to be there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from orbit_ckpt.arrays.slices import chunk_indices, whole
from orbit_ckpt.errors import StorageError
from orbit_ckpt.storage.layout import join_key
from orbit_ckpt.storage.ocdbt import read_index
from orbit_ckpt.storage.ocdbt_encode import Extent, Value
from orbit_ckpt.storage.store_path import StorePath
from orbit_ckpt.storage.value_write import DatabaseWriter
from orbit_ckpt.storage.zarr import ZarrArray

_TOLD = 10


def merge_databases(
    directory: Path, parts: Sequence[str], arrays: Iterable[tuple[str, ZarrArray]]
) -> None:
    """Write a database that has the values of others.

    Only its B+tree is new: what is not in the trees of the others stays in their data files.

    Args:
        directory: Its root.
        parts: Directories below it with the other databases.
        arrays: Names and layouts of the arrays that it must hold.

    Raises:
        StorageError: A value is in two of the databases, or in none.
    """
    values: dict[str, Value] = {}
    for part in parts:
        found = read_index(directory / part)
        twice = values.keys() & found.keys()
        if twice:
            raise _disagree(directory, f"also in {part}", twice)
        values.update((key, _below(value, directory)) for key, value in found.items())
    missing = _keys(arrays) - values.keys()
    if missing:
        raise _disagree(directory, "written by no process", missing)
    writer = DatabaseWriter(directory, data_file_bytes=None)
    try:
        writer.refer(values)
        writer.close()
    except BaseException:  # raised again; its files must be closed
        writer.abort()
        raise


def check_files(directory: Path, arrays: Iterable[tuple[str, ZarrArray]]) -> None:
    """Check that arrays that are stored as files are complete.

    No file is written by two processes: the second one fails when it comes to it.

    Args:
        directory: Where they are.
        arrays: Names and layouts of the arrays.

    Raises:
        StorageError: A file has been written by no process.
    """
    missing = _keys(arrays) - _files(directory)
    if missing:
        raise _disagree(directory, "written by no process", missing)


def _files(directory: Path) -> set[str]:
    """Return all files below a directory, relative to it."""
    if isinstance(directory, StorePath):
        return set(directory.keys_below())
    return {
        os.path.join(folder, file).removeprefix(f"{directory}/")
        for folder, _, files in os.walk(directory)
        for file in files
    }


def _below(value: Value, directory: Path) -> Value:
    if isinstance(value, bytes):
        return value
    return Extent(value.file.removeprefix(f"{directory}/"), value.offset, value.length)


def _keys(arrays: Iterable[tuple[str, ZarrArray]]) -> set[str]:
    return {key for name, layout in arrays for key in _keys_of(name, layout)}


def _keys_of(name: str, layout: ZarrArray) -> Iterator[str]:
    yield join_key(name, layout.document_name)
    for index in chunk_indices(whole(layout.shape), layout.chunk_shape):
        yield layout.chunk_key(name, index)


def _disagree(directory: Path, what: str, keys: Iterable[str]) -> StorageError:
    names = sorted(keys)
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return StorageError(
        f"{directory}: {', '.join(names[:_TOLD])}{more}: {what}. The processes do not save the "
        "same tree, or not in the same shardings; give all of them the same arrays."
    )

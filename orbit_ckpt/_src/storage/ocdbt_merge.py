"""Merge the parts that several processes have written into one checkpoint.

Databases below its root become one; files of arrays only need to exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from orbit_ckpt._src.arrays.slices import chunk_indices, whole
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.storage.atomic import write_file
from orbit_ckpt._src.storage.extent import Extent, Value
from orbit_ckpt._src.storage.integrity import read_manifest
from orbit_ckpt._src.storage.layout import MANIFEST, OCDBT_MANIFEST, join_key
from orbit_ckpt._src.storage.manifest import DatabaseRecord, FileRecord, Manifest
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.text import shorten_list


def merge_databases(
    directory: Path, parts: Sequence[str], arrays: Iterable[tuple[str, ZarrArray]]
) -> Manifest:
    """Merge databases into a new one; return its record for the manifest.

    Only the B+tree is new: values outside the other trees stay in their data files. The manifests
    of the others, which `write_part_record` has written, are removed.

    Args:
        directory: Its root.
        parts: Directories below it with the other databases.
        arrays: Names and layouts of the arrays that it must hold.

    Raises:
        StorageError: A value is in two of the databases, or in none.
    """
    values: dict[str, Value] = {}
    records: list[tuple[str, Manifest]] = []
    for part in parts:
        record = read_manifest(directory / part) or Manifest()
        records.append((part, record))
        found = read_index(directory / part, record.database)
        twice = values.keys() & found.keys()
        if twice:
            raise _disagree(directory, f"also in {part}", twice)
        values.update((key, _below(value, directory)) for key, value in found.items())
    missing = _keys(arrays) - values.keys()
    if missing:
        raise _disagree(directory, "written by no process", missing)
    have_checksums = all(_has_values(record) for _, record in records)
    writer = DatabaseWriter(directory, data_file_bytes=None, values_have_checksums=have_checksums)
    try:
        writer.refer(values, _joined(records))
        writer.close()
    except BaseException:  # re-raised; its files must be closed
        writer.abort()
        raise
    for part in parts:
        (directory / part / MANIFEST).unlink(missing_ok=True)
    return writer.record


def write_part_record(directory: Path, record: Manifest) -> None:
    """Write the record of one process's database, for the process that merges it.

    Args:
        directory: Root of the database.
        record: The record.
    """
    write_file(directory / MANIFEST, record.to_bytes())


def _has_values(record: Manifest) -> bool:
    """Return whether values of a database are recorded one by one, not as whole data files."""
    return record.database is not None and set(record.files) == {OCDBT_MANIFEST}


def _joined(records: Iterable[tuple[str, Manifest]]) -> Manifest:
    """Join the records of databases, with paths relative to their common directory."""
    files: dict[str, FileRecord] = {}
    sizes: dict[str, int] = {}
    for part, record in records:
        files.update((f"{part}/{name}", file) for name, file in record.files.items())
        found: Mapping[str, int] = record.database.files if record.database else {}
        sizes.update((f"{part}/{name}", nbytes) for name, nbytes in found.items())
    return Manifest(files, database=DatabaseRecord(0, b"", sizes))


def check_files(directory: Path, arrays: Iterable[tuple[str, ZarrArray]]) -> None:
    """Check that arrays stored as files are complete.

    No two processes write the same file: the second one fails.

    Args:
        directory: The directory of the arrays.
        arrays: Names and layouts of the arrays.

    Raises:
        StorageError: No process has written one of the files.
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
    file = value.file.removeprefix(f"{directory}/")
    return Extent(file, value.offset, value.length, value.checksum)


def _keys(arrays: Iterable[tuple[str, ZarrArray]]) -> set[str]:
    return {key for name, layout in arrays for key in _keys_of(name, layout)}


def _keys_of(name: str, layout: ZarrArray) -> Iterator[str]:
    yield join_key(name, layout.document_name)
    for index in chunk_indices(whole(layout.shape), layout.chunk_shape):
        yield layout.chunk_key(name, index)


def _disagree(directory: Path, what: str, keys: Iterable[str]) -> StorageError:
    names = sorted(keys)
    return StorageError(
        f"{directory}: {shorten_list(names, 10)}: {what}. The processes do not save the "
        "same tree, or not in the same shardings; give all of them the same arrays."
    )

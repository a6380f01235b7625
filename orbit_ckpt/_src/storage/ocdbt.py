"""Read the index of an OCDBT database of any writer.

Reading many small values through TensorStore's driver costs more than reading its B+tree once,
which contains small values and the places of all others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from orbit_ckpt._src.arrays.slices import chunk_indices, whole
from orbit_ckpt._src.errors import CorruptionError, FormatError, StorageError, UnsafePathError
from orbit_ckpt._src.storage.inner_path import InnerFiles, read_inner
from orbit_ckpt._src.storage.layout import (
    OCDBT_MANIFEST,
    Extent,
    Value,
    is_process_directory,
    join_key,
)
from orbit_ckpt._src.storage.manifest import DatabaseRecord, index_checksum
from orbit_ckpt._src.storage.ocdbt_decode import (
    Child,
    DecodeError,
    Node,
    UnsupportedError,
    decode_manifest,
    decode_node,
)
from orbit_ckpt._src.storage.store_errors import store_failure
from orbit_ckpt._src.storage.store_path import MISSING, StorePath, read_extent
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.text import shorten_list

Json = dict[str, Any]

_MAX_HEIGHT = 255
_MAX_NODE_BYTES = 1 << 30


def is_ocdbt(directory: Path) -> bool:
    """Return whether a directory is the root of an OCDBT database."""
    return (directory / OCDBT_MANIFEST).is_file()


def read_spec(directory: Path) -> Json:
    """Return TensorStore's spec for reading a database of any writer."""
    return {"driver": "ocdbt", "base": store_spec(directory)}


def store_spec(directory: Path, name: str = "") -> Json:
    """Return TensorStore's spec of the files below a directory, or one in it."""
    if isinstance(directory, StorePath):
        return (directory / name if name else directory).spec()
    return {"driver": "file", "path": f"{directory / name if name else directory}/"}


def read_index(
    directory: Path, record: DatabaseRecord | None = None, *, manifest: bytes | None = None
) -> dict[str, Value]:
    """Return every key of a database's newest version and its value, or its place.

    Args:
        directory: Root of the database.
        record: The database's record in the manifest, which gives places their checksums.
        manifest: Contents of `manifest.ocdbt`, if already read.

    Raises:
        CorruptionError: A file of the database is missing or damaged, or the index is not the one
            that was recorded.
        FormatError: The form of the database is unknown.
        OSError: A file exists but cannot be read, for example for lack of permission.
    """
    checksums = record.checksums() if record else ()
    nodes = _Nodes(directory, manifest, chain(checksums, repeat(None)))
    index: dict[str, Value] = {}
    try:
        for prefix, node in nodes:
            keys = [prefix + key for key in node.keys] if prefix else node.keys
            names = [key.decode("utf-8", "surrogateescape") for key in keys]
            index.update(zip(names, node.values, strict=True))
    except UnsupportedError as error:
        raise FormatError(f"{nodes.file}: an OCDBT database with {error}") from error
    except (StorageError, UnsafePathError):
        raise
    except (DecodeError, OSError, ValueError) as error:
        file = nodes.file
        if isinstance(error, OSError) and not isinstance(error, MISSING):
            error.add_note(f"{file}: a file of the database cannot be read.")
            raise
        failure = store_failure(file, error, is_remote=isinstance(directory, StorePath))
        if failure is not None:
            raise failure from None
        raise CorruptionError(
            f"{directory}: the OCDBT database cannot be read, part of it is missing or damaged: "
            f"{file}: {error}. Restore an earlier checkpoint or another copy.",
            file=file,
        ) from error
    if record is not None and index_checksum(nodes.checksums) != record.index:
        what = "the index is not the one that was written, but that of another save"
        raise CorruptionError(
            f"{directory}: {nodes.file}: {what}. Restore an earlier checkpoint or another copy.",
            file=nodes.file,
            what=what,
        )
    return index


def _root(directory: Path, data: bytes | None) -> Child | None:
    data = read_inner(directory, OCDBT_MANIFEST) if data is None else data
    manifest = decode_manifest(data, f"{directory}/")
    if manifest.is_single:
        return manifest.root
    from orbit_ckpt._src.storage.ocdbt_numbered import numbered_root  # noqa: PLC0415 - imports TensorStore

    return numbered_root(directory, store_spec(directory))


class _Nodes:
    """The leaves of a database's B+tree, each with its key prefix.

    Attributes:
        file: The file being read, for messages.
        checksums: Those of the nodes read so far, see `index_checksum`.

    Args:
        directory: Root of the database.
        manifest: Contents of its `manifest.ocdbt`, if already read.
        value_checksums: Those of the values in data files, in the order of keys.
    """

    def __init__(
        self, directory: Path, manifest: bytes | None, value_checksums: Iterator[int | None]
    ) -> None:
        self.file = str(directory / OCDBT_MANIFEST)
        self.checksums: list[bytes] = []
        self._directory = directory
        self._manifest = manifest
        self._value_checksums = value_checksums
        self._inner = None if isinstance(directory, StorePath) else InnerFiles(directory)
        self._known: set[str] = set()

    def __iter__(self) -> Iterator[tuple[bytes, Node]]:
        """Read all nodes, each once, in the order of keys.

        Raises:
            UnsafePathError: A data file is outside the database.
            DecodeError: A node is damaged, or refers to one of its ancestors.
            OSError: A file cannot be read.
        """
        root = _root(self._directory, self._manifest)
        pending = [(root, _MAX_HEIGHT)] if root else []
        seen: set[Extent] = set()
        while pending:
            child, most = pending.pop()
            node = self._read(child)
            if child.place in seen or node.height > most:
                raise DecodeError("its nodes lead to one another")
            seen.add(child.place)
            if len(child.prefix) * len(node.keys) > _MAX_NODE_BYTES:
                raise DecodeError("its keys are longer than those of a database")
            if node.height:
                pending += [(below, node.height - 1) for below in reversed(node.children)]
            else:
                yield child.prefix, node

    def _read(self, child: Child) -> Node:
        place = child.place
        self.file = place.file
        self._check_files([place.file])
        if place.length > _MAX_NODE_BYTES:
            raise DecodeError(f"a node of {place.length} bytes")
        data = read_extent(place.file, place.offset, place.length)
        node = decode_node(data, child, self._value_checksums)
        self.checksums.append(data[-4:])
        self._check_files(node.files)
        return node

    def _check_files(self, files: Sequence[str]) -> None:
        """Check that data files are not links that lead elsewhere; they need not exist."""
        start = len(f"{self._directory}/")
        for file in files:
            if self._inner is not None and file not in self._known:
                self._inner.status(file[start:] or OCDBT_MANIFEST)
                self._known.add(file)


def databases_below(directory: Path) -> list[str]:
    """Return the directories of processes below a directory that have a database."""
    names = sorted(entry.name for entry in directory.iterdir() if is_process_directory(entry.name))
    return [name for name in names if is_ocdbt(directory / name)]


def check_files(directory: Path, arrays: Iterable[tuple[str, ZarrArray]]) -> None:
    """Check that arrays stored as files are complete.

    No two processes write the same file: the second one fails.

    Args:
        directory: The directory of the arrays.
        arrays: Names and layouts of the arrays.

    Raises:
        StorageError: No process has written one of the files.
    """
    missing = keys_of(arrays) - _files(directory)
    if missing:
        raise disagreement(directory, "written by no process", missing)


def _files(directory: Path) -> set[str]:
    """Return all files below a directory, relative to it."""
    if isinstance(directory, StorePath):
        return set(directory.keys_below())
    return {
        os.path.join(folder, file).removeprefix(f"{directory}/")
        for folder, _, files in os.walk(directory)
        for file in files
    }


def keys_of(arrays: Iterable[tuple[str, ZarrArray]]) -> set[str]:
    """Return the keys of arrays: those of their documents and of all chunks."""
    return {join_key(name, suffix) for name, layout in arrays for suffix in suffixes_of(layout)}


def suffixes_of(layout: ZarrArray) -> Iterator[str]:
    """Yield how the keys of an array end, after its name."""
    yield layout.document_name
    for index in chunk_indices(whole(layout.shape), layout.chunk_shape):
        yield layout.chunk_key("", index)


def disagreement(directory: Path, what: str, keys: Iterable[str]) -> StorageError:
    """Return the error of processes that have not written every key once.

    Args:
        directory: The directory that they write to.
        what: What is wrong with the keys.
        keys: The keys.
    """
    names = sorted(keys)
    return StorageError(
        f"{directory}: {shorten_list(names, 10)}: {what}. The processes do not save the "
        "same tree, or not in the same shardings; give all of them the same arrays."
    )

"""Stored values by key, in a directory that is a database or holds plain files."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from typing_extensions import override

from orbit_ckpt._src.storage import ocdbt
from orbit_ckpt._src.storage.inner_path import is_inner_name
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.layout import (
    OCDBT_MANIFEST,
    ZARR2_DOCUMENT,
    ZARR3_DOCUMENT,
    Extent,
    Value,
    join_key,
)
from orbit_ckpt._src.storage.ocdbt import Json
from orbit_ckpt._src.storage.store_path import StorePath

_CHUNK = re.compile(r"[0-9]+(\.[0-9]+)*")


def renamed_documents(keys: Iterable[str]) -> Mapping[str, str]:
    """Return the metadata documents of zarr2 arrays that `metadata_key` names, by standard name.

    That is the only key of an array that is not a chunk.
    """
    found: dict[str, list[str]] = {}
    for key in keys:
        name, _, last = key.rpartition("/")
        if name and last != ZARR3_DOCUMENT and not _CHUNK.fullmatch(last):
            found.setdefault(join_key(name, ZARR2_DOCUMENT), []).append(key)
    return {name: others[0] for name, others in found.items() if len(others) == 1}


class ValueStore(Protocol):
    """Finds values by key, reading at most the index and no value outside it.

    Attributes:
        is_remote: Whether each read is a request, which costs as much as many bytes.
        has_object_per_value: Whether it is in an object store, with an object for every value.
    """

    is_remote: bool
    has_object_per_value: bool = False

    def find(self, key: str) -> Value | None:
        """Return a value or its place, None if the key does not exist.

        Raises:
            CorruptionError: A file that should hold it is missing or not what was written.
        """
        ...

    def find_all(self, keys: Sequence[str]) -> list[Value | None]:
        """Return what `find` returns for several keys."""
        return list(map(self.find, keys))

    def length(self, key: str) -> int | None:
        """Return the size of a value in bytes, None if the key does not exist."""
        ...

    def keys_below(self, name: str) -> list[str]:
        """Return the keys of the files of one leaf; for messages, may be slow."""
        ...

    def places_chunks(self, name: str) -> bool:  # noqa: ARG002 - for other stores
        """Return whether `find` tells where the chunks of an array are, without reading one."""
        return True

    def spec(self, name: str) -> Json:
        """Return TensorStore's spec of the store at the prefix of one leaf."""
        ...


class OcdbtStore(ValueStore):
    """The database of a checkpoint; reads its B-tree once."""

    def __init__(self, directory: CheckedDirectory) -> None:
        """Read the index.

        Raises:
            CorruptionError: The database is damaged.
        """
        self.is_remote = isinstance(directory.path, StorePath)
        self._directory = directory
        record = directory.manifest.database if directory.manifest else None
        root = directory.read_bytes(OCDBT_MANIFEST)
        self._index = ocdbt.read_index(directory.path, record, manifest=root)
        self._nested: dict[str, OcdbtStore] = {}
        self._names: dict[str, str | None] = {}
        """Manifest names of data files, None for those that it does not record."""

    @override
    def find(self, key: str) -> Value | None:
        value = self._index.get(key)
        if value is None:
            nested = self._nested_store(key)
            if nested is not None:
                return nested[0].find(nested[1])
            document = self._renamed.get(key)
            return None if document is None else self.find(document)
        if isinstance(value, Extent):
            name = self._name_of(value.file)
            if name is not None:
                self._directory.verify(name)
        return value

    @override
    def find_all(self, keys: Sequence[str]) -> list[Value | None]:
        values = list(map(self._index.get, keys))
        files = {value.file for value in values if isinstance(value, Extent)}
        if None in values or any(self._name_of(file) is not None for file in files):
            return list(map(self.find, keys))
        return values

    @functools.cached_property
    def _renamed(self) -> Mapping[str, str]:
        return renamed_documents(self._index)

    def _name_of(self, file: str) -> str | None:
        # only the manifest of a zarr2 checkpoint records data files
        if file not in self._names:
            name = os.path.relpath(file, self._directory.path)
            self._names[file] = name if self._directory.has_record(name) else None
        return self._names[file]

    @override
    def length(self, key: str) -> int | None:
        value = self._index.get(key)
        if value is None:
            nested = self._nested_store(key)
            return nested[0].length(nested[1]) if nested else None
        return len(value) if isinstance(value, bytes) else value.length

    @override
    def keys_below(self, name: str) -> list[str]:
        return [key for key in self._index if key.startswith(f"{name}/" if name else "")]

    @override
    def spec(self, name: str) -> Json:
        nested = self._nested_store(name)
        if nested is not None:
            store, rest = nested
            return store.spec(rest)
        return ocdbt.read_spec(self._directory.path) | ({"path": f"{name}/"} if name else {})

    def _nested_store(self, key: str) -> tuple[OcdbtStore, str] | None:
        """Return the database of a leaf whose name has a slash, and its key there.

        Orbax before 0.4 made the part before the slash a directory.
        """
        head, slash, rest = key.rpartition("/")
        while slash:
            if head not in self._nested and is_inner_name(head):
                self._open_nested(head)
            if head in self._nested:
                return self._nested[head], rest
            head, slash, more = head.rpartition("/")
            rest = f"{more}/{rest}"
        return None

    def _open_nested(self, name: str) -> None:
        if ocdbt.is_ocdbt(self._directory.path / name):
            self._nested[name] = OcdbtStore(CheckedDirectory(self._directory.inner(name)))


class FileStore(ValueStore):
    """A directory with one file per value."""

    is_remote = False

    def __init__(self, directory: CheckedDirectory) -> None:
        self._directory = directory

    @override
    def find(self, key: str) -> Value | None:
        self._directory.verify(key)
        length = self.length(key)
        if length is None:
            document = self._renamed_document(key)
            return None if document is None else self.find(document)
        return Extent(f"{self._directory.path}/{key}", 0, length)

    def _renamed_document(self, key: str) -> str | None:
        name, _, last = key.rpartition("/")
        if last != ZARR2_DOCUMENT or not name:
            return None
        return renamed_documents(self.keys_below(name)).get(key)

    @override
    def length(self, key: str) -> int | None:
        status = self._directory.files.status(key)
        return None if status is None else status.st_size

    @override
    def keys_below(self, name: str) -> list[str]:
        root = self._directory.path
        return [str(p.relative_to(root)) for p in (root / name).rglob("*") if p.is_file()]

    @override
    def spec(self, name: str) -> Json:
        return ocdbt.store_spec(self._directory.path, name)


class ObjectStore(ValueStore):
    """A directory of an object store with one object per value."""

    is_remote = True
    has_object_per_value = True

    def __init__(self, directory: CheckedDirectory) -> None:
        self._directory = directory

    @override
    def find(self, key: str) -> bytes | None:
        # returns the value itself, because stores do not report sizes
        return self._directory.read_bytes(key)

    @override
    def length(self, key: str) -> int | None:
        # reads the value if the manifest does not record it
        nbytes = self._directory.recorded_size(key)
        if nbytes is not None:
            return nbytes
        value = self.find(key)
        return None if value is None else len(value)

    @override
    def keys_below(self, name: str) -> list[str]:
        folder = self._directory.path / name
        below = folder.keys_below() if isinstance(folder, StorePath) else ()
        return [join_key(name, key) for key in below]

    @override
    def places_chunks(self, name: str) -> bool:
        return False

    @override
    def spec(self, name: str) -> Json:
        return ocdbt.store_spec(self._directory.path, name)


def open_store(directory: CheckedDirectory, *, use_ocdbt: bool | None = None) -> ValueStore:
    """Open the store of a directory.

    Args:
        directory: The directory.
        use_ocdbt: Whether the checkpoint records a database. Orbax does so also without any array
            to store in it.

    Raises:
        CorruptionError: The database is missing or damaged.
    """
    is_lost = use_ocdbt and directory.manifest is not None
    if ocdbt.is_ocdbt(directory.path) or is_lost:
        return OcdbtStore(directory)
    if isinstance(directory.path, StorePath):
        return ObjectStore(directory)
    return FileStore(directory)

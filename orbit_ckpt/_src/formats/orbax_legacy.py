"""Structures recorded by Orbax before `_METADATA`: msgpack files and directory names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from orbit_ckpt._src.metadata.schema import (
    EMPTY_TYPES,
    STRING,
    UNKNOWN_TYPE,
    LeafRecord,
    TreeDocument,
)
from orbit_ckpt._src.storage.layout import ZARR2_DOCUMENT, ZARR3_DOCUMENT
from orbit_ckpt._src.storage.ocdbt import is_ocdbt, read_index
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.storage.system import is_directory
from orbit_ckpt._src.tree.build import is_empty_container, leaves_of
from orbit_ckpt._src.tree.keypath import KeyPath, make_key

_DOCUMENTS = (ZARR2_DOCUMENT, ZARR3_DOCUMENT)
_STORED_ELSEWHERE = ("PLACEHOLDER://", "AGGREGATED://")


class LegacyTree(Struct, frozen=True):
    """A structure that is not from `_METADATA`.

    Attributes:
        leaves: The leaves; those whose value was found have none stored elsewhere.
        inline: Values found in the structure itself, by storage name.
        use_zarr3: Whether the arrays are zarr3.
    """

    leaves: Sequence[LeafRecord]
    inline: Mapping[str, object]
    use_zarr3: bool = False

    def merge_into(self, document: TreeDocument | None) -> TreeDocument:
        """Return the document with leaves that only the structure records.

        Leaves of both are those of the document; an inline value wins over stored data, because
        writers that aggregated values did not store them otherwise.
        """
        if document is None:
            return TreeDocument(self.leaves, use_zarr3=self.use_zarr3, stores_fill_values=False)
        known = {leaf.name for leaf in document.leaves}
        added = [leaf for leaf in self.leaves if leaf.name not in known]
        return replace(document, leaves=[*document.leaves, *added]) if added else document


def read_aggregate(data: bytes, where: str) -> LegacyTree:
    """Return the structure in a msgpack file.

    Raises:
        FormatError: It is not msgpack, or holds what Orbax never wrote.
    """
    from orbit_ckpt._src.formats.msgpack_scan import scan_bytes  # noqa: PLC0415 - for old ones only

    tree = scan_bytes(data, f"{where}: not an aggregate file of Orbax")
    leaves: list[LeafRecord] = []
    inline: dict[str, object] = {}
    for path, value in leaves_of(tree):
        if isinstance(value, str) and value.startswith(_STORED_ELSEWHERE):
            leaves.append(LeafRecord.at(path, UNKNOWN_TYPE))
        elif is_empty_container(value):
            leaves.append(LeafRecord.at(path, empty_typestr(value), is_empty=True))
        else:
            record = LeafRecord.at(path, UNKNOWN_TYPE)
            leaves.append(record)
            inline[record.name] = value
    return LegacyTree(leaves, inline)


def infer_structure(directory: Path, strings: Mapping[str, object]) -> LegacyTree | None:
    """Return the structure that the names of stored leaves spell, None if no array is stored.

    Names are split at dots; a level whose keys are 0, 1, ... is read as a dict all the same,
    because nothing tells it from one. Empty containers are not stored, hence unknown.

    Args:
        directory: The tree's.
        strings: Contents of the strings file.
    """
    documents = list(_all_documents(directory))
    if not documents:
        return None
    use_zarr3 = any(document == ZARR3_DOCUMENT for _, document in documents)
    types = dict.fromkeys(_string_names(strings), STRING)
    types |= dict.fromkeys((name for name, _ in documents), UNKNOWN_TYPE)
    records = [LeafRecord.at(_split(name), types[name]) for name in sorted(types)]
    return LegacyTree(records, {}, use_zarr3)


def _split(name: str) -> KeyPath:
    return tuple(make_key(key, is_sequence=False) for key in name.split(".") if name)


def _string_names(strings: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the storage names of strings; those with slashes are nested."""
    for key, value in strings.items():
        if isinstance(value, str):
            yield f"{prefix}{key}"
        elif isinstance(value, dict):
            yield from _string_names(cast(Mapping[str, object], value), f"{prefix}{key}/")


def _all_documents(directory: Path) -> Iterator[tuple[str, str]]:
    """Yield name and kind of document of every array, also those whose names have slashes."""
    if is_ocdbt(directory) or isinstance(directory, StorePath):
        yield from _near_documents(directory)
        return
    for at, below, files in os.walk(directory):
        below.sort()
        name = Path(at).relative_to(directory).as_posix()
        for document in _DOCUMENTS:
            if name != "." and document in files:
                yield name, document


def _near_documents(directory: Path) -> Iterator[tuple[str, str]]:
    if is_ocdbt(directory):
        keys = (key.rpartition("/") for key in read_index(directory))
        yield from ((name, last) for name, _, last in keys if last in _DOCUMENTS)
    elif isinstance(directory, StorePath):  # where one request lists everything
        keys = (key.rpartition("/") for key in directory.keys_below())
        yield from ((name, last) for name, _, last in keys if name and last in _DOCUMENTS)
    else:
        with os.scandir(directory) as entries:  # of a run, perhaps tens of thousands
            found = [entry for entry in entries if is_directory(entry)]
        for entry in found:
            for document in _DOCUMENTS:
                if os.path.isfile(f"{entry.path}/{document}"):
                    yield entry.name, document


def empty_typestr(value: object) -> str:
    """Return what documents call an empty container."""
    kinds = {name for name, empty in EMPTY_TYPES.items() if type(empty) is type(value)}
    return kinds.pop() if kinds else "None"

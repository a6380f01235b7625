"""OCDBT databases: how we open them, and an index of what one holds.

The specifications are Orbax's, so that its readers find what they expect. Reading many small
values through the driver costs more than reading its B-tree once (`tensorstore.ocdbt.dump`), which
gives small values at once and the place of all others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import tensorstore as ts

from orbit_ckpt.errors import CorruptionError, FormatError
from orbit_ckpt.storage.layout import OCDBT_MANIFEST

DEFAULT_DATA_FILE_BYTES = 2**31
_MAX_INLINE_BYTES = 1024
_MAX_NODE_BYTES = 100_000_000

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the bytes of a value are.

    Attributes:
        file: Path of the file.
        offset: Position of the first byte.
        length: Number of bytes.
    """

    file: str
    offset: int
    length: int


Value = bytes | Extent
"""A stored value: its bytes if it is small enough to be in the index, else where it is."""


def is_ocdbt(directory: Path) -> bool:
    """Whether a directory is the root of an OCDBT database."""
    return (directory / OCDBT_MANIFEST).is_file()


def read_spec(directory: Path) -> Json:
    """Return the key-value store specification to read a database of any writer."""
    return {"driver": "ocdbt", "base": _file_spec(directory)}


def write_spec(directory: Path, *, data_file_bytes: int | None) -> Json:
    """Return the specification to write a database as its only writer.

    Args:
        directory: Root of the database.
        data_file_bytes: Size at which a new data file is begun; None is 2 GiB, 0 no limit.

    Raises:
        ValueError: `data_file_bytes` is negative.
    """
    size = DEFAULT_DATA_FILE_BYTES if data_file_bytes is None else data_file_bytes
    if size < 0:
        raise ValueError(
            f"OCDBT target_data_file_size must be >= 0, where 0 means no limit; got {size}"
        )
    return {
        "driver": "ocdbt",
        "base": _file_spec(directory),
        "target_data_file_size": size,
        "assume_config": True,
        "config": {
            "max_inline_value_bytes": _MAX_INLINE_BYTES,
            "max_decoded_node_bytes": _MAX_NODE_BYTES,
            "manifest_kind": "single",
        },
    }


def read_index(directory: Path) -> dict[str, Value]:
    """Return every key of a database's newest version and its value, or where that is.

    Raises:
        CorruptionError: A file of the database is missing or damaged.
        FormatError: The database has a form that is not known here.
    """
    base = ts.KvStore.open(_file_spec(directory)).result()
    manifest = cast(Json, _dump(base, None, directory))
    root = _newest_root(manifest, directory)
    index: dict[str, Value] = {}
    pending = [(root, b"")] if root else []
    while pending:
        location, prefix = pending.pop()
        node = cast(Json, _dump(base, location, directory))
        for entry in cast(Sequence[Json], node["entries"]):
            key = prefix + cast(bytes, entry["key"])
            if "location" in entry:
                below = prefix + cast(bytes, entry["subtree_common_prefix"])
                pending.append((cast(str, entry["location"]), below))
            else:
                index[key.decode("utf-8", "surrogateescape")] = _value(entry, directory)
    return index


def _dump(base: ts.KvStore, location: str | None, directory: Path) -> object:
    try:
        return ts.ocdbt.dump(base, location).result()
    except (ValueError, OSError, NotImplementedError) as error:
        raise CorruptionError(
            f"{directory}: the OCDBT database cannot be read, part of it is missing or damaged: "
            f"{error}. Restore an earlier checkpoint or another copy.",
            file=str(directory / OCDBT_MANIFEST),
        ) from error


def _newest_root(manifest: Json, directory: Path) -> str | None:
    versions = list(cast(Sequence[Json], manifest.get("versions", [])))
    if not versions:
        nodes = cast(Sequence[Json], manifest.get("version_tree_nodes", []))
        if nodes:
            raise FormatError(f"{directory}: version tree without inline versions")
        return None
    root = cast(Json, versions[-1]["root"])
    if not root["statistics"]["num_keys"]:
        return None
    return cast(str, root["location"])


def _value(entry: Mapping[str, Any], directory: Path) -> Value:
    if "inline_value" in entry:
        return cast(bytes, entry["inline_value"])
    # value:<base>:<path>:<offset>:<length>, the texts percent-encoded
    parts = cast(str, entry["indirect_value"]).split(":")
    if len(parts) != 5 or parts[0] != "value":
        raise FormatError(f"{directory}: unknown OCDBT reference {entry['indirect_value']!r}")
    path = directory / unquote(parts[1]) / unquote(parts[2])
    return Extent(str(path), int(parts[3]), int(parts[4]))


def _file_spec(directory: Path) -> Json:
    return {"driver": "file", "path": f"{directory}/"}

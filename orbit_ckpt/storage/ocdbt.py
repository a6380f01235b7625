"""An index of what an OCDBT database of any writer holds.

Reading many small values through TensorStore's driver costs more than reading its B+tree once,
which gives small values at once and the place of all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import tensorstore as ts

from orbit_ckpt.errors import CorruptionError, FormatError, StorageError
from orbit_ckpt.storage.buckets import shared_context, store_failure
from orbit_ckpt.storage.layout import OCDBT_MANIFEST
from orbit_ckpt.storage.ocdbt_decode import (
    Child,
    DecodeError,
    UnsupportedError,
    decode_manifest,
    decode_node,
)
from orbit_ckpt.storage.ocdbt_encode import Extent, Value
from orbit_ckpt.storage.store_path import MISSING, StorePath, read_extent

Json = dict[str, Any]


def is_ocdbt(directory: Path) -> bool:
    """Whether a directory is the root of an OCDBT database."""
    return (directory / OCDBT_MANIFEST).is_file()


def read_spec(directory: Path) -> Json:
    """Return TensorStore's specification to read a database of any writer."""
    return {"driver": "ocdbt", "base": store_spec(directory)}


def store_spec(directory: Path, name: str = "") -> Json:
    """Return TensorStore's specification of the files below a directory, or one in it."""
    if isinstance(directory, StorePath):
        return (directory / name if name else directory).spec()
    return {"driver": "file", "path": f"{directory / name if name else directory}/"}


def read_index(directory: Path) -> dict[str, Value]:
    """Return every key of a database's newest version and its value, or where that is.

    Raises:
        CorruptionError: A file of the database is missing or damaged.
        FormatError: The database has a form that is not known here.
        OSError: A file is there and cannot be read, for example because it may not be.
    """
    file = str(directory / OCDBT_MANIFEST)
    try:
        root = _root(directory)
        index: dict[str, Value] = {}
        pending = [root] if root else []
        while pending:
            child = pending.pop()
            place = child.place
            file = place.file
            node = decode_node(read_extent(place.file, place.offset, place.length), child)
            pending += node.children
            keys = [child.prefix + key for key in node.keys] if child.prefix else node.keys
            names = [key.decode("utf-8", "surrogateescape") for key in keys]
            index.update(zip(names, node.values, strict=True))
    except UnsupportedError as error:
        raise FormatError(f"{file}: an OCDBT database with {error}") from error
    except StorageError:
        raise
    except (DecodeError, OSError, ValueError) as error:
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
    return index


def _root(directory: Path) -> Child | None:
    manifest = decode_manifest((directory / OCDBT_MANIFEST).read_bytes(), f"{directory}/")
    return manifest.root if manifest.is_single else _numbered_root(directory)


def _numbered_root(directory: Path) -> Child | None:
    """Return the root where each version has a manifest of its own, which TensorStore finds."""
    base = ts.KvStore.open(store_spec(directory), context=shared_context()).result()
    manifest = cast(Json, ts.ocdbt.dump(base, None).result())
    versions = cast(Sequence[Json], manifest["versions"])
    location = cast(str | None, versions[-1]["root"].get("location")) if versions else None
    if location is None:
        return None
    # btreenode:<base>:<path>:<offset>:<length>, the texts percent-encoded
    _, above, path, offset, length = location.split(":")
    root = f"{directory}/{unquote(above)}"
    return Child(Extent(root + unquote(path), int(offset), int(length)), root, b"")

"""Read items that are one JSON document, such as the metrics of a step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.path import describe_directory

JSON_FILE = "metadata"
"""Name of the file, unless a handler was given another one."""

_V1_FILE = "data.json"


def read_json_item(item: CheckedDirectory, filename: str | None = None) -> Any:  # any JSON value
    """Return the value of an item.

    Args:
        item: The item's directory.
        filename: Name of its file, if the handler was given one.

    Raises:
        CheckpointNotFoundError: The file does not exist.
        FormatError: It is not JSON.
        CorruptionError: It differs from its checksum.
    """
    directory = item.path
    for name in _names(directory, filename):
        data = item.read_bytes(name)
        if data is not None:
            return decode_json(data, object, f"{directory}/{name}")
    raise CheckpointNotFoundError(
        f"No JSON item at {directory}: there is no file {filename or JSON_FILE!r} "
        f"({describe_directory(directory)}). Give the item's own directory, or use load(path) for "
        "a tree."
    )


def find_json_file(directory: Path, filename: str | None = None) -> str:
    """Return the name of the file in an item's directory; the expected one if none exists."""
    names = list(_names(directory, filename))
    return next((name for name in names if (directory / name).is_file()), names[0])


def _names(directory: Path, filename: str | None) -> Iterator[str]:
    """Yield the possible names of the file; Orbax's v1 API uses its own."""
    yield filename or JSON_FILE
    if filename is None:
        yield directory.name
    yield _V1_FILE

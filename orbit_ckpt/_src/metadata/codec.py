"""Fast, type-checked JSON for the documents of a checkpoint."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from orbit_ckpt._src.errors import CheckpointNotFoundError, FormatError, check_version
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.path import describe_directory
from orbit_ckpt._src.storage.store_path import read_start
from orbit_ckpt._src.unique_keys import RepeatedKeyError, check_unique

T = TypeVar("T")


_logger = logging.getLogger(__name__)
JSON_FILE = "metadata"
"""Name of the file, unless a handler was given another one."""

_V1_FILE = "data.json"


def decode_json(data: bytes, kind: type[T], where: str | Path, *, repeats: bool = False) -> T:
    """Decode a JSON document.

    Args:
        data: Its bytes.
        kind: The expected type, for msgspec.
        where: The file, for errors.
        repeats: Whether an object may have a key twice; the last value counts. Only for documents
            that decide on no data, or whose keys are checked otherwise: the check takes five times
            as long as decoding a struct.

    Raises:
        FormatError: It is not JSON, a field is missing or has a wrong type, or a key is repeated.
    """
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = _decode_slowly(data, kind, where)
        repeats = repeats and kind is object  # it may be a replaced value that msgspec refuses
    if not repeats:
        check_keys(data, where)
    return found


def check_keys(data: bytes, where: str | Path) -> None:
    """Check that no object of a JSON document has a key twice.

    Raises:
        FormatError: One does.
    """
    try:
        check_unique(data)
    except RepeatedKeyError as error:
        raise FormatError(
            f"{where}: {error}, and it is unknown which of the two values is right. The file is "
            "damaged, or was edited or merged by hand: remove one of them."
        ) from error
    except RecursionError:
        return  # nested deeper than Python's json follows


def _decode_slowly(data: bytes, kind: type[T], where: str | Path) -> T:
    """Decode what msgspec refuses, or raise what is wrong with it."""
    try:
        # Python's json, which Orbax uses, may write NaN, infinities and lone surrogates
        return msgspec.convert(json.loads(data), kind)
    except msgspec.ValidationError as error:
        what = str(error)
        raise FormatError(f"{where}: {what[:1].lower()}{what[1:]}. The file is damaged.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{where}: expected JSON, found {data[:60]!r} ({error}). The file is damaged or is not "
            "of a checkpoint."
        ) from error


def decode_file(file: Path, kind: type[T], *, max_bytes: int) -> T:
    """Decode a JSON file of another program.

    Args:
        file: The file.
        kind: The expected type, for msgspec.
        max_bytes: Size limit, since the whole file is held in memory.

    Raises:
        FormatError: It is not such a document, is too large, or is a pipe or a device.
        FileNotFoundError: It does not exist.
    """
    if directory_of(file).has_local_files and file.exists() and not file.is_file():
        raise FormatError(f"{file} is no regular file, and is not read.")
    data = read_start(file, max_bytes + 1)
    if len(data) > max_bytes:
        raise FormatError(
            f"{file} has more than {max_bytes} bytes, which is too much for such a document. It is "
            "damaged, or was written by something else."
        )
    return decode_json(data, kind, str(file))


def decode_versioned(
    data: bytes,
    kind: type[T],
    where: str,
    *,
    newest: int,
    key: Literal["format_version", "version"] = "format_version",
) -> T:
    """Decode one of this library's JSON documents, which have a version.

    Args:
        data: Its bytes.
        kind: The expected type.
        where: The file, for errors.
        newest: The newest readable version.
        key: The field with the version.

    Raises:
        FormatError: It is not such a document, or a newer version wrote it.
    """
    kind_of_version = _FormatVersion if key == "format_version" else _Version
    # no save of ours writes a key twice, and a manifest records these documents
    version = decode_json(data, kind_of_version, where, repeats=True)
    check_version(where, version.value, newest)
    return decode_json(data, kind, where, repeats=True)


class _FormatVersion(msgspec.Struct):
    value: int = msgspec.field(name="format_version")


class _Version(msgspec.Struct):
    value: int = msgspec.field(name="version")


def encode_json(document: object) -> bytes:
    """Encode one of this library's documents; for users' values see `user_json`."""
    return msgspec.json.encode(document)


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
            where = directory / name
            value = decode_json(data, object, where, repeats=True)
            try:
                check_keys(data, where)
            except FormatError as error:  # Orbax writes and reads `{1: "a", "1": "b"}`
                _logger.warning("%s The last value is used, as in Orbax.", error)
            return value
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

"""JSON as the documents of a checkpoint need it: fast, and checked against types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from orbit_ckpt._src.errors import FormatError, check_version
from orbit_ckpt._src.storage.store_path import StorePath, read_extent

T = TypeVar("T")


def decode_json(data: bytes, kind: type[T], where: str) -> T:
    """Return a JSON document.

    Args:
        data: Its bytes.
        kind: What it must be: a type that msgspec decodes to.
        where: The file, for errors.

    Raises:
        FormatError: It is not JSON, or a field is missing or of a wrong type.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # what Python writes, Orbax's language, may hold NaN, infinities and lone surrogates
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
    """Return the JSON document in a file of another program.

    Args:
        file: The file.
        kind: What it must be: a type that msgspec decodes to.
        max_bytes: How large it may be, for all of it is held.

    Raises:
        FormatError: It is not such a document, is too large, or is a pipe or a device.
        FileNotFoundError: There is none.
    """
    if not isinstance(file, StorePath) and file.exists() and not file.is_file():
        raise FormatError(f"{file} is no regular file, and is not read.")
    data = read_extent(str(file), 0, max_bytes + 1)
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
    """Return a JSON document of ours, which has a version.

    Args:
        data: Its bytes.
        kind: What it must be.
        where: The file, for errors.
        newest: The latest version that can be read.
        key: The field of the version.

    Raises:
        FormatError: It is not such a document, or was written by a later version.
    """
    version = decode_json(data, _FormatVersion if key == "format_version" else _Version, where)
    check_version(where, version.value, newest)
    return decode_json(data, kind, where)


class _FormatVersion(msgspec.Struct):
    value: int = msgspec.field(name="format_version")


class _Version(msgspec.Struct):
    value: int = msgspec.field(name="version")


def encode_json(document: object) -> bytes:
    """Return a document of ours as JSON; for users' values see `user_json`."""
    return msgspec.json.encode(document)

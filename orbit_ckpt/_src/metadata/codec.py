"""JSON as the documents of a checkpoint need it: fast, and checked against types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype, python_scalar
from orbit_ckpt._src.errors import FormatError, VersionError
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


def decode_versioned(data: bytes, kind: type[T], where: str, *, newest: int) -> T:
    """Return a JSON document of ours, which has a `format_version`.

    Args:
        data: Its bytes.
        kind: What it must be.
        where: The file, for errors.
        newest: The latest version that can be read.

    Raises:
        FormatError: It is not such a document, or was written by a later version.
    """
    version = decode_json(data, _Version, where).format_version
    if version > newest:
        raise VersionError(
            f"{where}: format version {version}; this version of orbit_ckpt reads up to {newest}. "
            "Install a newer one."
        )
    return decode_json(data, kind, where)


class _Version(msgspec.Struct):
    format_version: int


def encode_json(document: object) -> bytes:
    """Return a document of ours as JSON; for users' values see `encode_user_json`."""
    return msgspec.json.encode(document)


def encode_user_json(value: object) -> bytes:
    """Return any value that Python's own encoder takes, NaN included, as JSON.

    Arrays without dimensions, numpy's and JAX's, are written as numbers.

    Raises:
        TypeError: It does not take the value.
        ValueError: The value refers to itself.
    """
    return json.dumps(value, separators=(",", ":"), default=plain_scalar).encode()


def copy_json(value: object) -> object:
    """Return a value as it would come back from JSON.

    Raises:
        TypeError: It is not JSON.
        ValueError: It refers to itself.
    """
    return json.loads(encode_user_json(value))


def plain_scalar(value: object) -> object:
    """Return the Python scalar of a numpy scalar, or of an array without dimensions.

    Raises:
        TypeError: The value is something else, or has no number that JSON can hold.
    """
    dtype: object = getattr(value, "dtype", None)
    if dtype is not None and getattr(value, "shape", None) == () and not is_prng_dtype(dtype):
        scalar = python_scalar(np.asarray(value))
        if isinstance(scalar, bool | int | float | str):
            return scalar
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

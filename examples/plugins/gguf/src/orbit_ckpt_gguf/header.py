"""Read the header of a GGUF file, which may be damaged or made to do harm."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orbit_ckpt.errors import CorruptionError, FormatError
from orbit_ckpt_gguf.format import MAGIC
from orbit_ckpt_gguf.types import (
    CODES,
    Q8_0,
    VALUES_PER_BLOCK,
    Tensor,
    ValueType,
    is_readable,
    nbytes_of,
    type_name,
)

ALIGNMENT = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
VERSIONS = (2, 3)

_MAX_HEADER_BYTES = 1 << 28
_MAX_ELEMENTS = 1 << 60
_MAX_DEPTH = 8
_MAX_SHOWN = 5
_KEY_VALUE_BYTES = 8 + 4 + 1  # of the shortest one
_TENSOR_BYTES = 8 + 4 + 4 + 8


class _UnsoundError(Exception):
    """The header is not sound; the message says why."""


class _TooShortError(_UnsoundError):
    """The file ends too early."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file begins with.

    Attributes:
        metadata: The metadata by key.
        tensors: The tensors, in the order of their data.
    """

    metadata: Mapping[str, object]
    tensors: Sequence[Tensor]


def read_header(path: Path) -> Header:
    """Read the header of a file, and check that it describes the file.

    Raises:
        CorruptionError: The file ends too early.
        FormatError: The header is not sound, or of an unknown version; or a tensor has a type that
            is not read.
    """
    try:
        with path.open("rb") as file:
            return _read(_Source(file, path.stat().st_size), path)
    except _TooShortError as error:
        raise CorruptionError(
            f"{path} is not complete: {error}. Download or copy it again.", file=str(path)
        ) from error
    except _UnsoundError as error:
        raise FormatError(
            f"{path} is not a sound GGUF file: {error}. It is damaged, or was written by something "
            "else; download or copy it again."
        ) from error


def _read(source: _Source, path: Path) -> Header:
    if source.take(len(MAGIC)) != MAGIC:
        raise _UnsoundError("it does not begin with GGUF")
    version = source.number("I")
    if version not in VERSIONS:
        raise FormatError(
            f"{path} has version {version} of GGUF, or is big-endian; versions 2 and 3 in "
            "little-endian order can be read. Convert the model again."
        )
    tensor_count, value_count = source.number("Q"), source.number("Q")
    source.check_count(tensor_count, _TENSOR_BYTES, "tensors")
    source.check_count(value_count, _KEY_VALUE_BYTES, "metadata keys")
    metadata: dict[str, object] = {}
    for _ in range(value_count):
        key = source.text("a metadata key")
        if key in metadata:
            raise _UnsoundError(f"the metadata key {key!r} occurs twice")
        metadata[key] = source.value(source.value_type(key), key)
    alignment = _alignment(metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT))
    described = [_described(source) for _ in range(tensor_count)]
    _check_names(described)
    _refuse_unread(path, described)
    start = padded(source.position, alignment)
    return Header(metadata, list(_placed(described, start, alignment, source.size)))


def _alignment(value: object) -> int:
    if type(value) is not int or value < 1 or value & (value - 1):
        raise _UnsoundError(f"{ALIGNMENT} is {value!r}, expected a power of two")
    return value


@dataclass(frozen=True, slots=True)
class _Described:
    """A tensor as the header describes it; its offset is relative to the data."""

    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _described(source: _Source) -> _Described:
    name = source.text("the name of a tensor")
    count = source.number("I")
    if count > MAX_DIMENSIONS:
        raise _UnsoundError(f"{name!r} has {count} dimensions, expected at most {MAX_DIMENSIONS}")
    shape = tuple(source.number("Q") for _ in range(count))[::-1]
    if math.prod(max(1, n) for n in shape) > _MAX_ELEMENTS:
        raise _UnsoundError(f"{name!r} has the impossible shape {shape}")
    return _Described(name, shape, source.number("I"), source.number("Q"))


def _check_names(tensors: Sequence[_Described]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise _UnsoundError(f"two tensors are called {tensor.name!r}")
        seen.add(tensor.name)


def _refuse_unread(path: Path, tensors: Sequence[_Described]) -> None:
    """Refuse types that are not read, by name."""
    refused = [t for t in tensors if not is_readable(t.kind)]
    if not refused:
        return
    shown = [f"{t.name} ({type_name(t.kind)})" for t in refused[:_MAX_SHOWN]]
    more = f", and {len(refused) - _MAX_SHOWN} others" if len(refused) > _MAX_SHOWN else ""
    raise FormatError(
        f"{path}: {len(refused)} tensors have types that are not read: {', '.join(shown)}{more}. "
        "F32, F16, BF16, Q8_0, F64 and I8 to I64 are read. Convert the file with "
        "`llama-quantize --allow-requantize IN.gguf OUT.gguf F16`, or take an unquantized one."
    )


def _placed(
    tensors: Sequence[_Described], start: int, alignment: int, size: int
) -> Iterator[Tensor]:
    """Yield the tensors with their places; each begins where the one before it ends."""
    expected = start
    for tensor in tensors:
        if tensor.kind == Q8_0 and (not tensor.shape or tensor.shape[-1] % VALUES_PER_BLOCK):
            raise _UnsoundError(
                f"{tensor.name!r} has type Q8_0 and shape {tensor.shape}, expected a last "
                f"dimension that is a multiple of {VALUES_PER_BLOCK}"
            )
        offset = start + tensor.offset
        if offset != expected:
            raise _UnsoundError(f"{tensor.name!r} begins at {offset}, expected {expected}")
        nbytes = nbytes_of(tensor.kind, math.prod(tensor.shape))
        if offset + nbytes > size:
            raise _TooShortError(
                f"it has {size} bytes, and {tensor.name!r} ends at {offset + nbytes}"
            )
        yield Tensor(tensor.name, tensor.shape, tensor.kind, offset, nbytes)
        expected = padded(offset + nbytes, alignment)
    if size > expected and tensors:
        raise _UnsoundError(f"its last {size - expected} bytes belong to no tensor")


def padded(position: int, alignment: int) -> int:
    """Return the next multiple of an alignment."""
    return -(-position // alignment) * alignment


class _Source:
    """The bytes of a header."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self.size = size
        self.position = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if count > self.size - self.position:
            raise _TooShortError(f"it ends after {self.size} bytes, in the middle of its header")
        if self.position + count > _MAX_HEADER_BYTES:
            raise _UnsoundError(f"its header has more than {_MAX_HEADER_BYTES} bytes")
        data = self._file.read(count)
        if len(data) != count:
            raise _TooShortError("it became shorter while it was read")
        self.position += count
        return data

    def number(self, code: str) -> int:
        """Return the next integer, of a type that `struct` knows by a code."""
        (found,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return found

    def check_count(self, count: int, nbytes: int, what: str) -> None:
        """Check that the file has room for a number of things."""
        if count * nbytes > self.size - self.position:
            raise _TooShortError(f"it has {self.size} bytes, too few for {count} {what}")

    def text(self, what: str) -> str:
        """Return the next string."""
        length = self.number("Q")
        data = self.take(length)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise _UnsoundError(f"{what} is not UTF-8: {data[:40]!r}") from error

    def value_type(self, key: str) -> ValueType:
        """Return the next type of a metadata value."""
        found = self.number("I")
        try:
            return ValueType(found)
        except ValueError as error:
            raise _UnsoundError(f"{key!r} has the unknown type {found}") from error

    def value(self, kind: ValueType, key: str, depth: int = 0) -> object:
        """Return the next value of a type."""
        if kind is ValueType.STRING:
            return self.text(f"the value of {key!r}")
        if kind is not ValueType.ARRAY:
            return self._numbers(kind, 1, key)[0]
        if depth == _MAX_DEPTH:
            raise _UnsoundError(f"{key!r} holds arrays nested too deep")
        inner, count = self.value_type(key), self.number("Q")
        if inner in CODES:
            return self._numbers(inner, count, key)
        self.check_count(count, 8, f"elements of {key!r}")
        return [self.value(inner, key, depth + 1) for _ in range(count)]

    def _numbers(self, kind: ValueType, count: int, key: str) -> list[object]:
        code = CODES[kind]
        self.check_count(count, struct.calcsize(code), f"elements of {key!r}")
        found = struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}")))
        if kind is not ValueType.BOOL:
            return list(found)
        if any(number > 1 for number in found):
            raise _UnsoundError(f"{key!r} is neither true nor false")
        return [bool(number) for number in found]

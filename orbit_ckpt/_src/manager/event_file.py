"""Scalars from an event file of TensorBoard, read as it grows; no TensorFlow is needed.

An event file is a sequence of records (length, checksum, data, checksum). The data of each is an
`Event` in protobuf's wire format, of which only what holds scalars is decoded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np
from crc32c import crc32c

_FLOATS: Mapping[object, tuple[int, str]] = {1: (5, "<f4"), 2: (6, "<f8")}
"""By number of TensorFlow's dtype: in which field of a tensor values are, and their numpy dtype."""

_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EventFile:
    """One file and what has been read of it.

    Attributes:
        path: The file.
        tag: The tag that is looked for.
        values: Its values by step.
        offset: Where the first record begins that has not been read.
        warned: Where the last record begins that a warning was given for.
    """

    path: Path
    tag: bytes
    values: dict[int, float] = field(default_factory=dict[int, float])
    offset: int = 0
    warned: int = -1

    def read_new(self) -> None:
        """Read what was appended; a last record that is not complete is left for later.

        If the file was deleted, what has been read of it stays.
        """
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self.offset:  # another file of the same name
                self.values, self.offset, self.warned = {}, 0, -1
            file.seek(self.offset)
            for data in self._records(file, size):
                try:
                    # most events hold other tags
                    self.values |= _scalars(data, self.tag) if self.tag in data else {}
                except (LookupError, ValueError) as error:
                    self._warn(f"is no event ({error}) and is skipped")

    def _records(self, file: BinaryIO, size: int) -> Iterator[bytes]:
        while len(header := file.read(12)) == 12:
            length, checksum = struct.unpack("<QI", header)
            if _masked_crc(header[:8]) != checksum:
                # where the next record begins is not known
                self._warn("has a damaged length; the rest of the file is not read")
                return
            end = self.offset + 12 + length + 4
            if end > size or len(record := file.read(length + 4)) < length + 4:
                return
            data = record[:-4]
            if _masked_crc(data) == int.from_bytes(record[-4:], "little"):
                yield data
            elif end == size:
                return  # perhaps it is being written
            else:
                self._warn("differs from its checksum and is skipped")
            self.offset = end

    def _warn(self, what: str) -> None:
        if self.offset != self.warned:
            _logger.warning("%s: the record at byte %d %s", self.path, self.offset, what)
            self.warned = self.offset


def _masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _scalars(event: bytes, tag: bytes) -> dict[int, float]:
    """Return the scalar of a tag in an `Event`, by step."""
    fields = dict(_fields(event))
    step = fields.get(2, 0)
    found: dict[int, float] = {}
    for number, value in _fields(fields.get(5, b"")):
        parts = dict(_fields(value)) if number == 1 else {}
        if parts.get(1) == tag and isinstance(step, int):
            scalar = _number(parts[2], "<f4") if 2 in parts else _tensor_number(parts.get(8, b""))
            if scalar is not None:
                found[step] = scalar
    return found


def _tensor_number(tensor: int | bytes) -> float | None:
    """Return the number that a `TensorProto` holds, None if it holds something else."""
    fields = dict(_fields(tensor))
    if fields.get(1) not in _FLOATS:
        return None
    number, dtype = _FLOATS[fields[1]]
    values = fields.get(4) or fields.get(number, b"")
    if not values and not fields.get(2):
        return 0.0  # no values at all stand for zeros
    return _number(values, dtype)


def _number(value: int | bytes, dtype: str) -> float | None:
    numbers = np.frombuffer(value, dtype) if isinstance(value, bytes) else np.zeros(0)
    return float(numbers[0]) if numbers.size == 1 else None


def _fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: integers as they are, all else as bytes."""
    if isinstance(message, int):
        raise ValueError("a number where a message should be")
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value, end = (0, at) if kind in _FIXED_SIZES else _varint(message, at)
        if kind != _VARINT:
            length = value if kind == _BYTES else _FIXED_SIZES[kind]
            value, end = message[end : end + length], end + length
            if end > len(message):
                raise ValueError("a field goes beyond the end")
        yield key >> 3, value
        at = end


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")

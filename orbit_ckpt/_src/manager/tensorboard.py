"""Metrics that a run logs to TensorBoard, by step, without TensorFlow.

An event file is a sequence of records (length, checksum, data, checksum). The data is an `Event` in
protobuf's wire format; only scalars are decoded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.runtime.process import ForkSafeLock
from orbit_ckpt._src.storage.path import PathLike, resolve_local, storage_errors

_FLOATS: Mapping[object, tuple[int, str]] = {1: (5, "<f4"), 2: (6, "<f8")}
"""By number of TensorFlow's dtype: in which field of a tensor values are, and their numpy dtype."""

_VARINT, _BYTES = 0, 2
_FIXED_SIZES = {1: 8, 5: 4}

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EventFile:
    """An event file and the values read from it so far.

    Attributes:
        path: The file.
        tag: The tag to find.
        values: Its values by step.
        offset: Start of the first record not yet read.
        warned: Start of the last record that caused a warning.
    """

    path: Path
    tag: bytes
    values: dict[int, float] = field(default_factory=dict[int, float])
    offset: int = 0
    warned: int = -1

    def read_new(self) -> None:
        """Read the records appended since the last call, except an incomplete last one.

        If the file has been deleted, the values read so far stay.
        """
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self.offset:  # the file was replaced
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
                # the start of the next record is unknown
                self._warn("has a damaged length; the rest of the file is not read")
                return
            end = self.offset + 12 + length + 4
            if end > size or len(record := file.read(length + 4)) < length + 4:
                return
            data = record[:-4]
            if _masked_crc(data) == int.from_bytes(record[-4:], "little"):
                yield data
            elif end == size:
                return  # perhaps still being written
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
    """Return the scalar with a tag in an `Event`, by step."""
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
    """Return the number in a `TensorProto`, None if it holds something else."""
    fields = dict(_fields(tensor))
    if fields.get(1) not in _FLOATS:
        return None
    number, dtype = _FLOATS[fields[1]]
    values = fields.get(4) or fields.get(number, b"")
    if not values and not fields.get(2):
        return 0.0  # no values mean zeros
    return _number(values, dtype)


def _number(value: int | bytes, dtype: str) -> float | None:
    numbers = np.frombuffer(value, dtype) if isinstance(value, bytes) else np.zeros(0)
    return float(numbers[0]) if numbers.size == 1 else None


def _fields(message: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message: integers decoded, all others as bytes."""
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
    """Return a number and the offset of its end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")


class TensorBoardMetrics:
    """One scalar of a run by step, read from TensorBoard event files.

    A metric `train/eval/loss` is the tag `eval/loss` of the run `train`: the run is the first of
    the directories `train` and `train/eval` that holds event files. If neither does, it is the tag
    `train/eval/loss` of files in `logdir` itself.
    """

    def __init__(self, logdir: PathLike, metric: str) -> None:
        if not metric or metric.endswith("/"):
            raise ValueError(f"The metric {metric!r} has no tag; give run and tag: 'train/loss'.")
        self._logdir = resolve_local(logdir)
        self._metric = metric
        self._run: tuple[Path, str] | None = None
        self._files: dict[Path, EventFile] = {}
        self._lock = ForkSafeLock()

    @property
    def metric(self) -> str:
        """Name of the metric, including the run."""
        return self._metric

    def values(self, steps: Collection[int]) -> Mapping[int, float]:
        """Return the metric of those steps for which it was recorded.

        The last of several values for one step counts; files are ordered by name. Each call reads
        only data written since the previous one. A damaged record is skipped with a warning.

        Raises:
            StorageError: A file cannot be read.
        """
        found: dict[int, float] = {}
        advice = "Check that it may be read."
        with self._lock, storage_errors(self._logdir, "reading metrics", advice):
            self._find_files()
            for path in sorted(self._files):
                file = self._files[path]
                file.read_new()
                found |= {step: file.values[step] for step in steps if step in file.values}
        return found

    def _find_files(self) -> None:
        if self._run is None:
            self._run = self._find_run()
            if self._run is not None:
                self._files = {}
        directory, tag = self._run or (self._logdir, self._metric)
        for path in _event_files(directory):
            self._files.setdefault(path, EventFile(path, tag.encode()))

    def _find_run(self) -> tuple[Path, str] | None:
        """Return the run's directory and the tag; they are fixed once found."""
        parts = self._metric.split("/")
        for count in range(1, len(parts)):
            directory = self._logdir.joinpath(*parts[:count])
            if _event_files(directory):
                return directory, "/".join(parts[count:])
        return None


def _event_files(directory: Path) -> list[Path]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [directory / name for name in names if "tfevents" in name]

"""What one process has written to its database, in the form in which others merge it.

A file beside the database's own index, divided into the ranges of keys that are merged separately:
who merges one of them reads nothing of the others. It is removed once all are merged.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path

import msgspec.msgpack
from msgspec import Struct

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.layout import OCDBT_MANIFEST, PART_INDEX, Value
from orbit_ckpt._src.storage.manifest import DatabaseRecord, FileRecord, Manifest
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.ocdbt_columns import (
    PackedEntries,
    files_of,
    have_checksums,
    join_packed,
    pack_entries,
)
from orbit_ckpt._src.storage.store_path import read_extent

_HEAD_BYTES = 4096
"""How much is read first: the head of nearly every file."""

_FRAME_BYTES = 8
"""Length and crc32c of the head, which come before it."""


class _Head(Struct, frozen=True, array_like=True):
    """The beginning of the file.

    Attributes:
        ranges: The digest of the ranges that it is divided into.
        places: Offset behind the head, length and crc32c of each range.
        files: The data files of the database, relative to it.
        records: The records of its files.
        sizes: The sizes of its data files without a record.
        has_checksums: Whether the checksums of all values in data files are known.
    """

    ranges: bytes
    places: list[tuple[int, int, int]]
    files: list[str]
    records: dict[str, FileRecord]
    sizes: dict[str, int]
    has_checksums: bool


class PartRange(Struct, frozen=True):
    """What a database has in a range of keys.

    Attributes:
        files: The paths of its data files.
        record: The records of all its files; paths here and above are relative to the directory
            around it.
        entries: The entries in the range.
        has_checksums: Whether the checksums of all values in data files are known.
    """

    files: Sequence[str]
    record: Manifest
    entries: PackedEntries
    has_checksums: bool


def write_part(
    directory: Path, record: Manifest, values: Mapping[bytes, Value], starts: Sequence[bytes] = ()
) -> None:
    """Write what the processes that merge a database need of it.

    Args:
        directory: Root of the database.
        record: Its record.
        values: What it holds.
        starts: The first keys of all ranges but the first.
    """
    keys = sorted(values)
    files = files_of(values.values())
    numbers = {file: number for number, file in enumerate(files)}
    bounds = [0, *(bisect_left(keys, start) for start in starts), len(keys)]
    ranges = [
        msgspec.msgpack.encode(pack_entries(keys[first:last], values, numbers))
        for first, last in pairwise(bounds)
    ]
    ends = accumulate(map(len, ranges))
    head = msgspec.msgpack.encode(
        _Head(
            _digest(starts),
            [(end - len(d), len(d), crc32c(d)) for end, d in zip(ends, ranges, strict=True)],
            files,
            dict(record.files),
            dict(record.database.files) if record.database else {},
            _has_values(record) and have_checksums(values.values()),
        )
    )
    frame = struct.pack("<II", len(head), crc32c(head))
    write_file(directory / PART_INDEX, b"".join([frame, head, *ranges]))


def read_part(directory: Path, part: str, starts: Sequence[bytes], number: int) -> PartRange:
    """Return what a database has in a range.

    Args:
        directory: The directory around it.
        part: Its name.
        starts: The first keys of all ranges but the first.
        number: The range, from 0.

    Raises:
        CorruptionError: The file that `write_part` has written is damaged, or the database if it is
            another program's, which has no such file.
    """
    start, stop = [b"", *starts][number], [*starts, None][number]
    file = f"{directory}/{part}/{PART_INDEX}"
    try:
        data = read_extent(file, 0, _HEAD_BYTES)
    except FileNotFoundError:
        return _read_foreign(directory, part, start, stop)
    size, checksum = struct.unpack_from("<II", data.ljust(_FRAME_BYTES, b"\0"))
    body = _FRAME_BYTES + size
    if len(data) < body:
        data += read_extent(file, len(data), body - len(data))
    head = msgspec.msgpack.decode(_checked(data[_FRAME_BYTES:body], checksum, file), type=_Head)
    is_divided_alike = head.ranges == _digest(starts)
    entries = [
        msgspec.msgpack.decode(
            _checked(_bytes(file, data, body + first, n), c, file), type=PackedEntries
        )
        for first, n, c in (head.places[number : number + 1] if is_divided_alike else head.places)
    ]
    if not is_divided_alike:  # its process does not save the same arrays as that which divides
        entries = [join_packed([some.between(start, stop) for some in entries])]
    record = Manifest(
        {f"{part}/{name}": found for name, found in head.records.items()},
        database=DatabaseRecord(0, b"", {f"{part}/{name}": n for name, n in head.sizes.items()}),
    )
    files = [f"{part}/{name}" for name in head.files]
    return PartRange(files, record, entries[0], head.has_checksums)


def _read_foreign(directory: Path, part: str, start: bytes, stop: bytes | None) -> PartRange:
    index = read_index(directory / part)
    above = f"{directory}/"
    values = {key.encode("utf-8", "surrogateescape"): value for key, value in index.items()}
    keys = sorted(key for key in values if start <= key and (stop is None or key < stop))
    files = files_of(values.values())
    numbers = {file: number for number, file in enumerate(files)}
    names = [file.removeprefix(above) for file in files]
    return PartRange(names, Manifest(), pack_entries(keys, values, numbers), has_checksums=False)


def _bytes(file: str, data: bytes, first: int, nbytes: int) -> bytes:
    """Return bytes of a file whose beginning has been read."""
    if first + nbytes <= len(data):
        return data[first : first + nbytes]
    return read_extent(file, first, nbytes)


def _checked(data: bytes, checksum: int, file: str) -> bytes:
    if crc32c(data) != checksum:
        raise CorruptionError(
            f"{file} is damaged: its checksum does not match. Nothing was committed; check the "
            "storage and save again.",
            file=file,
        )
    return data


def _digest(starts: Sequence[bytes]) -> bytes:
    return blake2b(msgspec.msgpack.encode(starts), digest_size=16).digest()


def _has_values(record: Manifest) -> bool:
    """Return whether values of a database are recorded one by one, not as whole data files."""
    return record.database is not None and set(record.files) == {OCDBT_MANIFEST}

"""Byte ranges of files to copy and to compare, in any process; imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.store_path import read_blocks

_BLOCK_BYTES = 1 << 20


class FileRange(Struct, frozen=True, gc=False):
    """A range of a file.

    Attributes:
        name: Path of the file in its directory.
        start: Position of the first byte.
        nbytes: Number of bytes; None for all of a file or object, of any size.
    """

    name: str
    start: int
    nbytes: int | None


class CopyUnit(Struct, frozen=True):
    """Ranges to copy between directories, or to compare with their checksums.

    Attributes:
        source: The directory to read.
        target: The directory to write, in which files of local ranges exist; None to compare.
        ranges: The ranges.
    """

    source: Path
    target: Path | None
    ranges: Sequence[FileRange]


class CopiedRange(Struct, frozen=True, gc=False):
    """What was read of a range.

    Attributes:
        nbytes: Number of bytes.
        checksum: Their crc32c.
    """

    nbytes: int
    checksum: int


def copy_unit(unit: CopyUnit) -> list[CopiedRange]:
    """Copy ranges, or read them again.

    Raises:
        StorageError: A file became shorter.
    """
    return [_copy(unit.source, unit.target, one) for one in unit.ranges]


def _copy(source: Path, target: Path | None, part: FileRange) -> CopiedRange:
    file = source / part.name
    nbytes = checksum = 0
    if part.nbytes is None and target is not None:

        def count(block: int) -> None:
            nonlocal nbytes
            nbytes += block

        checksum = directory_of(target).copy_file(file, part.name, count)
        return CopiedRange(nbytes, checksum)
    if part.nbytes is None:
        for block in read_blocks(file):
            nbytes, checksum = nbytes + len(block), crc32c(block, checksum)
        return CopiedRange(nbytes, checksum)
    writing = None if target is None else os.open(target / part.name, os.O_WRONLY)
    try:
        for block in _blocks(file, part.start, part.nbytes):
            if writing is not None:
                _write(writing, block, part.start + nbytes)
            nbytes, checksum = nbytes + len(block), crc32c(block, checksum)
    finally:
        if writing is not None:
            os.close(writing)
    return CopiedRange(nbytes, checksum)


def _blocks(file: Path, start: int, nbytes: int) -> Iterator[bytes]:
    with file.open("rb", buffering=0) as reading:
        reading.seek(start)
        while nbytes:
            block = reading.read(min(nbytes, _BLOCK_BYTES))
            if not block:
                raise StorageError(f"{file} became shorter while it was copied. Copy it again.")
            nbytes -= len(block)
            yield block


def _write(file: int, block: bytes, position: int) -> None:
    view = memoryview(block)
    while view:
        written = os.pwrite(file, view, position)
        view, position = view[written:], position + written

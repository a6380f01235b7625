"""Damage to the files of a checkpoint."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator, Iterator
from pathlib import Path

from msgspec import Struct


class BitFlip(Struct, frozen=True):
    """One bit that differs from what was written.

    Attributes:
        file: Path of the file, relative to the checkpoint.
        offset: Which byte.
        bit: Which bit of it, from 0 to 7.
    """

    file: str
    offset: int
    bit: int

    def __str__(self) -> str:
        return f"a flip of bit {self.bit} of byte {self.offset} of {self.file}"

    def apply(self, directory: Path) -> None:
        """Damage a checkpoint; a second time repairs it."""
        with (directory / self.file).open("r+b") as stream:
            stream.seek(self.offset)
            byte = stream.read(1)[0]
            stream.seek(self.offset)
            stream.write(bytes([byte ^ 1 << self.bit]))

    @contextlib.contextmanager
    def applied(self, directory: Path) -> Generator[None]:
        """Damage a checkpoint for the duration of a `with` block."""
        self.apply(directory)
        try:
            yield
        finally:
            self.apply(directory)


class Cut(Struct, frozen=True):
    """A file that ends too early.

    Attributes:
        file: Path of the file, relative to the checkpoint.
        size: How many bytes are left.
    """

    file: str
    size: int

    def __str__(self) -> str:
        return f"a cut of {self.file} to {self.size} bytes"

    @contextlib.contextmanager
    def applied(self, directory: Path) -> Generator[None]:
        """Damage a checkpoint for the duration of a `with` block."""
        file = directory / self.file
        data = file.read_bytes()
        file.write_bytes(data[: self.size])
        try:
            yield
        finally:
            file.write_bytes(data)


def cuts(directory: Path) -> Iterator[Cut]:
    """Yield cuts of every file of a checkpoint: to nothing, to a half, and by one byte."""
    for file in files_of(directory):
        size = file.stat().st_size
        for left in sorted({0, size // 2, size - 1} - {-1, size}):
            yield Cut(file.relative_to(directory).as_posix(), left)


def bit_flips(directory: Path, *, per_file: int = 8) -> Iterator[BitFlip]:
    """Yield flips in every file of a checkpoint, the same ones every time.

    Args:
        directory: The checkpoint.
        per_file: The most of each file, spread over it.
    """
    rng = random.Random(0)  # noqa: S311 - not cryptography
    for file in files_of(directory):
        size = file.stat().st_size
        for part in range(min(per_file, size)):
            offset = rng.randrange(size * part // per_file, size * (part + 1) // per_file or 1)
            yield BitFlip(file.relative_to(directory).as_posix(), offset, rng.randrange(8))


def files_of(directory: Path) -> list[Path]:
    """Return the files below a directory, in order."""
    return sorted(path for path in directory.rglob("*") if path.is_file())

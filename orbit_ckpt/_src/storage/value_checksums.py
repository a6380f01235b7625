"""Compute checksums of values as their parts are written to a data file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from crc32c import crc32c
from typing_extensions import Buffer

from orbit_ckpt._src.storage.manifest import FileRecord

_TAIL_BYTES = 4


class ValueChecksums:
    """The checksums of the values appended to one data file.

    Args:
        whole_file: Whether to compute the checksum of the file, else that of each value. For values
            that end in their own crc32c, one of the file would depend on their lengths only.
    """

    def __init__(self, *, whole_file: bool) -> None:
        self.last: int | None = None
        """Checksum of the last value; see `Extent.checksum`."""
        self._whole_file = whole_file
        self._checksum = 0
        self._tail = b""

    def views(self, parts: Iterable[Buffer], *, ends_in_checksum: bool) -> Iterator[memoryview]:
        """Yield the parts of a value; its checksum is `last` afterwards.

        Args:
            parts: The value's bytes.
            ends_in_checksum: Whether the last part is the crc32c of the others, little-endian.
        """
        must_sum = self._whole_file or not ends_in_checksum
        checksum, tail = (self._checksum, self._tail) if self._whole_file else (0, b"")
        view = memoryview(b"")
        for part in parts:
            view = memoryview(part)
            if must_sum:
                checksum = crc32c(view, checksum)
                tail = (tail + bytes(view.cast("B")[-_TAIL_BYTES:]))[-_TAIL_BYTES:]
            yield view
        if self._whole_file:
            self._checksum, self._tail = checksum, tail
        elif ends_in_checksum:
            self.last = int.from_bytes(view, "little")
        else:
            self.last = FileRecord.of(0, checksum, tail).crc32c

    def file_record(self, nbytes: int) -> FileRecord | None:
        """Return the record of the file, None if the values have checksums of their own."""
        return FileRecord.of(nbytes, self._checksum, self._tail) if self._whole_file else None

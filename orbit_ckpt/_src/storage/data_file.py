"""Append values to a data file on a disk."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from typing_extensions import Buffer

from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.manifest import ValueChecksums
from orbit_ckpt._src.storage.system import create_to_write, start_writeback, write, write_at

_GATHER_BYTES = 1 << 20
_GATHER_BUFFERS = 512
"""The system accepts at most 1024 buffers at once."""

_WRITEBACK_BYTES = 1 << 25
"""Bytes written before writeback is requested. By itself the system starts it only at the final
sync, and the disk is idle until then."""


class DataFile:
    """An append-only file; buffers are gathered until writing them pays."""

    def __init__(self, root: Path, name: str, sums: ValueChecksums) -> None:
        self.name = name
        self.nbytes = 0
        self.sums = sums
        self._descriptor = create_to_write(root / name)
        self._gathered: list[memoryview] = []
        self._gathered_bytes = 0
        self._written = 0
        self._on_its_way = 0

    def append(self, parts: Iterable[Buffer], *, ends_in_checksum: bool) -> Extent:
        offset = self.nbytes
        head: memoryview | None = None
        for view in self.sums.views(parts, ends_in_checksum=ends_in_checksum):
            head = view if head is None else head
            self._gathered.append(view)
            self._gathered_bytes += view.nbytes
            self.nbytes += view.nbytes
            if self._gathered_bytes >= _GATHER_BYTES or len(self._gathered) >= _GATHER_BUFFERS:
                self._flush()
        if self._written > offset:
            write_head(self._descriptor, head, offset)
        return Extent(self.name, offset, self.nbytes - offset, self.sums.last)

    def close(self) -> None:
        self._flush()
        os.fsync(self._descriptor)
        self.abort()

    def abort(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._written += self._gathered_bytes
        self._gathered_bytes = 0
        write_all(self._descriptor, gathered)
        if self._written - self._on_its_way >= _WRITEBACK_BYTES:
            start_writeback(self._descriptor, self._on_its_way, self._written - self._on_its_way)
            self._on_its_way = self._written


def write_head(descriptor: int, head: memoryview | None, offset: int) -> None:
    """Write the first part of a value again if it may have changed since."""
    if head is not None and isinstance(head.obj, bytearray):
        write_at(descriptor, head, offset)


def write_all(descriptor: int, buffers: Sequence[memoryview]) -> None:
    """Write buffers one after the other."""
    pending = [view.cast("B") for view in buffers if view.nbytes]
    while pending:
        written = write(descriptor, pending)
        done = 0
        while done < len(pending) and written >= pending[done].nbytes:
            written -= pending[done].nbytes
            done += 1
        del pending[:done]
        if written:
            pending[0] = pending[0][written:]

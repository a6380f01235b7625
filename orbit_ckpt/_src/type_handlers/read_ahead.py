"""Read small lazy arrays of a store in groups, in the order in which a copy asks for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.fingerprint import OpenedDirectory

_GROUP_BYTES = 1 << 25
"""Bytes that are requested at once: sixteen requests of two megabytes."""


class ReadAhead:
    """Reads arrays of one load before they are asked for, each once.

    Args:
        reader: Reads them.
        directory: Their directory.
        reads: The whole arrays, in the probable order of the questions.
        max_bytes: Maximum bytes held; those that were not asked for in time are read again.
    """

    def __init__(
        self,
        reader: BatchReader,
        directory: OpenedDirectory,
        reads: Sequence[ArrayRead],
        max_bytes: int,
    ) -> None:
        self._reader = reader
        self._directory = directory
        self._reads = reads
        self._max_bytes = min(_GROUP_BYTES, max_bytes)
        self._positions = {read.name: i for i, read in enumerate(reads)}
        """Positions of the arrays that have not been read."""
        self._held: dict[str, HostArray] = {}
        self._lock = threading.Lock()

    def take(self, name: str) -> HostArray | None:
        """Return the values of an array; None if they must be read alone.

        Args:
            name: Its storage name.
        """
        with self._lock:
            if name in self._positions:
                self._held = self._read_group(self._positions[name])
            return self._held.pop(name, None)

    def _read_group(self, start: int) -> dict[str, HostArray]:
        """Read an array and those that follow it."""
        reads: list[ArrayRead] = []
        nbytes = 0
        for read in self._reads[start:]:
            nbytes += read.nbytes
            if reads and nbytes > self._max_bytes:
                break
            if self._positions.pop(read.name, None) is not None:
                reads.append(read)
        try:
            with self._directory.reading(self._reads[start].where):
                found = run_sync(self._reader.read(reads))
        except CheckpointError:  # the damaged one is named when it is read alone
            return {}
        return {read.name: values for read, (values,) in zip(reads, found, strict=True)}

"""Keep what repeated reads of the same chunk need, within a byte budget."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.crc32c import crc32c

CHECKED_BLOCK_BYTES = 1 << 16
"""Size of the blocks whose checksums are kept of a large uncompressed chunk."""

KEPT_BYTES = 1 << 28
"""Default budget."""


class BlockSums:
    """Checksums of the consecutive blocks of an uncompressed chunk.

    They are computed while the chunk is compared with its own checksum. Later a part of it can be
    read alone: the blocks that it touches are compared with these.
    """

    def __init__(self) -> None:
        self.sums = array("I")
        self._sum = 0
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Memory that they take."""
        return len(self.sums) * self.sums.itemsize

    def add(self, data: memoryview) -> None:
        """Add the next bytes of the chunk."""
        while data.nbytes:
            piece = data[: CHECKED_BLOCK_BYTES - self._nbytes]
            data = data[piece.nbytes :]
            self._sum = crc32c(piece, self._sum)
            self._nbytes += piece.nbytes
            if self._nbytes == CHECKED_BLOCK_BYTES:
                self.finish()

    def finish(self) -> None:
        """End the last block."""
        if self._nbytes:
            self.sums.append(self._sum)
        self._sum = self._nbytes = 0


Kept = HostArray | BlockSums
"""The values of a chunk within its array, or checksums of its blocks."""


class KeptChunks:
    """What is kept of the chunks of one store; the least recently used is dropped first.

    Any thread may use it. It lives as long as the lazy arrays that read from the store.

    Args:
        max_bytes: The budget.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Memory held now."""
        return self._nbytes

    def get(self, key: str) -> Kept | None:
        """Return what is kept of a chunk."""
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key]

    def put(self, key: str, kept: Kept) -> None:
        """Keep something of a verified chunk, if it fits the budget."""
        if kept.nbytes > self.max_bytes:
            return
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._nbytes += kept.nbytes - (0 if replaced is None else replaced.nbytes)
            self._kept[key] = kept
            while self._nbytes > self.max_bytes:
                _, dropped = self._kept.popitem(last=False)
                self._nbytes -= dropped.nbytes

"""Read a chunk that is stored as it is from start to end, straight into its destination."""

from __future__ import annotations

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.storage.blosc import HEADER_BYTES, is_stored
from orbit_ckpt._src.storage.codec import CHECKSUM_BYTES, NOT_THE_WRITTEN
from orbit_ckpt._src.storage.kept_chunks import BlockSums
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.store_path import is_store_url
from orbit_ckpt._src.storage.value_read import ValueReader, part_of
from orbit_ckpt._src.storage.zarr import ZarrArray

_PIECE_BYTES = 1 << 19
"""Bytes that are read at once: a processor's cache holds them until their checksum is computed."""

_OBJECT_PIECE_BYTES = 1 << 30
"""The same for objects of a store, whose requests cost more than reading memory twice."""


def is_plain(layout: ZarrArray, value: Extent, reading: ValueReader) -> bool:
    """Return whether a chunk is its elements as they are, perhaps in a frame that encodes nothing.

    Args:
        layout: How the chunk's array is stored.
        value: The place of the chunk.
        reading: Reads; the caller counts the bytes.
    """
    if not layout.has_frames:
        return layout.compression is None
    if value.length != _nbytes(layout):
        return False
    head = memoryview(bytearray(HEADER_BYTES))
    count = reading.read_into(part_of(value, 0, HEADER_BYTES), [head])
    return count == HEADER_BYTES and is_stored(head, layout.chunk_nbytes)


def _nbytes(layout: ZarrArray) -> int:
    head = HEADER_BYTES if layout.has_frames else 0
    return head + layout.chunk_nbytes + (CHECKSUM_BYTES if layout.checksum else 0)


class PlainStream:
    """The elements of one chunk for which `is_plain` holds in C order, read straight into buffers.

    Like `ChunkStream`, it shows damage only after the last element: call `finish`.

    Args:
        layout: How the chunk's array is stored.
        value: The place of the chunk.
        reading: Reads; the caller counts the bytes.
        sums: Receives checksums of the chunk's blocks.
    """

    def __init__(
        self,
        layout: ZarrArray,
        value: Extent,
        reading: ValueReader,
        sums: BlockSums | None = None,
    ) -> None:
        self._sums = sums
        self._value = value
        self._reading = reading
        self._checksum = memoryview(bytearray(CHECKSUM_BYTES if layout.checksum else 0))
        self._nbytes = _nbytes(layout)
        self._head_bytes = HEADER_BYTES if layout.has_frames else 0
        self._piece_bytes = _OBJECT_PIECE_BYTES if is_store_url(value.file) else _PIECE_BYTES
        self._position = 0
        self._sum = 0

    def read_into(self, buffer: memoryview) -> str | None:
        """Fill a buffer with the next elements; return what is wrong with the chunk."""
        if self._value.length != self._nbytes:
            return self._wrong_size
        if self._position < self._head_bytes:
            head = memoryview(bytearray(self._head_bytes))
            if not self._read(head):
                return self._wrong_size
            self._sum = crc32c(head)
        for start in range(0, buffer.nbytes, self._piece_bytes):
            piece = buffer[start : start + self._piece_bytes]
            if not self._read(piece):
                return self._wrong_size
            if self._checksum:
                self._sum = crc32c(piece, self._sum)
            if self._sums is not None:
                self._sums.add(piece)
        return None

    def finish(self) -> str | None:
        """Check the chunk, all of whose elements have been read; return what is wrong with it."""
        if self._position + self._checksum.nbytes != self._nbytes:
            return self._wrong_size
        if self._sums is not None:
            self._sums.finish()
        if not self._checksum:
            return None
        if self._sum != int.from_bytes(self._checksum, "little"):
            return "its checksum does not match"
        if self._value.checksum not in (None, self._sum):
            return NOT_THE_WRITTEN
        return None

    def _read(self, piece: memoryview) -> bool:
        """Fill a piece with the next bytes; with the last elements, read the checksum too."""
        start, self._position = self._position, self._position + piece.nbytes
        is_last = self._position + self._checksum.nbytes == self._nbytes
        pieces = [piece, self._checksum] if is_last and self._checksum else [piece]
        nbytes = sum(piece.nbytes for piece in pieces)
        return self._reading.read_into(part_of(self._value, start, nbytes), pieces) == nbytes

    @property
    def _wrong_size(self) -> str:
        return f"it does not have {self._nbytes} bytes"

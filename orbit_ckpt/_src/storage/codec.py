"""Encode the chunks we write, and decode those that need no codec but zstd or our form of Blosc.

Data passes through in pieces that fit a processor's cache, so that it is read from memory once for
the codec, the checksum and the disk together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, cast

import zstandard
from typing_extensions import Buffer

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.storage.blosc import FrameError, FrameReader
from orbit_ckpt._src.storage.blosc_write import FrameWriter
from orbit_ckpt._src.storage.checksums import join_checksums
from orbit_ckpt._src.storage.manifest import OWN_CHECKSUM
from orbit_ckpt._src.storage.zarr import BLOSC, ZarrArray
from orbit_ckpt._src.storage.zstd import choose_compressor

PIECE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
CHECKSUM_BYTES = 4

_MAX_HELD_BYTES = 1 << 20
"""Larger chunks are not held whole while they are encoded."""

_MIN_SAVING = 1 / 10
"""The part of its size that a chunk of numbers must save to be encoded."""

_EMPTY_FRAME = bytes.fromhex("502a4d18 00000000")
"""Zstd skips it, unless it is still inside of another frame."""

NOT_THE_WRITTEN = "its checksum is right but not that of what was written: it is of another save"
"""Problem of a value that is intact, but in the place of another one."""

_SAMPLES, _SAMPLE_BYTES = 4, 1 << 13


def encode_chunk(layout: ZarrArray, pieces: Iterable[memoryview], nbytes: int) -> Iterator[Buffer]:
    """Yield the stored form of a chunk.

    The first part, if it is a bytearray, is complete only after all others have been yielded.

    Args:
        layout: How its array is stored.
        pieces: Its elements in C order, as bytes, in pieces of any size.
        nbytes: Their total size.
    """
    if layout.compression == BLOSC and nbytes > _MAX_HELD_BYTES:
        yield from _encode_frame(layout, pieces, nbytes)
        return
    encoded = _compress(layout, pieces, nbytes)
    if not layout.checksum:
        yield from encoded
        return
    checksum = 0
    for piece in encoded:
        checksum = crc32c(piece, checksum)
        yield piece
    yield checksum.to_bytes(CHECKSUM_BYTES, "little")


def _encode_frame(layout: ZarrArray, pieces: Iterable[memoryview], nbytes: int) -> Iterator[Buffer]:
    parts = _write_frame(layout, pieces, nbytes)
    head = next(parts)
    yield head
    checksum = written = 0
    for part in _split(map(memoryview, parts)):
        checksum = crc32c(part, checksum)
        written += part.nbytes
        yield part
    checksum = join_checksums(crc32c(head), checksum, written)
    yield checksum.to_bytes(CHECKSUM_BYTES, "little")


def _write_frame(layout: ZarrArray, pieces: Iterable[memoryview], nbytes: int) -> Iterator[Buffer]:
    return FrameWriter(nbytes, layout.dtype.itemsize, min_saving=_MIN_SAVING).encode(pieces)


def _split(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yield buffers of bytes in consecutive pieces that fit a processor's cache."""
    for data in pieces:
        for start in range(0, data.nbytes, PIECE_BYTES):
            yield data[start : start + PIECE_BYTES]


def decode_chunk(
    layout: ZarrArray, encoded: memoryview, chunk: memoryview, expected: int | None = None
) -> str | None:
    """Decode the stored form of a chunk into a buffer of its size; return what is wrong with it.

    `ZarrArray.is_direct` must hold for the layout.

    Args:
        layout: How its array is stored.
        encoded: The stored form.
        chunk: Destination of the elements.
        expected: The recorded checksum, if known; see `Extent.checksum`.
    """
    if layout.checksum:
        if crc32c(encoded) != OWN_CHECKSUM:
            return "its checksum does not match"
        if expected is not None and expected != _stored_checksum(encoded):
            return NOT_THE_WRITTEN
        encoded = encoded[:-CHECKSUM_BYTES]
    if layout.compression is None:
        if encoded.nbytes != chunk.nbytes:
            return f"it does not have {chunk.nbytes} bytes"
        chunk[:] = encoded
        return None
    return _decompress(encoded, layout, chunk)


def _stored_checksum(encoded: memoryview) -> int:
    return int.from_bytes(encoded[-CHECKSUM_BYTES:], "little")


def decode_stream(
    layout: ZarrArray,
    read: Callable[[int], bytes],
    nbytes: int,
    chunk: memoryview,
    expected: int | None = None,
) -> str | None:
    """Decode a compressed chunk while reading it; else as `decode_chunk`.

    Args:
        layout: How its array is stored.
        read: Returns the next bytes of the stored form, at most as many as requested.
        nbytes: Size of the stored form.
        chunk: Destination of the elements; undefined after an error.
        expected: As for `decode_chunk`.
    """
    stream = ChunkStream(layout, read, nbytes, expected)
    return stream.read_into(chunk) or stream.finish()


class ChunkStream:
    """The elements of one chunk in C order, read a piece at a time.

    Damage shows only after the last element: call `finish`.
    """

    def __init__(
        self,
        layout: ZarrArray,
        read: Callable[[int], bytes],
        nbytes: int,
        expected: int | None = None,
    ) -> None:
        """Begin to decode a chunk; see `decode_stream`."""
        self._expected = expected
        self._layout = layout
        self._read = read
        self._nbytes = nbytes
        self._checksum_bytes = CHECKSUM_BYTES if layout.checksum else 0
        self._source = _Source(read, max(0, nbytes - self._checksum_bytes))
        self._reader = self._source
        if layout.compression is not None:
            self._reader = _open(layout, self._source, self._source.remaining)

    def read_into(self, buffer: memoryview) -> str | None:
        """Fill a buffer with the next elements; return what is wrong with the chunk."""
        try:
            is_whole = _fill(self._reader, buffer)
        except (FrameError, zstandard.ZstdError) as error:
            return self._check(f"it cannot be decompressed: {error}")
        return None if is_whole else self._check(_wrong_size(self._layout))

    def finish(self) -> str | None:
        """Check the chunk, all of whose elements have been read; return what is wrong with it."""
        try:
            has_more = bool(self._reader.read(1))
        except (FrameError, zstandard.ZstdError) as error:
            return self._check(f"it cannot be decompressed: {error}")
        return self._check(_wrong_size(self._layout) if has_more else None)

    def _check(self, problem: str | None) -> str | None:
        """Compare the checksum, which says more than the decompressor's error."""
        while self._source.remaining and self._source.read(PIECE_BYTES):
            pass
        if self._nbytes < self._checksum_bytes:
            return _wrong_size(self._layout)
        stored = self._read(self._checksum_bytes) if self._checksum_bytes else b""
        if self._source.remaining or len(stored) != self._checksum_bytes:
            return f"it does not have {self._nbytes} bytes"
        if stored and self._source.checksum != int.from_bytes(stored, "little"):
            return "its checksum does not match"
        if stored and self._expected not in (None, self._source.checksum):
            return NOT_THE_WRITTEN
        return problem


class _Source:
    """The encoded bytes of a chunk; keeps a running checksum."""

    def __init__(self, read: Callable[[int], bytes], nbytes: int) -> None:
        self.remaining = nbytes
        self.checksum = 0
        self._read = read

    def read(self, size: int) -> bytes:
        data = self._read(min(size, self.remaining))
        self.remaining -= len(data)
        self.checksum = crc32c(data, self.checksum)
        return data

    def readinto(self, buffer: memoryview) -> int:
        data = self.read(min(buffer.nbytes, PIECE_BYTES))
        buffer[: len(data)] = data
        return len(data)


class _Memory:
    """The encoded bytes of a chunk, without a running checksum."""

    def __init__(self, data: memoryview) -> None:
        self._rest = data

    def read(self, size: int) -> memoryview:
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


def _decompress(encoded: memoryview, layout: ZarrArray, chunk: memoryview) -> str | None:
    try:
        reader = _open(layout, _Memory(encoded), encoded.nbytes)
        if not _fill(reader, chunk) or reader.read(1):
            return _wrong_size(layout)
    except (FrameError, zstandard.ZstdError) as error:
        return f"it cannot be decompressed: {error}"
    return None


def _open(layout: ZarrArray, source: _Source | _Memory, nbytes: int) -> _Reader:
    if layout.compression == BLOSC:
        return FrameReader(source.read, nbytes, layout.chunk_nbytes)
    decompressor = zstandard.ZstdDecompressor()
    reader = decompressor.stream_reader(
        cast(Any, _Frames(source)), read_size=_READ_BYTES, read_across_frames=True
    )
    return cast(_Reader, reader)


class _Frames:
    """Encoded bytes for zstd, which by itself does not notice that the last frame has no end."""

    def __init__(self, source: _Source | _Memory) -> None:
        self._source = source
        self._end = _EMPTY_FRAME

    def read(self, size: int) -> bytes | memoryview:
        data = self._source.read(size)
        if not data:
            data, self._end = self._end[:size], self._end[size:]
        return data


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def readinto(self, buffer: memoryview, /) -> int: ...


def _fill(reader: _Reader, buffer: memoryview) -> bool:
    done = 0
    while done < buffer.nbytes and (count := reader.readinto(buffer[done:])):
        done += count
    return done == buffer.nbytes


def _wrong_size(layout: ZarrArray) -> str:
    verb = "decompress to" if layout.compression else "have"
    return f"it does not {verb} {layout.chunk_nbytes} bytes"


def _compress(layout: ZarrArray, pieces: Iterable[memoryview], nbytes: int) -> Iterable[Buffer]:
    if layout.compression is None:
        return _split(pieces)
    if layout.compression == BLOSC:
        return list(_write_frame(layout, pieces, nbytes))  # now the head is complete
    return _compress_zstd(_split(pieces), nbytes, checksum=not layout.checksum)


def _compress_zstd(pieces: Iterable[memoryview], nbytes: int, *, checksum: bool) -> Iterator[bytes]:
    iterator = iter(pieces)
    first = next(iterator)
    compressor = choose_compressor(_sample(first), checksum=checksum).compressobj(size=nbytes)
    yield compressor.compress(first)
    for piece in iterator:
        yield compressor.compress(piece)
    yield compressor.flush()


def _sample(data: memoryview) -> bytes:
    step = max(_SAMPLE_BYTES, data.nbytes // _SAMPLES)
    return b"".join(data[start : start + _SAMPLE_BYTES] for start in range(0, data.nbytes, step))

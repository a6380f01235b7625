"""Read frames of Blosc 1, the form of a chunk that zarr's `blosc` codec decodes.

A frame is a header, the positions of its blocks, and the blocks. A block is the shuffled bytes of
consecutive elements, as one stream per byte of an element; each is compressed by itself, or stored
as it is if that would not save anything. Here are read frames whose streams are zstd's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import pairwise

import zstandard
from msgspec import Struct
from typing_extensions import Buffer
from zstandard import ZstdDecompressor

from orbit_ckpt._src.arrays.shuffle import unshuffle

_MAX_NBYTES = 2**31 - 2**24
"""Maximum bytes of elements in a frame, whose lengths are signed numbers of four bytes."""

_MAX_ITEMSIZE = 16
"""Maximum streams of a block."""

_MIN_ELEMENTS = 128
"""Fewer are not worth a frame."""

_HEADER = struct.Struct("<BBBBiii")
"""Versions of the format and of its zstd streams, flags, size of an element; bytes of the elements,
of a block and of the frame."""

HEADER_BYTES = _HEADER.size

_VERSION, _ZSTD_VERSION = 2, 1
_SHUFFLED, _STORED, _BITSHUFFLED, _UNSPLIT = 1, 2, 4, 16
_CODEC_SHIFT, _ZSTD = 5, 4
_CODECS = ("blosclz", "lz4", "snappy", "zlib", "zstd")

LENGTH_BYTES = 4
"""Size of the position of a block, and of the length of a stream."""

_UNKNOWN = -1
"""zstandard's size of contents that a stream does not say."""


class FrameError(ValueError):
    """A frame is not one that can be decoded."""


class FrameHeader(Struct, frozen=True):
    """What a frame says of itself.

    Attributes:
        elements_nbytes: Size of its elements.
        block_bytes: Size of the elements of one block.
        nbytes: Size of the frame.
        itemsize: Size of one element.
        codec: Name of what compressed its streams.
        is_stored: Whether the elements follow as they are.
        is_shuffled: Whether the bytes of the elements are shuffled.
        is_bitshuffled: Whether the bits of the elements are.
        is_split: Whether a whole block has a stream for each byte of an element, not one for all.
    """

    elements_nbytes: int
    block_bytes: int
    nbytes: int
    itemsize: int
    codec: str
    is_stored: bool
    is_shuffled: bool
    is_bitshuffled: bool
    is_split: bool


def parse_header(data: Buffer) -> FrameHeader:
    """Parse the first `HEADER_BYTES` of a frame.

    Raises:
        FrameError: They are no header of a frame.
    """
    size = memoryview(data).nbytes
    if size < HEADER_BYTES:
        raise FrameError(f"its {size} bytes are fewer than a Blosc frame has")
    fields: tuple[int, ...] = _HEADER.unpack(data)
    version, _, flags, itemsize, elements_nbytes, block_bytes, nbytes = fields
    codec = flags >> _CODEC_SHIFT
    if version != _VERSION or codec >= len(_CODECS) or not itemsize:
        raise FrameError(f"it does not begin like a Blosc frame: {bytes(data)[:4].hex(' ')}")
    return FrameHeader(
        elements_nbytes,
        block_bytes,
        nbytes,
        itemsize,
        _CODECS[codec],
        is_stored=bool(flags & _STORED),
        is_shuffled=bool(flags & _SHUFFLED) and itemsize > 1,
        is_bitshuffled=bool(flags & _BITSHUFFLED),
        is_split=not flags & _UNSPLIT,
    )


def pack_header(
    nbytes: int, elements_nbytes: int, block_bytes: int, itemsize: int, *, is_stored: bool
) -> bytes:
    """Return the header of a frame that we write; see `FrameHeader`."""
    flags = _ZSTD << _CODEC_SHIFT | (_STORED if is_stored else _SHUFFLED)
    sizes = elements_nbytes, block_bytes, nbytes
    return _HEADER.pack(_VERSION, _ZSTD_VERSION, flags, itemsize, *sizes)


def check_header(header: FrameHeader, nbytes: int, elements_nbytes: int) -> None:
    """Check that a frame can have the sizes that it claims.

    Args:
        header: What it says.
        nbytes: Its size.
        elements_nbytes: Size that its elements must have.

    Raises:
        FrameError: It cannot.
    """
    if header.nbytes != nbytes:
        raise FrameError(f"its {nbytes} bytes are a Blosc frame of {header.nbytes}")
    if header.elements_nbytes != elements_nbytes:
        raise FrameError(f"it does not decompress to {elements_nbytes} bytes")
    if not 0 < header.block_bytes <= max(elements_nbytes, 1):
        raise FrameError(f"it has blocks of {header.block_bytes} bytes")
    if header.is_stored and nbytes != HEADER_BYTES + elements_nbytes:
        raise FrameError(f"it does not have {elements_nbytes} bytes")


def is_stored(head: Buffer, elements_nbytes: int) -> bool:
    """Return whether the first `HEADER_BYTES` of a frame say that its elements follow as they are.

    Args:
        head: The first bytes.
        elements_nbytes: Size that the elements must have.
    """
    try:
        header = parse_header(head)
        check_header(header, HEADER_BYTES + elements_nbytes, elements_nbytes)
    except FrameError:
        return False
    return header.is_stored


def can_encode(nbytes: int, itemsize: int) -> bool:
    """Return whether elements can be encoded as a frame, and are worth it.

    Args:
        nbytes: Their size.
        itemsize: Size of one; single bytes have nothing to shuffle.
    """
    return 1 < itemsize <= _MAX_ITEMSIZE and _MIN_ELEMENTS * itemsize <= nbytes <= _MAX_NBYTES


class FrameReader:
    """Decodes a frame from its start to its end.

    Every number in it is checked before memory is read or allocated by it. No more than a block is
    held, unless the blocks are out of order, as those of writers with several threads.
    """

    def __init__(self, read: Callable[[int], Buffer], nbytes: int, elements_nbytes: int) -> None:
        """Begin to decode a frame.

        Args:
            read: Returns the next bytes of the frame, at most as many as requested.
            nbytes: Size of the frame.
            elements_nbytes: Size that its elements must have.
        """
        self._source = read
        self._nbytes = nbytes
        self._remaining = elements_nbytes
        self._decoded = memoryview(b"")
        self._decompressor = ZstdDecompressor()
        self._header: FrameHeader | None = None
        self._blocks: Iterator[memoryview] = iter(())

    def read(self, size: int) -> bytes:
        """Return the next bytes of the elements, empty at their end; see `readinto`."""
        data = bytearray(size)
        return bytes(data[: self.readinto(memoryview(data))])

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with the next bytes of the elements, as far as one block does.

        Returns:
            The number of bytes, 0 at the end.

        Raises:
            FrameError: They cannot be decoded.
            zstandard.ZstdError: The same.
        """
        header = self._header or self._read_header()
        if not self._decoded and self._remaining:
            size = min(header.block_bytes, self._remaining)
            if header.is_stored:
                size = min(size, buffer.nbytes)
            self._remaining -= size
            if size <= buffer.nbytes:
                self._decode_next(header, buffer[:size])
                return size
            self._decoded = memoryview(bytearray(size))
            self._decode_next(header, self._decoded)
        part = self._decoded[: buffer.nbytes]
        buffer[: part.nbytes] = part
        rest = self._decoded[part.nbytes :]
        self._decoded = rest or memoryview(b"")  # an empty view would hold the block
        return part.nbytes

    def _read_header(self) -> FrameHeader:
        header = parse_header(self._exactly(min(self._nbytes, HEADER_BYTES)))
        check_header(header, self._nbytes, self._remaining)
        if header.codec != "zstd" or header.is_bitshuffled:
            how = "bit-shuffled " if header.is_bitshuffled else ""
            raise FrameError(f"its streams are {how}{header.codec}, not those of its array")
        self._header = header
        self._blocks = self._read_blocks(header)
        return header

    def _decode_next(self, header: FrameHeader, into: memoryview) -> None:
        if header.is_stored:
            into[:] = self._exactly(into.nbytes)
        else:
            self._decode_block(header, next(self._blocks), into)

    def _read_blocks(self, header: FrameHeader) -> Iterator[memoryview]:
        """Yield the encoded blocks in the order of their elements."""
        count = -(-header.elements_nbytes // header.block_bytes)
        first = HEADER_BYTES + LENGTH_BYTES * count
        if first > header.nbytes:
            raise FrameError(f"its {header.nbytes} bytes do not have the positions of its blocks")
        starts = struct.unpack(f"<{count}i", self._exactly(LENGTH_BYTES * count))
        ends = sorted({*starts, header.nbytes})
        most = header.block_bytes + LENGTH_BYTES * _MAX_ITEMSIZE
        if ends[0] != first or len(ends) <= count or max(b - a for a, b in pairwise(ends)) > most:
            raise FrameError("the positions of its blocks are not those of blocks")
        if ends[:-1] == list(starts):
            for start, end in pairwise(ends):
                yield self._exactly(end - start)
            return
        end_of = dict(pairwise(ends))
        rest = self._exactly(header.nbytes - first)
        for start in starts:
            yield rest[start - first : end_of[start] - first]

    def _decode_block(self, header: FrameHeader, encoded: memoryview, into: memoryview) -> None:
        itemsize = header.itemsize if header.is_shuffled else 1
        is_whole = into.nbytes == header.block_bytes
        count = header.itemsize if header.is_split and is_whole else 1
        length, rest = divmod(into.nbytes, count)
        if rest:
            raise FrameError(f"its blocks of {into.nbytes} bytes are cut into {count} streams")
        streams = [self._decompress(stream, length) for stream in _cut(encoded, count, length)]
        if itemsize == count > 1:
            unshuffle(streams, into)
            return
        data = memoryview(b"".join(streams) if count > 1 else streams[0])
        length, rest = divmod(into.nbytes, itemsize)
        shuffled = into.nbytes - rest if itemsize > 1 else 0
        if shuffled:
            rows = [data[i * length : (i + 1) * length] for i in range(itemsize)]
            unshuffle(rows, into[:shuffled])
        into[shuffled:] = data[shuffled:]

    def _decompress(self, stream: memoryview, length: int) -> Buffer:
        if stream.nbytes == length:
            return stream
        if zstandard.frame_content_size(stream) not in (length, _UNKNOWN):
            raise FrameError(f"a stream of it does not decompress to {length} bytes")
        data = self._decompressor.decompress(stream, max_output_size=length)
        if len(data) != length:
            raise FrameError(f"a stream of it does not decompress to {length} bytes")
        return data

    def _exactly(self, nbytes: int) -> memoryview:
        data = memoryview(self._source(nbytes))
        while data.nbytes < nbytes:
            more = self._source(nbytes - data.nbytes)
            if not memoryview(more).nbytes:
                raise FrameError(f"it ends after {data.nbytes} of {nbytes} bytes")
            data = memoryview(b"".join((data, more)))
        return data


def _cut(encoded: memoryview, count: int, length: int) -> Iterator[memoryview]:
    """Yield the streams of a block.

    Args:
        encoded: The block.
        count: Number of streams.
        length: What each decompresses to.
    """
    end = 0
    for _ in range(count):
        start = end + LENGTH_BYTES
        nbytes = int.from_bytes(encoded[end:start], "little")
        end = start + nbytes
        if not 0 < nbytes <= length or end > encoded.nbytes:
            raise FrameError(f"a stream of it has {nbytes} bytes")
        yield encoded[start:end]
    if end < encoded.nbytes:
        raise FrameError(f"a block of it has {encoded.nbytes - end} bytes too many")

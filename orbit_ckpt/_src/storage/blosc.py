"""Frames of Blosc 1, the form of a chunk that zarr's `blosc` codec decodes.

A frame is a header, the positions of its blocks, and the blocks. A block is the shuffled bytes of
consecutive elements, as one stream per byte of an element; each is compressed by itself, or stored
as it is if that would not save anything. We write and read frames whose streams are zstd's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import zstandard
from msgspec import Struct
from typing_extensions import Buffer
from zstandard import ZstdCompressor, ZstdDecompressor

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.shuffle import shuffle, unshuffle
from orbit_ckpt._src.storage.zstd import NumberCompressors

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

_BLOCK_BYTES = 1 << 20
"""Size of the blocks that we write. What is made of one fits into a processor's cache, and the work
on one takes long enough that threads seldom wait for the interpreter lock."""

_LENGTH_BYTES = 4
_SAMPLE_BYTES = 1 << 13
_GLANCE_BYTES, _GLANCES = 256, 8
_BLOCKS_PER_GLANCE = 2
"""After how many blocks to look again at what is noise."""

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


def can_encode(nbytes: int, itemsize: int) -> bool:
    """Return whether elements can be encoded as a frame, and are worth it.

    Args:
        nbytes: Their size.
        itemsize: Size of one; single bytes have nothing to shuffle.
    """
    return 1 < itemsize <= _MAX_ITEMSIZE and _MIN_ELEMENTS * itemsize <= nbytes <= _MAX_NBYTES


class FrameWriter:
    """Encodes the elements of one chunk.

    Attributes:
        head: The frame's first part, complete only after all others have been made.
    """

    def __init__(self, nbytes: int, itemsize: int) -> None:
        """Begin a frame.

        Args:
            nbytes: Size of the elements, for which `can_encode` holds.
            itemsize: Size of one.
        """
        self._itemsize = itemsize
        self._nbytes = nbytes
        # what remains after equal blocks is not compressed; this way it is little
        count = -(-nbytes // _BLOCK_BYTES)
        self._block_bytes = nbytes // itemsize // count * itemsize
        self._compressors: Sequence[ZstdCompressor] = ()
        self._noise: Sequence[bool] = ()
        self._until_glance = 0
        blocks = -(-nbytes // self._block_bytes)
        self.head = bytearray(HEADER_BYTES + _LENGTH_BYTES * blocks)

    def encode(self, pieces: Iterable[memoryview]) -> Iterator[Buffer]:
        """Yield the parts of the frame after its head.

        Args:
            pieces: The elements as bytes.
        """
        end = len(self.head)
        starts: list[int] = []
        for block in _regroup(pieces, self._block_bytes):
            starts.append(end)
            for part in self._encode_block(block):
                end += memoryview(part).nbytes
                yield part
        flags = _ZSTD << _CODEC_SHIFT | _SHUFFLED
        sizes = self._nbytes, self._block_bytes, end
        _HEADER.pack_into(self.head, 0, _VERSION, _ZSTD_VERSION, flags, self._itemsize, *sizes)
        struct.pack_into(f"<{len(starts)}i", self.head, HEADER_BYTES, *starts)

    def _encode_block(self, block: memoryview) -> Iterator[Buffer]:
        if block.nbytes == self._block_bytes:
            return self._compress(block)
        planes = np.empty((self._itemsize, block.nbytes // self._itemsize), np.uint8)
        shuffle(block, planes)
        return iter((_length(block.nbytes) + planes.tobytes(),))

    def _compress(self, block: memoryview) -> Iterator[Buffer]:
        """Yield the streams of a block, each after its length."""
        length = block.nbytes // self._itemsize
        streams = np.empty((self._itemsize, _LENGTH_BYTES + length), np.uint8)
        streams[:, :_LENGTH_BYTES] = np.frombuffer(_length(length), np.uint8)
        planes = streams[:, _LENGTH_BYTES:]
        shuffle(block, planes)
        if not self._compressors:
            self._compressors = [_choose(plane) for plane in planes]
        if not self._until_glance:
            self._until_glance = _BLOCKS_PER_GLANCE
            self._noise = [*map(_is_noise, planes, self._compressors)]
        self._until_glance -= 1
        unwritten = 0
        for i, (plane, compressor) in enumerate(zip(planes, self._compressors, strict=True)):
            if self._noise[i]:
                continue
            compressed = compressor.compress(plane)
            if len(compressed) < length:
                if unwritten < i:  # streams that are stored as they are follow one another
                    yield streams[unwritten:i].reshape(-1).data
                yield _length(len(compressed)) + compressed
                unwritten = i + 1
        if unwritten < self._itemsize:
            yield streams[unwritten:].reshape(-1).data


_compressors = NumberCompressors()


def _choose(plane: HostArray) -> ZstdCompressor:
    start = max(0, len(plane) - _SAMPLE_BYTES) // 2
    return _compressors.choose(plane[start : start + _SAMPLE_BYTES].tobytes())


def _is_noise(plane: HostArray, compressor: ZstdCompressor) -> bool:
    """Return whether a compressor is of no use for a plane, from a sample."""
    step = len(plane) // _GLANCES
    if step <= 4 * _GLANCE_BYTES:
        return False
    sample = plane[: step * _GLANCES].reshape(_GLANCES, step)[:, :_GLANCE_BYTES].tobytes()
    return len(compressor.compress(sample)) >= len(sample)


def _regroup(pieces: Iterable[memoryview], nbytes: int) -> Iterator[memoryview]:
    """Yield the bytes of pieces in blocks of a size, of which only the last may be smaller."""
    gathered = bytearray()
    for piece in pieces:
        start = 0
        if gathered:
            start = min(nbytes - len(gathered), piece.nbytes)
            gathered += piece[:start]
            if len(gathered) < nbytes:
                continue
            yield memoryview(gathered)
            gathered = bytearray()
        while piece.nbytes - start >= nbytes:
            yield piece[start : start + nbytes]
            start += nbytes
        gathered += piece[start:]
    if gathered:
        yield memoryview(gathered)


def _length(nbytes: int) -> bytes:
    return nbytes.to_bytes(_LENGTH_BYTES, "little")


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
        first = HEADER_BYTES + _LENGTH_BYTES * count
        if first > header.nbytes:
            raise FrameError(f"its {header.nbytes} bytes do not have the positions of its blocks")
        starts = struct.unpack(f"<{count}i", self._exactly(_LENGTH_BYTES * count))
        ends = sorted({*starts, header.nbytes})
        most = header.block_bytes + _LENGTH_BYTES * _MAX_ITEMSIZE
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
        start = end + _LENGTH_BYTES
        nbytes = int.from_bytes(encoded[end:start], "little")
        end = start + nbytes
        if not 0 < nbytes <= length or end > encoded.nbytes:
            raise FrameError(f"a stream of it has {nbytes} bytes")
        yield encoded[start:end]
    if end < encoded.nbytes:
        raise FrameError(f"a block of it has {encoded.nbytes - end} bytes too many")

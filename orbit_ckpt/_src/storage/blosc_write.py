"""Write frames of Blosc 1, whose form is described in `storage.blosc`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from typing_extensions import Buffer
from zstandard import ZstdCompressor

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.shuffle import shuffle
from orbit_ckpt._src.storage.blosc import HEADER_BYTES, LENGTH_BYTES, pack_header
from orbit_ckpt._src.storage.zstd import NumberCompressors

_BLOCK_BYTES = 1 << 20
"""Size of the blocks that we write. What is made of one fits into a processor's cache, and the work
on one takes long enough that threads seldom wait for the interpreter lock."""

_SAMPLES, _SAMPLE_ELEMENTS = 8, 1 << 9
_GLANCE_BYTES, _GLANCES = 256, 8
_BLOCKS_PER_GLANCE = 2
"""After how many blocks to look again at what is noise."""


class FrameWriter:
    """Encodes the elements of one chunk."""

    def __init__(self, nbytes: int, itemsize: int, *, min_saving: float = 0) -> None:
        """Begin a frame.

        Args:
            nbytes: Size of the elements, for which `can_encode` holds.
            itemsize: Size of one.
            min_saving: The part of their size that encoding must save, by a sample; the elements
                are stored as they are if it saves less.
        """
        self._itemsize = itemsize
        self._nbytes = nbytes
        self._min_saving = min_saving
        # what remains after equal blocks is not compressed; this way it is little
        count = -(-nbytes // _BLOCK_BYTES)
        self._block_bytes = nbytes // itemsize // count * itemsize
        self._compressors: Sequence[ZstdCompressor] = ()
        self._noise: Sequence[bool] = ()
        self._until_glance = 0

    def encode(self, pieces: Iterable[memoryview]) -> Iterator[Buffer]:
        """Yield the parts of the frame.

        The first part, if it is a bytearray, is complete only after all others have been yielded.

        Args:
            pieces: The elements as bytes.
        """
        iterator = iter(pieces)
        first = next(iterator)
        self._compressors, saving = _choose(first, self._itemsize)
        if saving < self._min_saving:
            yield self._head(HEADER_BYTES + self._nbytes, is_stored=True)
            yield first
            yield from iterator
            return
        blocks = -(-self._nbytes // self._block_bytes)
        head = bytearray(HEADER_BYTES + LENGTH_BYTES * blocks)
        yield head
        end = len(head)
        starts: list[int] = []
        for block in _regroup(chain((first,), iterator), self._block_bytes):
            starts.append(end)
            for part in self._encode_block(block):
                end += memoryview(part).nbytes
                yield part
        head[:HEADER_BYTES] = self._head(end, is_stored=False)
        struct.pack_into(f"<{len(starts)}i", head, HEADER_BYTES, *starts)

    def _head(self, nbytes: int, *, is_stored: bool) -> bytes:
        sizes = nbytes, self._nbytes, self._block_bytes
        return pack_header(*sizes, self._itemsize, is_stored=is_stored)

    def _encode_block(self, block: memoryview) -> Iterator[Buffer]:
        if block.nbytes == self._block_bytes:
            return self._compress(block)
        planes = np.empty((self._itemsize, block.nbytes // self._itemsize), np.uint8)
        shuffle(block, planes)
        return iter((_length(block.nbytes) + planes.tobytes(),))

    def _compress(self, block: memoryview) -> Iterator[Buffer]:
        """Yield the streams of a block, each after its length."""
        length = block.nbytes // self._itemsize
        streams = np.empty((self._itemsize, LENGTH_BYTES + length), np.uint8)
        streams[:, :LENGTH_BYTES] = np.frombuffer(_length(length), np.uint8)
        planes = streams[:, LENGTH_BYTES:]
        shuffle(block, planes)
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


def _choose(data: memoryview, itemsize: int) -> tuple[Sequence[ZstdCompressor], float]:
    """Return the compressor for each byte of elements, and the part of their size that they save.

    Args:
        data: The elements, of which only a sample is compressed.
        itemsize: Size of one.
    """
    elements = np.frombuffer(data, np.uint8)[: data.nbytes // itemsize * itemsize]
    elements = elements.reshape(-1, itemsize)
    if len(elements) > _SAMPLES * _SAMPLE_ELEMENTS:
        step = len(elements) // _SAMPLES
        elements = elements[: step * _SAMPLES].reshape(_SAMPLES, step, itemsize)
        elements = elements[:, :_SAMPLE_ELEMENTS].reshape(-1, itemsize)
    planes = np.ascontiguousarray(elements.T)
    found = [_compressors.choose(plane.tobytes()) for plane in planes]
    nbytes = sum(min(size, len(elements)) for _, size in found)
    return [compressor for compressor, _ in found], 1 - nbytes / max(planes.nbytes, 1)


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
    return nbytes.to_bytes(LENGTH_BYTES, "little")

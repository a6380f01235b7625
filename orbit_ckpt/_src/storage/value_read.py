"""Read values from their places in an index: many small ones at once, large ones in place."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from orbit_ckpt._src.arrays.memory import Arena, aligned_empty, byte_view
from orbit_ckpt._src.storage.layout import Extent, Value
from orbit_ckpt._src.storage.scatter import even_size, scatter
from orbit_ckpt._src.storage.store_path import (
    StorePath,
    file_size,
    is_store_url,
    read_extent,
    read_object_into,
)
from orbit_ckpt._src.storage.system import open_to_read, read_at, read_into

MAX_AHEAD_BYTES = 1 << 20
"""Maximum bytes to read ahead while values follow one another."""

_OBJECT = -1
"""Replaces a file's descriptor for an object of a store."""

OBJECT_ALONE_BYTES = 1 << 22
"""Values of an object of a store from this size on are read by requests of their own."""

NOWHERE = Extent("", 0, 0)

_STREAM_BYTES = 1 << 23

_MAX_OPEN = 16
"""Maximum files that a reader keeps open; without a database every chunk is one."""


class Pieces(Extent, frozen=True, gc=False):
    """The places of a value in several pieces; its file and offset are the first's.

    Attributes:
        pieces: The consecutive pieces.
    """

    pieces: tuple[Extent, ...] = ()

    @classmethod
    def of(cls, pieces: Sequence[Extent]) -> Extent:
        """Return the place of a value from its pieces, at least one."""
        first = pieces[0]
        if len(pieces) == 1:
            return first
        length = sum(piece.length for piece in pieces)
        return cls(first.file, first.offset, length, pieces=tuple(pieces))


def part_of(value: Extent, start: int, length: int) -> Extent:
    """Return the place of a part of a value."""
    if not isinstance(value, Pieces):
        return Extent(value.file, value.offset + start, length)
    found: list[Extent] = []
    for piece in value.pieces:
        begin, end = max(0, start), min(piece.length, start + length)
        if begin < end:
            found.append(Extent(piece.file, piece.offset + begin, end - begin))
        start -= piece.length
    return Pieces.of(found or [Extent(value.file, value.offset, 0)])


class ValueReader:
    """Reads values for one thread.

    Attributes:
        arena: That thread's memory for the values.
        nbytes: Requested bytes read so far, counted by the caller.
    """

    def __init__(self, nbytes: int) -> None:
        self.arena = Arena(nbytes)
        self.nbytes = 0
        self._descriptors: dict[str, int] = {}
        self._window = memoryview(b"")
        self._window_place = NOWHERE
        self._scratch = bytearray()
        self._buffer = memoryview(b"")
        self._expected = NOWHERE

    def __enter__(self) -> ValueReader:
        return self

    def __exit__(self, *_: object) -> None:
        while self._descriptors:
            self._close_oldest()

    def buffer(self, nbytes: int) -> memoryview:
        """Return aligned memory, which is the same at the next call."""
        if self._buffer.nbytes < nbytes:
            self._buffer = byte_view(aligned_empty((nbytes,), np.dtype(np.uint8)))
        return self._buffer[:nbytes]

    def read(self, value: Value) -> memoryview:
        """Return the bytes of a value, fewer if the file ends early; valid until the next call."""
        if isinstance(value, bytes):
            return memoryview(value)
        if value.length > MAX_AHEAD_BYTES and not self._is_ahead(value):
            value = within_file(value)
        if isinstance(value, Pieces):
            buffer = memoryview(bytearray(value.length))
            return buffer[: self.read_into(value, [buffer])]
        place = self._window_place
        start = value.offset - place.offset
        if value.file != place.file or start < 0 or start + value.length > place.length:
            self._read_ahead(value)
            start = 0
        return self._window[start : start + value.length]

    def expect(self, place: Extent) -> None:
        """Read a place in an object of a store with the first value in it, which is read next.

        Of other objects nothing is read ahead.
        """
        self._expected = place

    def _is_ahead(self, value: Extent) -> bool:
        """Return whether a value was read ahead, or will be if it is read now."""
        places = self._window_place, self._expected
        return not isinstance(value, Pieces) and any(
            place.file == value.file
            and place.offset <= value.offset
            and value.offset + value.length <= place.offset + place.length
            for place in places
        )

    def _ahead_in_object(self, value: Extent) -> int:
        """Return how many bytes to read from a value of an object on; never expect them again."""
        expected = self._expected
        if value.file != expected.file or value.offset < expected.offset:
            return 0
        self._expected = NOWHERE
        return expected.offset + expected.length - value.offset

    def _read_ahead(self, value: Extent) -> None:
        """Read a value and, if it lies shortly behind the last ones, the bytes after it."""
        last = self._window_place
        gap = value.offset - last.offset - last.length
        is_next = value.file == last.file and 0 <= gap <= last.length
        ahead = min(2 * last.length, MAX_AHEAD_BYTES) if is_next else 0
        if self._open(value.file) == _OBJECT:  # a request costs as much as many bytes
            ahead = self._ahead_in_object(value)
        nbytes = max(value.length, ahead)
        self._window_place = NOWHERE  # the last window is overwritten
        if len(self._scratch) < nbytes:
            self._scratch = bytearray(nbytes)
        place = Extent(value.file, value.offset, nbytes)
        buffer = memoryview(self._scratch)[:nbytes]
        self._window = buffer[: self.read_into(place, [buffer])]
        self._window_place = Extent(value.file, value.offset, self._window.nbytes)

    def stream(self, value: Extent) -> Callable[[int], bytes]:
        """Return a function that reads the next bytes of a value, at most as many as requested."""
        if self._open(value.file) == _OBJECT:
            if self._is_ahead(value):
                return io.BytesIO(self.read(value)).read
            return _stream_object(value, _STREAM_BYTES)
        position = 0

        def read(size: int) -> bytes:
            nonlocal position
            place = _next_of(value, position, size)
            data = read_at(self._open(place.file), place.length, place.offset)
            position += len(data)
            return data

        return read

    def read_into(self, value: Extent, buffers: Sequence[memoryview]) -> int:
        """Fill buffers with the bytes of a value; return their number."""
        if isinstance(value, Pieces):
            return self._read_pieces(value, buffers)
        descriptor = self._open(value.file)
        if descriptor == _OBJECT:
            if self._is_ahead(value):
                return scatter(self.read(value), buffers)
            return read_object_into(value.file, value.offset, buffers)
        pending = list(buffers)
        done = 0
        while pending:
            count = read_into(descriptor, pending, value.offset + done)
            if count == 0:
                break
            done += count
            while pending and count >= pending[0].nbytes:
                count -= pending.pop(0).nbytes
            if count:
                pending[0] = pending[0][count:]
        return done

    def _read_pieces(self, value: Pieces, buffers: Sequence[memoryview]) -> int:
        done = 0
        for buffer in buffers:
            position = 0
            while position < buffer.nbytes:
                place = _next_of(value, done, buffer.nbytes - position)
                count = self.read_into(place, [buffer[position : position + place.length]])
                if count == 0:
                    return done
                done += count
                position += count
        return done

    def _open(self, file: str) -> int:
        """Return a file's descriptor, valid until the next call."""
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            if len(self._descriptors) >= _MAX_OPEN:
                self._close_oldest()
            descriptor = _OBJECT if is_store_url(file) else open_to_read(file)
            self._descriptors[file] = descriptor
        return descriptor

    def _close_oldest(self) -> None:
        descriptor = self._descriptors.pop(next(iter(self._descriptors)))
        if descriptor != _OBJECT:
            os.close(descriptor)


def _stream_object(value: Extent, about_bytes: int) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes of an object, fetched in large blocks."""
    block = memoryview(b"")
    block_bytes = even_size(value.length, about_bytes)
    fetched = 0

    def read(size: int) -> bytes:
        nonlocal block, fetched
        if not block.nbytes and fetched < value.length:
            place = _next_of(value, fetched, block_bytes)
            block = memoryview(read_extent(place.file, place.offset, place.length))
            fetched += place.length
        data = bytes(block[:size])
        block = block[size:]
        return data

    return read


def read_value(value: Value) -> bytes:
    """Return the bytes of one small value."""
    if isinstance(value, bytes):
        return value
    with ValueReader(0) as reader:
        return bytes(reader.read(value))


def open_value(value: Value) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes of a value, at most as many as requested.

    No file stays open in between, so that any number of values can be read in turns.
    """
    if isinstance(value, bytes):
        return io.BytesIO(value).read
    if is_store_url(value.file):
        return _stream_object(value, OBJECT_ALONE_BYTES)
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        place = _next_of(value, position, size)
        with open(place.file, "rb", buffering=0) as file:
            data = read_at(file.fileno(), place.length, place.offset)
        position += len(data)
        return data

    return read


def within_file(value: Extent) -> Extent:
    """Truncate the place of a value to its files, before memory is allocated for it.

    Raises:
        FileNotFoundError: A file is missing.
    """
    pieces = value.pieces if isinstance(value, Pieces) else (value,)
    found: list[Extent] = []
    for piece in pieces:
        size = file_size(StorePath(piece.file) if is_store_url(piece.file) else Path(piece.file))
        length = max(0, min(piece.length, size - piece.offset))
        found.append(Extent(piece.file, piece.offset, length))
        if length < piece.length:
            break
    return Pieces.of(found)


def _next_of(value: Extent, position: int, size: int) -> Extent:
    """Return the place of the next bytes of a value, at most to the end of a piece."""
    pieces = value.pieces if isinstance(value, Pieces) else (value,)
    for piece in pieces:
        if position < piece.length:
            length = min(size, piece.length - position)
            return Extent(piece.file, piece.offset + position, length)
        position -= piece.length
    return Extent(value.file, value.offset, 0)

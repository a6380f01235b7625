"""Decode what OCDBT databases of any writer hold: the counterpart of `ocdbt_encode`; pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, compress, pairwise

import numpy as np
import zstandard
from crc32c import crc32c
from msgspec import Struct

from orbit_ckpt.storage.ocdbt_encode import MANIFEST_MAGIC, NODE_MAGIC, Extent, Value

_HEADER_BYTES = 12
_CHECKSUM_BYTES = 4
_MAX_VARINT_BYTES = 10
_MISSING = 2**64 - 1


class DecodeError(ValueError):
    """The bytes are not what a writer of this format makes; they have been damaged."""


class UnsupportedError(ValueError):
    """The bytes may be a form that a later writer makes."""


class Child(Struct, frozen=True):
    """A reference to a node.

    Attributes:
        place: Where it is.
        base: Directory that paths in the node are relative to.
        prefix: What all keys below it begin with.
    """

    place: Extent
    base: str
    prefix: bytes


class Manifest(Struct, frozen=True):
    """What a manifest says.

    Attributes:
        is_single: Whether this is the only manifest; else it only holds the configuration.
        root: The newest version's root node, None if it is empty.
    """

    is_single: bool
    root: Child | None


class Node(Struct, frozen=True):
    """A decoded node: either children or keys with values.

    Attributes:
        children: The nodes below.
        keys: Keys, without the prefix that all keys of the node share.
        values: Their values.
    """

    children: Sequence[Child]
    keys: Sequence[bytes]
    values: Sequence[Value]


def decode_manifest(data: bytes, base: str) -> Manifest:
    """Decode the file `manifest.ocdbt`.

    Args:
        data: Its contents.
        base: The database's root with a slash behind it; paths are returned with it.

    Raises:
        DecodeError: It is damaged.
        UnsupportedError: It is of an unknown version.
    """
    columns = _Columns(_unframe(data, MANIFEST_MAGIC))
    columns.take(16)  # the database's identifier
    kind, _, _ = columns.varints(3)
    columns.take(1)
    if columns.varint():
        columns.take(4)  # the compression level
    if kind:
        return Manifest(is_single=False, root=None)
    files = columns.files(base)
    count = columns.varint()
    columns.varints(count)  # generation numbers
    columns.take(count)  # heights
    ids, offsets, lengths = (columns.varints(count) for _ in range(3))
    if not count or offsets[-1] == _MISSING:
        return Manifest(is_single=True, root=None)
    path, base = files[ids[-1]]
    root = Child(Extent(path, offsets[-1], lengths[-1]), base, b"")
    return Manifest(is_single=True, root=root)


def decode_node(data: bytes, reference: Child) -> Node:
    """Decode a B+tree node.

    Args:
        data: Its bytes.
        reference: What led to it.

    Raises:
        DecodeError: It is damaged.
        UnsupportedError: It is of an unknown version.
    """
    columns = _Columns(_unframe(data, NODE_MAGIC))
    height = columns.take(1)[0]
    files = columns.files(reference.base)
    count = columns.varint()
    if height:
        return Node(_children(columns, files, count, reference.prefix), (), ())
    keys = columns.strings(columns.varints(count - 1), columns.varints(count))
    return Node((), keys, _values(columns, files, count))


def _children(
    columns: _Columns, files: Sequence[tuple[str, str]], count: int, prefix: bytes
) -> list[Child]:
    shared, rest, common = (columns.varints(n) for n in (count - 1, count, count))
    keys = columns.strings(shared, rest)
    ids, offsets, lengths = (columns.varints(count) for _ in range(3))
    return [
        Child(Extent(files[i][0], offset, length), files[i][1], prefix + key[:n])
        for key, n, i, offset, length in zip(keys, common, ids, offsets, lengths, strict=True)
    ]


def _values(columns: _Columns, files: Sequence[tuple[str, str]], count: int) -> list[Value]:
    lengths = columns.varints(count)
    kinds = columns.take(count)
    if max(kinds, default=0) > 1:
        raise UnsupportedError("a value of unknown kind")
    names = [files[i][0] for i in columns.varints(sum(kinds))]
    places = map(Extent, names, columns.varints(len(names)), compress(lengths, kinds))
    ends = list(accumulate([n for n, kind in zip(lengths, kinds, strict=True) if not kind]))
    inline = columns.take(ends[-1] if ends else 0)
    values = iter([inline[start:end] for start, end in pairwise((0, *ends))])
    return [next(places) if kind else next(values) for kind in kinds]


class _Columns:
    """Reads columns one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._position = 0

    def take(self, count: int) -> bytes:
        start, self._position = self._position, self._position + count
        if self._position > len(self._data):
            raise DecodeError("it ends too early")
        return self._data[start : self._position]

    def varint(self) -> int:
        return self.varints(1)[0]

    def varints(self, count: int) -> list[int]:
        """Return integers that are stored in groups of 7 bits, the last group not marked."""
        if count <= 0:
            return []
        short = self._data[self._position : self._position + count]
        if len(short) == count and max(short) < 0x80:
            self._position += count
            return list(short)
        start = self._position
        window = self._bytes[start : start + count * _MAX_VARINT_BYTES]
        ends = np.flatnonzero(window < 0x80)[:count]
        if len(ends) < count:
            raise DecodeError("it ends too early")
        starts = np.concatenate([[0], ends[:-1] + 1])
        widths = ends - starts + 1
        if widths.max() > _MAX_VARINT_BYTES:
            raise DecodeError("an integer is too long")
        numbers = np.zeros(count, np.uint64)
        for i in range(int(widths.max())):
            groups = window[np.minimum(starts + i, ends)].astype(np.uint64) & 0x7F
            numbers |= np.where(i < widths, groups << np.uint64(7 * i), 0)
        self._position += int(ends[-1]) + 1
        return numbers.tolist()

    def strings(self, shared: Sequence[int], rest: Sequence[int]) -> list[bytes]:
        """Return strings that are stored without what each shares with the one before it.

        Args:
            shared: How many bytes each but the first shares.
            rest: How many bytes of each are stored.
        """
        suffixes = self.take(sum(rest))
        found: list[bytes] = []
        last = b""
        start = 0
        for kept, end in zip((0, *shared), accumulate(rest), strict=False):
            last = last[:kept] + suffixes[start:end]
            start = end
            found.append(last)
        return found

    def files(self, base: str) -> list[tuple[str, str]]:
        """Return the path of every data file, and what paths in a node there are relative to."""
        count = self.varint()
        shared, rest, bases = (self.varints(n) for n in (count - 1, count, count))
        paths = self.strings(shared, rest)
        try:
            return [
                (base + path.decode(), base + path[:n].decode())
                for path, n in zip(paths, bases, strict=True)
            ]
        except UnicodeDecodeError as error:
            raise UnsupportedError(f"a path that is no text: {error}") from error


def _unframe(data: bytes, magic: int) -> bytes:
    """Return what stands between header and checksum, decompressed."""
    body = data[:-_CHECKSUM_BYTES]
    if len(data) < _HEADER_BYTES + 2 + _CHECKSUM_BYTES or data[:4] != magic.to_bytes(4):
        raise DecodeError("it does not begin as it should")
    if int.from_bytes(data[4:_HEADER_BYTES], "little") != len(data):
        raise DecodeError("it does not have the length that it records")
    if crc32c(body) != int.from_bytes(data[-_CHECKSUM_BYTES:], "little"):
        raise DecodeError("its checksum does not match")
    version, compression = body[_HEADER_BYTES : _HEADER_BYTES + 2]
    content = body[_HEADER_BYTES + 2 :]
    if version or compression > 1:
        raise UnsupportedError(f"version {version}, compression {compression}")
    if not compression:
        return content
    decompressor = zstandard.ZstdDecompressor()
    try:
        if zstandard.frame_content_size(content) >= 0:
            return decompressor.decompress(content)
        # not decompressobj, which copies all it has for every 128 KiB
        with decompressor.stream_reader(content) as reader:
            return reader.readall()
    except zstandard.ZstdError as error:
        raise DecodeError(str(error)) from error

"""Decode OCDBT databases of any writer: the counterpart of `ocdbt_encode`; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, compress, pairwise, repeat

import numpy as np
import zstandard
from msgspec import Struct

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.storage.inner_path import check_name
from orbit_ckpt._src.storage.layout import Extent, Value
from orbit_ckpt._src.storage.ocdbt_encode import MANIFEST_MAGIC, NODE_MAGIC

_HEADER_BYTES = 12
_CHECKSUM_BYTES = 4
_MAX_VARINT_BYTES = 10
_MISSING = 2**64 - 1
_MAX_FILE_BYTES = 2**63 - 1
_BLOCK_BYTES = 1 << 20
_BOMB = "it decompresses to more than a node can have"
_MAX_NODE_BYTES = 1 << 28
_MAX_SHARED_BYTES = 1 << 28
_MAX_RATIO = 64
"""Maximum decoded size of a node: this many bytes, or this many times its own; others are bombs."""


class DecodeError(ValueError):
    """The bytes are not valid in this format; they have been damaged."""


class UnsupportedError(ValueError):
    """The bytes may have a form of a later writer."""


class Child(Struct, frozen=True):
    """A reference to a node.

    Attributes:
        place: Its place.
        base: Directory that paths in the node are relative to.
        prefix: Prefix of all keys below it.
    """

    place: Extent
    base: str
    prefix: bytes


class OcdbtManifest(Struct, frozen=True):
    """The contents of a manifest.

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
        height: How many levels of nodes are below it.
        files: The data files that it names.
    """

    children: Sequence[Child]
    keys: Sequence[bytes]
    values: Sequence[Value]
    height: int
    files: Sequence[str]


def decode_manifest(data: bytes, base: str) -> OcdbtManifest:
    """Decode the file `manifest.ocdbt`.

    Args:
        data: Its contents.
        base: The database's root with a slash behind it; paths are returned with it.

    Raises:
        DecodeError: It is damaged.
        UnsupportedError: It is of an unknown version.
    """
    columns = _Columns(_unframe(data, MANIFEST_MAGIC), base)
    columns.read(16)  # the database's identifier
    kind, _, _ = columns.varints(3)
    columns.read(1)
    if columns.varint():
        columns.read(4)  # the compression level
    if kind:
        return OcdbtManifest(is_single=False, root=None)
    files = columns.files()
    count = columns.varint()
    columns.varints(count)  # generation numbers
    columns.read(count)  # heights
    ids, offsets, lengths = (columns.varints(count) for _ in range(3))
    if not count or offsets[-1] == _MISSING:
        return OcdbtManifest(is_single=True, root=None)
    (root,) = columns.children([b""], files, ids[-1:], offsets[-1:], lengths[-1:])
    return OcdbtManifest(is_single=True, root=root)


def decode_node(
    data: bytes, reference: Child, checksums: Iterable[int | None] = repeat(None)
) -> Node:
    """Decode a B+tree node.

    Args:
        data: Its bytes.
        reference: The reference to it.
        checksums: Checksum of every value in a data file, in the order of their keys; one is
            consumed for each.

    Raises:
        DecodeError: It is damaged.
        UnsupportedError: It is of an unknown version.
    """
    columns = _Columns(_unframe(data, NODE_MAGIC), reference.base)
    height = columns.read(1)[0]
    files = columns.files()
    count = columns.varint()
    names = [path for path, _ in files]
    if height:
        children = _children(columns, files, count, reference.prefix)
        return Node(children, (), (), height, names)
    keys = columns.strings(columns.varints(count - 1), columns.varints(count))
    return Node((), keys, _values(columns, names, count, checksums), height, names)


def _children(
    columns: _Columns, files: Sequence[tuple[str, str]], count: int, prefix: bytes
) -> list[Child]:
    shared, rest, common = (columns.varints(n) for n in (count - 1, count, count))
    keys = columns.strings(shared, rest)
    prefixes = [prefix + key[:n] for key, n in zip(keys, common, strict=True)]
    ids, offsets, lengths = (columns.varints(count) for _ in range(3))
    return columns.children(prefixes, files, ids, offsets, lengths)


def _values(
    columns: _Columns, files: Sequence[str], count: int, checksums: Iterable[int | None]
) -> list[Value]:
    lengths = columns.varints(count)
    kinds = columns.read(count)
    if max(kinds, default=0) > 1:
        raise UnsupportedError("a value of unknown kind")
    ids = columns.varints(sum(kinds))
    offsets = columns.varints(len(ids))
    _check_places(files, ids, offsets, lengths)
    places = map(Extent, [files[i] for i in ids], offsets, compress(lengths, kinds), checksums)
    ends = list(accumulate([n for n, kind in zip(lengths, kinds, strict=True) if not kind]))
    inline = columns.read(ends[-1] if ends else 0)
    values = iter([inline[start:end] for start, end in pairwise((0, *ends))])
    return [next(places) if kind else next(values) for kind in kinds]


def _check_places(
    files: Sequence[object], ids: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]
) -> None:
    """Check that such places in files are possible.

    Raises:
        DecodeError: They are not.
    """
    if max(ids, default=0) >= len(files) and ids:
        raise DecodeError("it refers to a file that it does not name")
    if max(offsets, default=0) + max(lengths, default=0) > _MAX_FILE_BYTES:
        raise DecodeError("it refers to bytes that no file has")


class _Columns:
    """Reads columns one after the other."""

    def __init__(self, data: bytes, base: str) -> None:
        self._data = data
        self._base = base
        self._bytes = np.frombuffer(data, np.uint8)
        self._position = 0

    def read(self, count: int) -> bytes:
        start, self._position = self._position, self._position + count
        if self._position > len(self._data):
            raise DecodeError("it ends too early")
        return self._data[start : self._position]

    def varint(self) -> int:
        return self.varints(1)[0]

    def varints(self, count: int) -> list[int]:
        """Read integers stored in groups of 7 bits, the last group not marked."""
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
        """Read strings stored without the prefix that each shares with the one before it.

        Args:
            shared: How many bytes each but the first shares.
            rest: How many bytes of each are stored.
        """
        suffixes = self.read(sum(rest))
        if sum(shared) > max(_MAX_SHARED_BYTES, _MAX_RATIO * len(self._data)):
            raise DecodeError("its keys share more than those of a database do")
        found: list[bytes] = []
        last = b""
        start = 0
        for kept, end in zip((0, *shared), accumulate(rest), strict=False):
            last = last[:kept] + suffixes[start:end]
            start = end
            found.append(last)
        return found

    def files(self) -> list[tuple[str, str]]:
        """Read the path of every data file, and the base of paths in nodes there.

        Raises:
            UnsafePathError: A path leads out of the database.
        """
        count = self.varint()
        shared, rest, bases = (self.varints(n) for n in (count - 1, count, count))
        base = self._base
        found: list[tuple[str, str]] = []
        for encoded, n in zip(self.strings(shared, rest), bases, strict=True):
            try:
                path, directory = encoded.decode(), encoded[:n].decode()
            except UnicodeDecodeError as error:
                raise UnsupportedError(f"a path that is no text: {error}") from error
            if path:  # there is none where there is no root
                check_name(path, base.rstrip("/"))
            if directory:
                check_name(directory.removesuffix("/"), base.rstrip("/"))
            found.append((base + path, base + directory))
        return found

    def children(
        self,
        prefixes: Sequence[bytes],
        files: Sequence[tuple[str, str]],
        ids: Sequence[int],
        offsets: Sequence[int],
        lengths: Sequence[int],
    ) -> list[Child]:
        """Read references to nodes."""
        _check_places(files, ids, offsets, lengths)
        return [
            Child(Extent(files[i][0], offset, length), files[i][1], prefix)
            for prefix, i, offset, length in zip(prefixes, ids, offsets, lengths, strict=True)
        ]


def _unframe(data: bytes, magic: int) -> bytes:
    """Return the decompressed body between header and checksum."""
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
    most = max(_MAX_NODE_BYTES, _MAX_RATIO * len(content))
    try:
        size = zstandard.frame_content_size(content)
        if size <= most:
            decompressor = zstandard.ZstdDecompressor()
            return decompressor.decompress(content) if size >= 0 else _decompress(content, most)
    except zstandard.ZstdError as error:
        raise DecodeError(str(error)) from error
    raise DecodeError(_BOMB)


def _decompress(content: bytes, most: int) -> bytes:
    """Decompress data that does not record its size."""
    blocks: list[bytes] = []
    # not decompressobj, which copies its whole output for every 128 KiB
    with zstandard.ZstdDecompressor().stream_reader(content) as reader:
        while block := reader.read(_BLOCK_BYTES):
            blocks.append(block)
            most -= len(block)
            if most < 0:
                raise DecodeError(_BOMB)
    return b"".join(blocks)

"""The binary form of OCDBT: B+tree nodes and the manifest; pure.

Follows the storage format of TensorStore's `ocdbt` driver
(https://google.github.io/tensorstore/kvstore/ocdbt/index.html). A node is a header, columns of
variable-length integers and a crc32c; columns rather than rows, because they compress better.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import cast

import numpy as np
import zstandard
from msgspec import Struct
from numpy.typing import NDArray

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.storage.layout import Extent, Value

MAX_INLINE_BYTES = 1024
"""Values up to this size are kept in the node itself; Orbax's setting."""

MAX_NODE_BYTES = 100_000_000
"""Size before compression at which a node is split; Orbax's setting."""

MANIFEST_MAGIC, NODE_MAGIC = 0x0CDB3A2A, 0x0CDB20DE
_VERSION_TREE_ARITY_LOG2 = 4
_NO_ROOT = b"\xff" * 9 + b"\x01"
"""Offset and length of a root that does not exist: 2**64 - 1 as a variable-length integer."""

_ZSTD_LEVEL = 0

PLACE_BYTES = 24
"""Approximate size of the place of a value in a node."""

_CHILDREN = 256
"""Children of an interior node; each covers 100 MB of keys and small values."""

_COMPARED_KEYS, _COMPARED_BYTES = 1 << 14, 1 << 10
"""How many keys, of up to how many bytes, are compared at a time."""

_BLOCK_ROWS = 1 << 14
"""How many numbers are encoded at a time, few enough for the processor's cache."""

_key_of = itemgetter(0)


class NodeReference(Struct, frozen=True):
    """A written node, with totals of the subtree.

    Attributes:
        place: Its place.
        height: 0 for a leaf node.
        first_key: The least key below it.
        num_keys: Number of keys below it.
        tree_bytes: Encoded size of it and the nodes below it.
        indirect_bytes: Size of the values in data files below it.
    """

    place: Extent
    height: int
    first_key: bytes
    num_keys: int
    tree_bytes: int
    indirect_bytes: int


Entry = tuple[bytes, Value]
"""A key and its value."""

Integers = Sequence[int] | NDArray[np.int64]
"""A column of integers."""


def split_entries(
    values: Mapping[bytes, Value], *, max_bytes: int = MAX_NODE_BYTES
) -> list[list[Entry]]:
    """Divide entries among leaf nodes, in the order of their keys."""
    entries = sorted(values.items(), key=_key_of)
    sizes = [len(key) + (len(v) if isinstance(v, bytes) else PLACE_BYTES) for key, v in entries]
    if sum(sizes) <= max_bytes:
        return [entries]
    nodes: list[list[Entry]] = [[]]
    held = 0
    for entry, nbytes in zip(entries, sizes, strict=True):
        if nodes[-1] and held + nbytes > max_bytes:
            nodes.append([])
            held = 0
        nodes[-1].append(entry)
        held += nbytes
    return nodes


def encode_leaf(entries: Sequence[Entry]) -> bytes:
    """Encode a leaf node of entries sorted by key."""
    inline = [value for _, value in entries if isinstance(value, bytes)]
    indirect = [value for _, value in entries if not isinstance(value, bytes)]
    table, ids = _file_table(indirect)
    return encode_leaf_columns(
        table,
        _key_columns([key for key, _ in entries]),
        [len(v) if isinstance(v, bytes) else v.length for _, v in entries],
        bytes([not isinstance(value, bytes) for _, value in entries]),
        ids,
        [value.offset for value in indirect],
        b"".join(inline),
    )


def encode_leaf_columns(
    files: bytes,
    keys: Sequence[bytes],
    nbytes: Integers,
    kinds: bytes,
    ids: Integers,
    offsets: Integers,
    inline: bytes,
) -> bytes:
    """Encode the columns of a leaf node, whose keys are sorted.

    Args:
        files: The table of files, see `encode_file_table`.
        keys: The columns of keys, see `encode_key_lengths`, and the bytes of keys that are not
            shared with the key before.
        nbytes: Size of every value.
        kinds: For every value, 1 if it is in a data file, else 0.
        ids: Index in the table of every value in a file.
        offsets: Its position in the file.
        inline: The bytes of the other values.
    """
    columns = [_varints(nbytes), kinds, _varints(ids), _varints(offsets)]
    return _frame_node(0, [files, _varint(len(kinds)), *keys, *columns, inline])


def encode_interior(children: Sequence[NodeReference]) -> bytes:
    """Encode the parent of nodes of equal height, sorted by key."""
    table, ids = _file_table([child.place for child in children])
    lengths, suffixes = _key_columns([child.first_key for child in children])
    body = [
        table,
        _varint(len(children)),
        lengths,
        bytes(len(children)),  # children repeat their keys in full: no common prefix is left out
        suffixes,
        _varints(ids),
        _varints(child.place.offset for child in children),
        _varints(child.place.length for child in children),
        _varints(child.num_keys for child in children),
        _varints(child.tree_bytes for child in children),
        _varints(child.indirect_bytes for child in children),
    ]
    return _frame_node(children[0].height + 1, body)


def write_interior(
    nodes: Sequence[NodeReference], write: Callable[[bytes], Extent]
) -> NodeReference:
    """Write the nodes above leaves; return the reference to the root.

    Args:
        nodes: References to all leaves, sorted by key; at least one.
        write: Writes a node and returns its place.
    """
    while len(nodes) > 1:
        groups = [nodes[i : i + _CHILDREN] for i in range(0, len(nodes), _CHILDREN)]
        nodes = [interior_reference(group, write(encode_interior(group))) for group in groups]
    return nodes[0]


def leaf_reference(entries: Sequence[Entry], place: Extent) -> NodeReference:
    """Return the reference to a written leaf node."""
    indirect = sum(v.length for _, v in entries if not isinstance(v, bytes))
    return NodeReference(place, 0, entries[0][0], len(entries), place.length, indirect)


def interior_reference(children: Sequence[NodeReference], place: Extent) -> NodeReference:
    """Return the reference to a written interior node."""
    return NodeReference(
        place,
        children[0].height + 1,
        children[0].first_key,
        sum(child.num_keys for child in children),
        sum(child.tree_bytes for child in children) + place.length,
        sum(child.indirect_bytes for child in children),
    )


def encode_manifest(root: NodeReference | None, *, uuid: bytes, commit_time_ns: int) -> bytes:
    """Encode the manifest of a database with one version.

    Args:
        root: Its root node, None if it is empty.
        uuid: 16 bytes that identify the database.
        commit_time_ns: Time of the version, in ns since the epoch.
    """
    table, _ = _file_table([root.place] if root else [Extent("", 0, 0)])
    statistics = (root.num_keys, root.tree_bytes, root.indirect_bytes) if root else (0, 0, 0)
    place = _varints([root.place.offset, root.place.length]) if root else _NO_ROOT * 2
    body = [
        uuid,
        _varints([0, MAX_INLINE_BYTES, MAX_NODE_BYTES]),  # 0: a single manifest
        bytes([_VERSION_TREE_ARITY_LOG2]),
        _varint(1) + _ZSTD_LEVEL.to_bytes(4, "little"),
        table,
        _varints([1, 1]),  # one version, generation 1
        bytes([root.height if root else 0, 0]),
        place,
        _varints(statistics),
        commit_time_ns.to_bytes(8, "little"),
        _varint(0),  # no versions in other files
    ]
    return _frame(MANIFEST_MAGIC, b"".join(body))


def _frame_node(height: int, body: Iterable[bytes]) -> bytes:
    return _frame(NODE_MAGIC, bytes([height]) + b"".join(body))


def _frame(magic: int, body: bytes) -> bytes:
    """Compress a body and add header and checksum."""
    compressed = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    length = 4 + 8 + 2 + len(compressed) + 4
    version, compression = 0, 1
    framed = struct.pack(">I", magic) + struct.pack("<QBB", length, version, compression)
    framed += compressed
    return framed + crc32c(framed).to_bytes(4, "little")


def _file_table(places: Sequence[Extent]) -> tuple[bytes, list[int]]:
    """Return the table of the values' files, and each value's index in it."""
    files = sorted({place.file for place in places})
    numbers = {file: number for number, file in enumerate(files)}
    return encode_file_table(files), [numbers[place.file] for place in places]


def encode_file_table(files: Sequence[str]) -> bytes:
    """Return the table of sorted paths of data files."""
    lengths, suffixes = _key_columns([file.encode() for file in files])
    # no part of a path applies to the nodes below
    return b"".join([_varint(len(files)), lengths, bytes(len(files)), suffixes])


def encode_key_lengths(shared: Integers, rest: Integers) -> bytes:
    """Return the columns of key lengths.

    Args:
        shared: How many bytes each key shares with the one before it.
        rest: How many more it has.
    """
    return _varints(shared[1:]) + _varints(rest)


def _key_columns(keys: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the columns of key lengths, and the column of unshared key bytes."""
    shared, suffixes = _shared_prefixes(keys)
    return encode_key_lengths(shared, list(map(len, suffixes))), b"".join(suffixes)


def _shared_prefixes(keys: Sequence[bytes]) -> tuple[list[int], list[bytes]]:
    """Return how many bytes each key shares with the one before it, and the rest of each."""
    shared = [0] * min(len(keys), 1)
    for start in range(0, len(keys) - 1, _COMPARED_KEYS):
        shared += _shared_with_next(keys[start : start + _COMPARED_KEYS + 1])
    return shared, [key[n:] for key, n in zip(keys, shared, strict=True)]


def _shared_with_next(keys: Sequence[bytes]) -> list[int]:
    """Return how many bytes each of at least two keys shares with the one behind it."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    width = int(lengths.max())
    if width > _COMPARED_BYTES:
        return [_count_shared(key, other) for key, other in pairwise(keys)]
    padded = np.array(keys, f"S{width + 1}").view(np.uint8).reshape(len(keys), width + 1)
    differs = padded[1:] != padded[:-1]
    differs[:, width] = True  # none has as many bytes
    first = np.minimum(differs.argmax(axis=1), np.minimum(lengths[1:], lengths[:-1]))
    return first.tolist()


def _count_shared(key: bytes, other: bytes) -> int:
    """Return how many bytes two keys have in common at their beginning."""
    length = min(len(key), len(other))
    # the highest bit in which two numbers differ is in the first byte that differs
    differing = int.from_bytes(key[:length]) ^ int.from_bytes(other[:length])
    return length - (differing.bit_length() + 7) // 8


def _varints(numbers: NDArray[np.int64] | Iterable[int]) -> bytes:
    """Encode numbers in groups of 7 bits, the lowest first, all but the last of each marked."""
    column: NDArray[np.uint64]
    if isinstance(numbers, np.ndarray):
        column = cast(NDArray[np.int64], numbers).astype(np.uint64)
    else:
        values = list(numbers)
        if max(values, default=0) < 0x80:
            return bytes(values)
        column = np.array(values, np.uint64)
    most = int(column.max(initial=1))
    width = -(-most.bit_length() // 7)
    blocks = range(0, len(column), _BLOCK_ROWS)
    return b"".join([_groups(column[i : i + _BLOCK_ROWS], width) for i in blocks])


def _groups(values: NDArray[np.uint64], width: int) -> bytes:
    """Encode numbers of at most `width` groups of bits."""
    groups = np.empty((len(values), width), np.uint8)
    is_used = np.ones((len(values), width), np.bool_)
    for i in range(width):
        shifted = values >> np.uint64(7 * i)
        groups[:, i] = (shifted & 0x7F) | ((shifted > 0x7F) << np.uint64(7))
        is_used[:, i] = shifted > 0
    is_used[:, 0] = True
    return groups[is_used].tobytes()


def _varint(number: int) -> bytes:
    return _varints([number])

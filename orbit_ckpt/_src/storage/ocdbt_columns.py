"""Many entries of a B+tree as columns, which NumPy sorts, compares and encodes at once; pure.

Keys are the rows of a matrix of bytes, zero behind their end. A sort of fixed-width strings then
takes a fraction of the time of one of `bytes`, and adjacent rows are compared for all keys at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple
from numpy.typing import NDArray

from orbit_ckpt._src.storage.layout import Extent, Value
from orbit_ckpt._src.storage.ocdbt_encode import (
    encode_file_table,
    encode_key_lengths,
    encode_leaf_columns,
)

_Bytes = NDArray[np.uint8]
_Integers = NDArray[np.int64]

_BLOCK_ROWS = 4096
"""Rows that are compared at once, few enough for the processor's cache."""


class PackedEntries(Struct, frozen=True, array_like=True):
    """The columns of entries in the form in which processes exchange them, little-endian.

    Attributes:
        lengths: Length of every key, int64.
        keys: The bytes of all keys.
        nbytes: Size of every value, int64.
        files: For each value, the index of its data file in a list, int32; -1 for values that are
            kept in nodes.
        offsets: Its position in that file, int64; 0 for values kept in nodes.
        checksums: Its recorded checksum, uint32; 0 for values kept in nodes.
        inline: The bytes of the values kept in nodes.
    """

    lengths: bytes
    keys: bytes
    nbytes: bytes
    files: bytes
    offsets: bytes
    checksums: bytes
    inline: bytes

    def between(self, start: bytes, stop: bytes | None) -> PackedEntries:
        """Return the entries, if they are sorted, with keys of at least `start`, below `stop`."""
        lengths = np.frombuffer(self.lengths, "<i8")
        inline = np.where(
            np.frombuffer(self.files, "<i4") < 0, np.frombuffer(self.nbytes, "<i8"), 0
        )
        rows = Keys.of(self.keys, lengths).between(start, stop)
        first, last = rows.start, rows.stop
        key_ends, inline_ends = (np.cumsum([0, *column]) for column in (lengths, inline))
        return PackedEntries(
            self.lengths[8 * first : 8 * last],
            self.keys[key_ends[first] : key_ends[last]],
            self.nbytes[8 * first : 8 * last],
            self.files[4 * first : 4 * last],
            self.offsets[8 * first : 8 * last],
            self.checksums[4 * first : 4 * last],
            self.inline[inline_ends[first] : inline_ends[last]],
        )


def pack_entries(
    keys: Sequence[bytes], values: Mapping[bytes, Value], files: Mapping[str, int]
) -> PackedEntries:
    """Return the columns of entries.

    Args:
        keys: Their keys, sorted.
        values: The values of all keys.
        files: The index of every data file.
    """
    found = [values[key] for key in keys]
    places = [None if isinstance(value, bytes) else value for value in found]
    count = len(keys)
    return PackedEntries(
        _column(map(len, keys), "<i8", count),
        b"".join(keys),
        _column((len(v) if isinstance(v, bytes) else v.length for v in found), "<i8", count),
        _column((-1 if place is None else files[place.file] for place in places), "<i4", count),
        _column((0 if place is None else place.offset for place in places), "<i8", count),
        _column((0 if place is None else place.checksum or 0 for place in places), "<u4", count),
        b"".join([value for value in found if isinstance(value, bytes)]),
    )


def join_packed(packed: Sequence[PackedEntries]) -> PackedEntries:
    """Return all entries of one database in order."""
    return PackedEntries(*map(b"".join, zip(*map(astuple, packed), strict=True)))


def _column(numbers: Iterable[int], dtype: str, count: int) -> bytes:
    return np.fromiter(numbers, dtype, count).tobytes()


def files_of(values: Iterable[Value]) -> list[str]:
    """Return the data files of values, sorted."""
    return sorted({value.file for value in values if isinstance(value, Extent)})


def have_checksums(values: Iterable[Value]) -> bool:
    """Return whether the checksums of all values in data files are known."""
    return all(isinstance(value, bytes) or value.checksum is not None for value in values)


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys of any length.

    Attributes:
        matrix: A row for each, zero behind its end.
        lengths: Their lengths.
    """

    matrix: _Bytes
    lengths: _Integers

    @classmethod
    def of(cls, joined: bytes, lengths: _Integers) -> Keys:
        """Return keys, given the bytes of all of them and the length of each."""
        matrix = np.zeros((len(lengths), int(lengths.max(initial=0))), np.uint8)
        columns, data = np.arange(matrix.shape[1]), np.frombuffer(joined, np.uint8)
        starts = np.cumsum(lengths) - lengths
        for start in range(0, len(lengths), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            own = columns < lengths[rows, None]
            first = starts[start]
            matrix[rows][own] = data[first : first + lengths[rows].sum()]
        return cls(matrix, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> bytes:
        return self.matrix[index, : self.lengths[index]].tobytes()

    def to_list(self, rows: _Integers | None = None) -> list[bytes]:
        """Return all of the keys, or some, one by one."""
        return [self[int(row)] for row in (range(len(self)) if rows is None else rows)]

    def rows(self, rows: slice | _Integers) -> Keys:
        """Return some of the keys."""
        return Keys(self.matrix[rows], self.lengths[rows])

    def between(self, start: bytes, stop: bytes | None) -> slice:
        """Return which of the keys, if they are sorted, are at least `start` and below `stop`."""
        first = bisect_left(self, start)
        return slice(first, len(self) if stop is None else bisect_left(self, stop))

    def order(self) -> _Integers:
        """Return the indices that sort the keys; equal ones keep their order."""
        if not self.matrix.size:
            return np.arange(len(self))
        strings = np.ascontiguousarray(self.matrix).view(f"S{self.matrix.shape[1]}").ravel()
        if np.count_nonzero(self.matrix) < self.lengths.sum():  # "a" and "a\0" look the same
            return np.lexsort((self.lengths, strings))
        return np.argsort(strings, kind="stable")

    def shared(self) -> _Integers:
        """Return how many bytes each key shares with the one before it, 0 for the first."""
        found = np.zeros(len(self), np.int64)
        for start in range(1, len(self), _BLOCK_ROWS):
            stop = min(start + _BLOCK_ROWS, len(self))
            rows, before = slice(start, stop), slice(start - 1, stop - 1)
            differs = self.matrix[rows] != self.matrix[before]
            least = np.minimum(self.lengths[rows], self.lengths[before])
            found[rows] = np.minimum(np.where(differs.any(1), differs.argmax(1), least), least)
        return found

    def suffixes(self, shared: _Integers) -> bytes:
        """Return the bytes of all keys that are not shared with the key before."""
        columns = np.arange(int(self.matrix.shape[1]), dtype=np.int64)
        blocks: list[_Bytes] = []
        for start in range(0, len(self), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            own = (columns >= shared[rows, None]) & (columns < self.lengths[rows, None])
            blocks.append(self.matrix[rows][own])
        return b"".join(blocks)


@dataclass(frozen=True, slots=True)
class Entries:
    """Keys and their values, or the places of these.

    Attributes:
        keys: The keys.
        parts: For each, the number of the database that it comes from.
        nbytes: Size of each value.
        files: For each value, the index of its data file in a list; -1 for values kept in nodes.
        offsets: Its position in that file, or among `inline`.
        checksums: Its recorded checksum.
        inline: The bytes of the values kept in nodes.
    """

    keys: Keys
    parts: _Integers
    nbytes: _Integers
    files: _Integers
    offsets: _Integers
    checksums: NDArray[np.uint32]
    inline: _Bytes

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, rows: slice | _Integers) -> Entries:
        """Return some of the entries."""
        return Entries(
            self.keys.rows(rows),
            self.parts[rows],
            self.nbytes[rows],
            self.files[rows],
            self.offsets[rows],
            self.checksums[rows],
            self.inline,
        )

    @property
    def is_indirect(self) -> NDArray[np.bool_]:
        """Whether each value is in a data file."""
        return self.files >= 0

    def repeated(self) -> NDArray[np.bool_]:
        """Return which sorted entries have the same key as the one before."""
        lengths = self.keys.lengths
        is_same = np.zeros(len(self), np.bool_)
        is_same[1:] = (self.keys.shared() == lengths)[1:] & (lengths[1:] == lengths[:-1])
        return is_same

    def encode(self, files: Sequence[str]) -> bytes:
        """Encode a leaf node of sorted entries, of which there is at least one.

        Args:
            files: The paths of all data files.
        """
        is_indirect = self.is_indirect
        used, ids = np.unique(self.files[is_indirect], return_inverse=True)
        names: Sequence[str] = [files[int(i)] for i in used]
        order = sorted(range(len(names)), key=lambda i: names[i])
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        shared = self.keys.shared()
        return encode_leaf_columns(
            encode_file_table([names[i] for i in order]),
            [encode_key_lengths(shared, self.keys.lengths - shared), self.keys.suffixes(shared)],
            self.nbytes,
            is_indirect.astype(np.uint8).tobytes(),
            ranks[ids],
            self.offsets[is_indirect],
            self._inline_bytes(~is_indirect),
        )

    def _inline_bytes(self, is_inline: NDArray[np.bool_]) -> bytes:
        """Return the values kept in nodes, in the order of their entries."""
        nbytes, offsets = self.nbytes[is_inline], self.offsets[is_inline]
        first = np.repeat(offsets - (np.cumsum(nbytes) - nbytes), nbytes)
        return self.inline[first + np.arange(len(first))].tobytes()


def join_entries(packed: Sequence[PackedEntries], first_files: Sequence[int]) -> Entries:
    """Return the entries of databases, in the order of these.

    Args:
        packed: Those of each database.
        first_files: What to add to the indices of its files.
    """
    counts = [len(some.nbytes) // 8 for some in packed]
    files = _joined((some.files for some in packed), "<i4").astype(np.int64)
    offsets = _joined((some.offsets for some in packed), "<i8").copy()
    nbytes = _joined((some.nbytes for some in packed), "<i8")
    is_inline = files < 0
    inline = nbytes[is_inline]
    offsets[is_inline] = np.cumsum(inline) - inline
    files += np.where(is_inline, 0, np.repeat(np.array(first_files, np.int64), counts))
    lengths = _joined((some.lengths for some in packed), "<i8")
    return Entries(
        Keys.of(b"".join([some.keys for some in packed]), lengths),
        np.repeat(np.arange(len(packed)), counts),
        nbytes,
        files,
        offsets,
        _joined((some.checksums for some in packed), "<u4"),
        np.frombuffer(b"".join([some.inline for some in packed]), np.uint8),
    )


def _joined(columns: Iterable[bytes], dtype: str) -> NDArray[Any]:
    return np.frombuffer(b"".join(columns), dtype)

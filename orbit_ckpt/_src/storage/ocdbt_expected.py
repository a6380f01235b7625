"""The keys that a database of known arrays must have, compared with those that it has; pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from orbit_ckpt._src.storage.layout import join_key
from orbit_ckpt._src.storage.ocdbt import suffixes_of
from orbit_ckpt._src.storage.ocdbt_columns import Keys
from orbit_ckpt._src.storage.zarr import ZarrArray

RANGE_BYTES = 1 << 26
"""Maximum bytes of keys that one process sorts at once; it needs about five times as much memory.
"""

SHARED_BYTES = 1 << 24
"""Bytes of keys from which several processes merge: fewer are not worth reading all indices again.
"""


class ExpectedKeys:
    """The keys of arrays, without listing those of each.

    Args:
        arrays: Names and layouts of the arrays.
    """

    def __init__(self, arrays: Iterable[tuple[str, ZarrArray]]) -> None:
        grids: dict[object, list[bytes]] = {}
        self._arrays: list[tuple[bytes, list[bytes]]] = []
        self._width = 0
        for name, layout in sorted(arrays, key=lambda array: join_key(array[0], "")):
            grid = layout.zarr_format, layout.shape, layout.chunk_shape, layout.separator
            grid = *grid, layout.metadata_key
            if grid not in grids:
                grids[grid] = sorted(key.encode() for key in suffixes_of(layout))
            front = join_key(name, "").encode()
            self._arrays.append((front, grids[grid]))
            self._width = max(self._width, len(front) + max(map(len, grids[grid])))
        self._matrices = {id(grid): _matrix(grid) for grid in grids.values()}

    def ranges(self, processes: int) -> list[bytes]:
        """Return the first keys of all ranges but the first, for processes to merge.

        Args:
            processes: Number of processes.
        """
        ends = list(accumulate(len(suffixes) for _, suffixes in self._arrays))
        total = ends[-1] if ends else 0
        nbytes = total * self._width
        count = max(-(-nbytes // RANGE_BYTES), min(processes, -(-nbytes // SHARED_BYTES)))
        starts: list[bytes] = []
        for number in range(1, count):
            position = number * total // count
            index = bisect_left(ends, position + 1)
            front, suffixes = self._arrays[index]
            starts.append(front + suffixes[position - ends[index] + len(suffixes)])
        return starts

    def are_in(self, keys: Keys, start: bytes, stop: bytes | None) -> bool:
        """Return whether all keys expected in a range are among sorted keys.

        Where the name of an array begins with that of another one, this may be False although
        they are; compare them one by one then.
        """
        position = 0
        for front, suffixes in self._arrays:
            rows = slice(_place(suffixes, front, start), None)
            if stop is not None:
                rows = slice(rows.start, _place(suffixes, front, stop))
            expected = self._matrices[id(suffixes)].rows(rows)
            if not len(expected):
                continue
            found = keys.rows(slice(position, position + len(expected)))
            if not _has_rows(found, front, expected):  # others may come before
                position = bisect_left(keys, front + expected[0], position)
                found = keys.rows(slice(position, position + len(expected)))
                if not _has_rows(found, front, expected):
                    return False
            position += len(expected)
        return True


def _place(suffixes: Sequence[bytes], front: bytes, key: bytes) -> int:
    """Return how many of the keys that begin with `front` are before a key."""
    if key.startswith(front):
        return bisect_left(suffixes, key[len(front) :])
    return len(suffixes) if front < key else 0


def _has_rows(found: Keys, front: bytes, suffixes: Keys) -> bool:
    """Return whether keys are `front` with each of some suffixes."""
    lengths = suffixes.lengths + len(front)
    if not np.array_equal(found.lengths, lengths):
        return False
    width = int(lengths.max(initial=0))
    head, tail = found.matrix[:, : len(front)], found.matrix[:, len(front) : width]
    expected = suffixes.matrix[:, : tail.shape[1]]
    return bool((head == np.frombuffer(front, np.uint8)).all()) and np.array_equal(tail, expected)


def _matrix(keys: Sequence[bytes]) -> Keys:
    width = max(map(len, keys))
    strings = np.array(keys, f"S{width}")
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    return Keys(strings.view(np.uint8).reshape(len(keys), width), lengths)

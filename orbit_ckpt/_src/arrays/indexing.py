"""Map NumPy index expressions to the boxes of an array to read; pure."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Iterator
from itertools import product
from typing import Any, cast

import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.slices import Region, Shape
from orbit_ckpt._src.guards import is_tuple

IntArray = np.ndarray[Any, np.dtype[np.intp]]

Chosen = range | IntArray
"""Unique indices along one dimension, ascending."""

Source = slice | IntArray


class ChunkSelection(Struct, frozen=True, gc=False):
    """A box to read, and the elements to copy out of it.

    Attributes:
        region: The box.
        source: Index of the chosen elements in the box, along every dimension.
        target: Index of the same elements in the array of all chosen elements.
    """

    region: Region
    source: tuple[Source, ...]
    target: tuple[slice, ...]

    def apply(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the chosen elements of the box."""
        for axis, source in enumerate(self.source):
            values = values[(slice(None),) * axis + (source,)]
        return values


class Selection(Struct, frozen=True, gc=False):
    """The elements that an index expression selects.

    They form a smaller array, which a second index turns into the result.

    Attributes:
        chosen: The selected indices along every dimension.
        inner: Index that turns the array of all chosen elements into the result.
    """

    chosen: tuple[Chosen, ...]
    inner: tuple[Any, ...]

    @property
    def shape(self) -> Shape:
        """Shape of the array of all chosen elements."""
        return tuple(map(len, self.chosen))

    def chunk_selections(self, chunk_shape: Shape, stored: Shape) -> Iterator[ChunkSelection]:
        """Yield boxes that together hold the chosen elements.

        No two share a chunk, and each has a chosen element in every chunk that it touches.

        Args:
            chunk_shape: Shape of the array's chunks.
            stored: Shape of the stored array; nothing beyond it is read.
        """
        if math.prod(self.shape) == 0:
            return
        runs = [
            list(_runs(chosen, chunk, end))
            for chosen, chunk, end in zip(self.chosen, chunk_shape, stored, strict=True)
        ]
        for parts in product(*runs):
            start = tuple(run.start for run in parts)
            shape = tuple(run.stop - run.start for run in parts)
            source = tuple(run.source for run in parts)
            target = tuple(run.target for run in parts)
            yield ChunkSelection(Region(start, shape), source, target)


def select(index: object, shape: Shape, *, trailing: Shape = ()) -> Selection:
    """Resolve an index expression.

    Integers, slices, `...`, None, and arrays and lists of integers or booleans mean the same as in
    numpy.

    Args:
        index: The expression, as `__getitem__` receives it.
        shape: Shape of the array.
        trailing: Lengths of further dimensions, which are not indexed and selected whole.

    Raises:
        IndexError: It has too many indices, one out of range, or one of another kind.
    """
    entries = [
        part for entry in (index if is_tuple(index) else (index,)) for part in _entries(entry)
    ]
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    if used > len(shape):
        raise IndexError(f"too many indices: the array has {len(shape)} dimensions, not {used}")
    if sum(entry is Ellipsis for entry in entries) > 1:
        raise IndexError("an index can have only one ellipsis ('...')")
    if not any(entry is Ellipsis for entry in entries):
        entries.append(Ellipsis)  # an ellipsis keeps even a single element an array
    chosen: list[Chosen] = []
    result: list[Any] = []
    for entry in entries:
        if entry is None:
            result.append(None)
        elif entry is Ellipsis:
            chosen += map(range, shape[len(chosen) : len(chosen) + len(shape) - used])
            result.append(Ellipsis)
        else:
            axis = len(chosen)
            one, inner = _choose(entry, axis, shape[axis])
            chosen.append(one)
            result.append(inner)
    chosen += map(range, trailing)
    return Selection(tuple(chosen), (*result, *[slice(None)] * len(trailing)))


class _Run(Struct, frozen=True, gc=False):
    """Chosen indices along one dimension, read together."""

    start: int
    stop: int
    source: Source
    target: slice


def _runs(chosen: Chosen, chunk: int, end: int) -> Iterator[_Run]:
    """Yield the indices below `end`, grouped by chunk unless all are chosen."""
    if isinstance(chosen, range) and chosen.step == 1:
        stop = min(chosen.stop, end)
        if stop > chosen.start:
            yield _Run(chosen.start, stop, slice(None), slice(0, stop - chosen.start))
        return
    first = 0
    count = _count_below(chosen, end)
    while first < count:
        start = int(chosen[first])
        last = min(count, _count_below(chosen, (start // chunk + 1) * chunk))
        stop = int(chosen[last - 1]) + 1
        source = (
            slice(None, None, chosen.step)
            if isinstance(chosen, range)
            else chosen[first:last] - start
        )
        yield _Run(start, stop, source, slice(first, last))
        first = last


def _count_below(chosen: Chosen, end: int) -> int:
    if isinstance(chosen, range):
        return max(0, min(len(chosen), -(-(end - chosen.start) // chosen.step)))
    return int(np.searchsorted(chosen, end))


def _entries(entry: object) -> list[object]:
    """Convert to an index of one dimension, or of several for a boolean array."""
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return [entry]
    is_bool = isinstance(entry, bool | np.bool_)  # older numpy versions treat np.bool as an integer
    if not is_bool:
        with contextlib.suppress(TypeError):
            return [operator.index(cast(Any, entry))]
    array = np.asarray(entry)
    if array.size == 0 and not isinstance(entry, np.ndarray):
        array = array.astype(np.intp)  # an empty list has a dtype of its own
    if array.dtype.kind == "b" and array.ndim:
        return list(map(_Mask, array.nonzero(), array.shape))
    if array.dtype.kind in "iu":
        return [array.astype(np.intp)]
    raise IndexError(
        "only integers, slices, ellipsis ('...'), None and arrays of integers or booleans are "
        f"indices, not {entry!r}"
    )


class _Mask(Struct, frozen=True, gc=False):
    """The true positions of a boolean array along one of its dimensions, and its length there."""

    where: IntArray
    length: int


def _choose(entry: object, axis: int, length: int) -> tuple[Chosen, object]:
    """Return the selected indices of a dimension, and the index into these."""
    if isinstance(entry, slice):
        wanted = range(length)[entry]
        return (wanted[::-1], slice(None, None, -1)) if wanted.step < 0 else (wanted, slice(None))
    if isinstance(entry, int):
        position = entry + length if entry < 0 else entry
        if not 0 <= position < length:
            raise _out_of_range(entry, axis, length)
        return range(position, position + 1), 0
    if isinstance(entry, _Mask):
        if entry.length != length:
            raise IndexError(
                f"an array of booleans of length {entry.length} is no index of dimension {axis}, "
                f"whose length is {length}"
            )
        positions = entry.where
    else:
        positions = cast(IntArray, entry)
        wrong = positions[(positions < -length) | (positions >= length)]
        if wrong.size:
            raise _out_of_range(int(wrong.flat[0]), axis, length)
        positions = np.where(positions < 0, positions + length, positions)
    chosen, inverse = np.unique(positions, return_inverse=True)
    return chosen, inverse.reshape(positions.shape)


def _out_of_range(index: int, axis: int, length: int) -> IndexError:
    return IndexError(f"index {index} is out of bounds for axis {axis} with size {length}")

"""Byte shuffling: the first bytes of all elements, then all second bytes, and so on.

The bytes of numbers that hold their exponents are alike, and compress well once they stand side by
side; those of their mantissas are noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import Buffer

from orbit_ckpt._src.arrays.dtypes import HostArray

_PART = 1 << 16
"""Elements of four bytes that are put together at once, for which memory is needed."""


def shuffle(data: memoryview, planes: HostArray) -> None:
    """Shuffle the bytes of elements.

    Args:
        data: The elements, little-endian.
        planes: uint8[itemsize, n], the destination: row `i` gets byte `i` of every element.
    """
    itemsize = len(planes)
    if itemsize == 2:
        _split(np.frombuffer(data, "<u2"), planes)
    elif itemsize == 4:  # narrow casts are several times as fast as strided copies
        values = np.frombuffer(data, "<u4")
        halves = values.astype("<u2")
        _split(halves, planes[:2])
        halves[...] = np.right_shift(values, 16)
        _split(halves, planes[2:])
    else:
        planes[...] = np.frombuffer(data, np.uint8).reshape(-1, itemsize).T


def unshuffle(planes: Sequence[Buffer], data: memoryview) -> None:
    """Undo `shuffle`.

    Args:
        planes: The bytes of each row.
        data: The destination.
    """
    rows = [np.frombuffer(plane, np.uint8) for plane in planes]
    itemsize = len(rows)
    if itemsize == 2:
        _join(rows[0], rows[1], np.frombuffer(data, "<u2"))
    elif itemsize == 4:
        halves = np.frombuffer(data, "<u2")
        for start in range(0, len(rows[0]), _PART):
            first, second, third, fourth = (row[start : start + _PART] for row in rows)
            even, odd = np.empty((2, len(first)), "<u2")
            _join(first, third, even)
            _join(second, fourth, odd)
            into = halves[2 * start : 2 * (start + _PART)]
            _join(even.view(np.uint8), odd.view(np.uint8), into)
    else:
        elements = np.frombuffer(data, np.uint8).reshape(-1, itemsize)
        for i, row in enumerate(rows):
            elements[:, i] = row


def _split(values: HostArray, planes: HostArray) -> None:
    planes[0] = values
    planes[1] = np.right_shift(values, 8)


def _join(low: HostArray, high: HostArray, into: HostArray) -> None:
    into[...] = high
    np.multiply(into, 256, out=into)  # faster than a shift
    np.bitwise_or(into, low, out=into)

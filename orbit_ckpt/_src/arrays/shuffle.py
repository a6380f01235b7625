"""Byte shuffling: the first bytes of all elements, then all second bytes, and so on.

The bytes of numbers that hold their exponents are alike, and compress well once they stand side by
side; those of their mantissas are noise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import Buffer

from orbit_ckpt._src.arrays.dtypes import HostArray


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
        np.right_shift(values, 16, out=halves, dtype="<u4", casting="unsafe")
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
        even, odd = np.empty((2, len(rows[0])), "<u2")
        _join(rows[0], rows[2], even)
        _join(rows[1], rows[3], odd)
        _join(even.view(np.uint8), odd.view(np.uint8), np.frombuffer(data, "<u2"))
    else:
        elements = np.frombuffer(data, np.uint8).reshape(-1, itemsize)
        for i, row in enumerate(rows):
            elements[:, i] = row


# Few calls on much data: each lets go of the interpreter lock, and to get it back takes longer than
# to cast 64 KiB if another thread has it. NumPy casts in parts that fit a processor's first cache.


def _split(values: HostArray, planes: HostArray) -> None:
    np.copyto(planes[0], values, casting="unsafe")
    np.right_shift(values, 8, out=planes[1], dtype="<u2", casting="unsafe")


def _join(low: HostArray, high: HostArray, into: HostArray) -> None:
    np.multiply(high, 256, out=into, dtype="<u2")  # faster than a shift
    np.bitwise_or(into, low, out=into, dtype="<u2")

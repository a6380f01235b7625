"""Histograms that need no range in advance and merge exactly; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray

BINS = 64
"""Maximum number of bins."""

_FINEST = -1074
"""Every finite float is a multiple of two to this power."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of finite numbers in at most 64 bins, whose width is a power of two.

    Bin `i` holds the numbers in `[(start + i) * width, (start + i + 1) * width)`. The width is the
    smallest for which the bins cover the least and the greatest number, so that the histogram of a
    whole is the merge of those of its parts, whichever they are. For integers it is at least 1.

    Attributes:
        exponent: Binary logarithm of the width.
        start: Index of the first bin on the grid of this width.
        counts: The counts, without empty bins at either end.
        zeros: Number of elements that are zero.
    """

    exponent: int
    start: int
    counts: tuple[int, ...]
    zeros: int = 0

    @property
    def low(self) -> float:
        """The lower edge of the first bin."""
        return float(Fraction(self.start) * Fraction(2) ** self.exponent)

    @property
    def width(self) -> float:
        """Width of a bin."""
        return math.ldexp(1.0, self.exponent)

    def merge(self, other: Histogram) -> Histogram:
        """Combine the histograms of two parts."""
        exponent = max(self.exponent, other.exponent)
        while True:
            a, b = self._indices(exponent), other._indices(exponent)
            start, last = min(a[0], b[0]), max(a[-1], b[-1])
            if last - start < BINS:
                break
            exponent += 1
        counts = [0] * (last - start + 1)
        for part, indices in ((self, a), (other, b)):
            for index, count in zip(indices, part.counts, strict=True):
                counts[index - start] += count
        return Histogram(exponent, start, tuple(counts), self.zeros + other.zeros)

    def _indices(self, exponent: int) -> list[int]:
        shift = exponent - self.exponent
        return [(self.start + i) >> shift for i in range(len(self.counts))]


def count_integers(values: HostArray, least: int, most: int) -> Histogram:
    """Return the histogram of integers.

    Args:
        values: One or more integers.
        least: The least of them.
        most: The greatest.
    """
    exponent = 0
    while (most >> exponent) - (least >> exponent) >= BINS:
        exponent += 1
    start = least >> exponent
    indices = (values >> values.dtype.type(exponent)) - values.dtype.type(start)
    return _histogram(exponent, start, indices, values)


def count_floats(values: HostArray, least: float, most: float) -> Histogram:
    """Return the histogram of finite floats.

    Args:
        values: One or more finite numbers, float32 or float64. Dividing them by a power of two and
            rounding down is exact.
        least: The least of them.
        most: The greatest.
    """
    if least == most:
        return Histogram(
            _FINEST, _index(least, _FINEST), (len(values),), 0 if least else len(values)
        )
    spread = most / 2 - least / 2  # the difference may overflow
    exponent = max(_FINEST, math.frexp(spread)[1] + 1 - BINS.bit_length()) if spread else _FINEST
    while _index(most, exponent) - _index(least, exponent) >= BINS:
        exponent += 1
    start = _index(least, exponent)
    indices = np.floor(np.ldexp(values, -exponent))
    if exponent > 0 and least < 0:
        indices[(values < 0) & (indices == 0)] = -1  # a quotient that underflowed
    indices -= values.dtype.type(start)
    return _histogram(exponent, start, indices, values)


def _index(value: float, exponent: int) -> int:
    numerator, denominator = value.as_integer_ratio()
    if exponent < 0:
        return (numerator << -exponent) // denominator
    return numerator // (denominator << exponent)


def _histogram(exponent: int, start: int, indices: HostArray, values: HostArray) -> Histogram:
    counts = np.bincount(indices.astype(np.intp))
    zeros = len(values) - int(np.count_nonzero(values))
    return Histogram(exponent, start, tuple(counts.tolist()), zeros)

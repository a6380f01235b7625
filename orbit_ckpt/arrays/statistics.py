"""What is to be said of the values of an array in a few numbers, a part at a time; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orbit_ckpt.arrays.compare import Number
from orbit_ckpt.arrays.dtypes import HostArray, number_kind

_BLOCK_ELEMENTS = 1 << 17
_SAFE = 1e150
"""Numbers beyond this, or below its inverse, cannot be squared."""


@dataclass(frozen=True, slots=True)
class ArrayStatistics:
    """Statistics of numbers; NaN and infinite ones are counted and left out of all else.

    Attributes:
        size: How many elements there are.
        nans: How many are NaN; of dates, NaT.
        infs: How many are infinite.
        min: The least, None if there is none, and for complex numbers and dates.
        max: The greatest.
        total: Their sum, None for complex numbers and dates.
        l2: The square root of the sum of their squares; for complex numbers of absolute values.
    """

    size: int = 0
    nans: int = 0
    infs: int = 0
    min: Number | None = None
    max: Number | None = None
    total: float | None = 0.0
    l2: float | None = 0.0

    @property
    def mean(self) -> float | None:
        """Their mean, None if there are none."""
        finite = self.size - self.nans - self.infs
        return self.total / finite if finite and self.total is not None else None

    def merge(self, other: ArrayStatistics) -> ArrayStatistics:
        """Return the statistics of two parts together."""
        return ArrayStatistics(
            self.size + other.size,
            self.nans + other.nans,
            self.infs + other.infs,
            min((n for n in (self.min, other.min) if n is not None), default=None),
            max((n for n in (self.max, other.max) if n is not None), default=None),
            None if self.total is None or other.total is None else self.total + other.total,
            None if self.l2 is None or other.l2 is None else math.hypot(self.l2, other.l2),
        )


def measure(values: HostArray) -> ArrayStatistics:
    """Return the statistics of an array of numbers or dates."""
    flat = np.ascontiguousarray(values).reshape(-1)
    found = ArrayStatistics()
    with np.errstate(all="ignore"):
        for first in range(0, len(flat), _BLOCK_ELEMENTS):
            found = found.merge(_measure_block(flat[first : first + _BLOCK_ELEMENTS]))
    return found


def _measure_block(values: HostArray) -> ArrayStatistics:
    size = len(values)
    if values.dtype.kind in "mM":
        return ArrayStatistics(size, int(np.isnat(values).sum()), total=None, l2=None)
    match number_kind(values.dtype):
        case "complex":
            wide = values.astype(np.complex128)
            parts = _measure_floats(np.abs(wide), np.isnan(wide), np.isinf(wide))
            return ArrayStatistics(size, parts.nans, parts.infs, total=None, l2=parts.l2)
        case "float":
            wide = values.astype(np.float64)
            return _measure_floats(wide, np.isnan(wide), np.isinf(wide))
        case "int" | "bool":
            exact = values if values.dtype.kind in "iu" else values.astype(np.int64)
            wide = exact.astype(np.float64)
            least, most = int(exact.min()), int(exact.max())
            return ArrayStatistics(size, 0, 0, least, most, float(wide.sum()), _norm(wide))


def _measure_floats(wide: HostArray, nans: HostArray, infs: HostArray) -> ArrayStatistics:
    size, nan_count = len(wide), int(np.count_nonzero(nans))
    inf_count = int(np.count_nonzero(infs & ~nans))
    finite = wide[~(nans | infs)] if nan_count or inf_count else wide
    if not len(finite):
        return ArrayStatistics(size, nan_count, inf_count)
    least, most = float(finite.min()), float(finite.max())
    total = float(finite.sum())
    return ArrayStatistics(size, nan_count, inf_count, least, most, total, _norm(finite))


def _norm(wide: HostArray) -> float:
    largest = float(np.abs(wide).max())
    if largest == 0 or 1 / _SAFE < largest < _SAFE:
        return float(np.sqrt(np.dot(wide, wide)))
    scaled = wide / largest
    return largest * float(np.sqrt(np.dot(scaled, scaled)))

"""Summarize the values of an array in a few numbers, block by block; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orbit_ckpt._src.arrays.compare import Number
from orbit_ckpt._src.arrays.dtypes import HostArray, number_kind
from orbit_ckpt._src.arrays.histogram import Histogram, count_floats, count_integers

_BLOCK_ELEMENTS = 1 << 15
"""Elements measured at once: the intermediate results fit the processor's cache."""

_FAST = frozenset({np.dtype(np.float32), np.dtype(np.float64)})
"""Float dtypes whose extremes numpy finds with vector instructions."""

_SAFE = 1e150
"""The square of a number beyond this, or below its inverse, overflows or underflows."""


@dataclass(frozen=True, slots=True)
class ArrayStatistics:
    """Statistics of numbers; all but the counts ignore NaN and infinite values.

    Attributes:
        size: Number of elements.
        nans: Number of NaN; for dates, of NaT.
        infs: Number of infinite elements.
        min: The least, None without any, and for complex numbers and dates.
        max: The greatest, None likewise.
        total: The sum, None for complex numbers and dates.
        l2: The square root of the sum of squares; for complex numbers, of absolute values.
        histogram: Their histogram if it was asked for; None for complex numbers and dates.
    """

    size: int = 0
    nans: int = 0
    infs: int = 0
    min: Number | None = None
    max: Number | None = None
    total: float | None = 0.0
    l2: float | None = 0.0
    histogram: Histogram | None = None

    @property
    def mean(self) -> float | None:
        """The mean, None without any values."""
        finite = self.size - self.nans - self.infs
        return self.total / finite if finite and self.total is not None else None

    def merge(self, other: ArrayStatistics) -> ArrayStatistics:
        """Combine the statistics of two parts."""
        return ArrayStatistics(
            self.size + other.size,
            self.nans + other.nans,
            self.infs + other.infs,
            min((n for n in (self.min, other.min) if n is not None), default=None),
            max((n for n in (self.max, other.max) if n is not None), default=None),
            None if self.total is None or other.total is None else self.total + other.total,
            None if self.l2 is None or other.l2 is None else math.hypot(self.l2, other.l2),
            self.histogram.merge(other.histogram)
            if self.histogram and other.histogram
            else self.histogram or other.histogram,
        )


def measure(values: HostArray, *, histogram: bool = False) -> ArrayStatistics:
    """Compute the statistics of an array of numbers or dates, and their histogram if asked for.

    Blocks are measured one after the other in the calling thread, so that sum and norm of an array
    are always the same to the last bit. BLAS is not used: OpenBLAS synchronizes its threads at
    every block, which on a busy machine takes many times as long as the arithmetic.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    scratch = np.empty((2, min(len(flat), _BLOCK_ELEMENTS)))
    found = ArrayStatistics()
    with np.errstate(all="ignore"):
        for first in range(0, len(flat), _BLOCK_ELEMENTS):
            part = flat[first : first + _BLOCK_ELEMENTS]
            found = found.merge(_measure_block(part, scratch, histogram=histogram))
    return found


def distance(a: HostArray, b: HostArray) -> float | None:
    """Return the L2 norm of the difference of two arrays of equal shape; None for dates.

    Elements that are not finite in both are left out.
    """
    if a.dtype.kind in "mM" or b.dtype.kind in "mM":
        return None
    is_complex = "complex" in {number_kind(a.dtype), number_kind(b.dtype)}
    wide = np.complex128 if is_complex else np.float64
    x, y = (np.ascontiguousarray(v).reshape(-1) for v in (a, b))
    scratch = np.empty((2, 2 * min(len(x), _BLOCK_ELEMENTS)))
    norm = 0.0
    with np.errstate(all="ignore"):
        for first in range(0, len(x), _BLOCK_ELEMENTS):
            block = slice(first, first + _BLOCK_ELEMENTS)
            part = (y[block].astype(wide) - x[block].astype(wide)).view(np.float64)
            largest = max(-float(part.min()), float(part.max()))
            if not math.isfinite(largest):
                part = part[np.isfinite(part)]
                largest = float(np.abs(part).max(initial=0.0))
            norm = math.hypot(norm, _total_and_norm(part, largest, scratch)[1])
    return norm


def _measure_block(values: HostArray, scratch: HostArray, *, histogram: bool) -> ArrayStatistics:
    size = len(values)
    if values.dtype.kind in "mM":
        return ArrayStatistics(size, int(np.isnat(values).sum()), total=None, l2=None)
    match number_kind(values.dtype):
        case "complex":
            return _measure_complex(values.astype(np.complex128))
        case "float":
            return _measure_floats(values, scratch, histogram=histogram)
        case "int" | "bool":
            exact = values if values.dtype.kind in "iu" else values.astype(np.int64)
            least, most = int(exact.min()), int(exact.max())
            total, norm = _total_and_norm(exact, max(-least, most), scratch)
            counts = count_integers(exact, least, most) if histogram else None
            return ArrayStatistics(size, 0, 0, least, most, total, norm, counts)


def _measure_complex(values: HostArray) -> ArrayStatistics:
    size, is_nan = len(values), np.isnan(values)
    finite = values[np.isfinite(values)]
    nans = int(is_nan.sum())
    parts = finite.view(np.float64)  # the norm of complex numbers is that of their parts
    found = _measure_floats(parts, np.empty((2, len(parts))))
    return ArrayStatistics(
        size, nans, size - nans - len(finite), None, None, total=None, l2=found.l2
    )


def _measure_floats(
    values: HostArray, scratch: HostArray, *, histogram: bool = False
) -> ArrayStatistics:
    size, nans, infs = len(values), 0, 0
    if not size:
        return ArrayStatistics()
    if values.dtype not in _FAST:
        values = values.astype(np.float32 if values.dtype.itemsize <= 2 else np.float64)
    least, most = float(values.min()), float(values.max())
    if not (math.isfinite(least) and math.isfinite(most)):  # any NaN makes both NaN
        nans, infs = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        values = values[np.isfinite(values)]
        if not len(values):
            return ArrayStatistics(size, nans, infs)
        least, most = float(values.min()), float(values.max())
    total, norm = _total_and_norm(values, max(-least, most), scratch)
    counts = count_floats(values, least, most) if histogram else None
    return ArrayStatistics(size, nans, infs, least, most, total, norm, counts)


def _total_and_norm(values: HostArray, largest: float, scratch: HostArray) -> tuple[float, float]:
    """Return the sum and the norm of finite numbers, in float64.

    Args:
        values: The numbers.
        largest: Their largest magnitude.
        scratch: Two rows of float64, at least as long, which are overwritten.
    """
    wide, squares = scratch[:, : len(values)]
    wide[...] = values
    total = float(wide.sum())
    if largest == 0:
        return total, 0.0
    scale = 1.0 if 1 / _SAFE < largest < _SAFE else float(largest)
    if scale != 1.0:
        wide /= scale
    np.multiply(wide, wide, out=squares)
    return total, scale * math.sqrt(float(squares.sum()))

"""Summarize the values of an array in a few numbers, block by block; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from orbit_ckpt._src.arrays.compare import Number
from orbit_ckpt._src.arrays.dtypes import HostArray, number_kind

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
        )


def measure(values: HostArray) -> ArrayStatistics:
    """Compute the statistics of an array of numbers or dates.

    Blocks are measured one after the other in the calling thread, so that sum and norm of an array
    are always the same to the last bit. BLAS is not used: OpenBLAS synchronizes its threads at
    every block, which on a busy machine takes many times as long as the arithmetic.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    scratch = np.empty((2, min(len(flat), _BLOCK_ELEMENTS)))
    found = ArrayStatistics()
    with np.errstate(all="ignore"):
        for first in range(0, len(flat), _BLOCK_ELEMENTS):
            block = _measure_block(flat[first : first + _BLOCK_ELEMENTS], scratch)
            found = found.merge(block)
    return found


def _measure_block(values: HostArray, scratch: HostArray) -> ArrayStatistics:
    size = len(values)
    if values.dtype.kind in "mM":
        return ArrayStatistics(size, int(np.isnat(values).sum()), total=None, l2=None)
    match number_kind(values.dtype):
        case "complex":
            return _measure_complex(values.astype(np.complex128))
        case "float":
            return _measure_floats(values, scratch)
        case "int" | "bool":
            exact = values if values.dtype.kind in "iu" else values.astype(np.int64)
            least, most = int(exact.min()), int(exact.max())
            total, norm = _total_and_norm(exact, max(-least, most), scratch)
            return ArrayStatistics(size, 0, 0, least, most, total, norm)


def _measure_complex(values: HostArray) -> ArrayStatistics:
    size, is_nan = len(values), np.isnan(values)
    finite = values[np.isfinite(values)]
    nans = int(is_nan.sum())
    parts = finite.view(np.float64)  # the norm of complex numbers is that of their parts
    found = _measure_floats(parts, np.empty((2, len(parts))))
    return ArrayStatistics(
        size, nans, size - nans - len(finite), None, None, total=None, l2=found.l2
    )


def _measure_floats(values: HostArray, scratch: HostArray) -> ArrayStatistics:
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
    return ArrayStatistics(size, nans, infs, least, most, total, norm)


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

"""How far two arrays are apart as vectors: RMS, relative change, cosine; pure."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import HostArray, number_kind


class Moments(Struct, frozen=True):
    """Sums over the elements that are finite in both arrays, in float64.

    Attributes:
        size: Number of these elements.
        difference: Sum of `|a - b|**2`.
        a: Sum of `|a|**2`.
        b: Sum of `|b|**2`.
        product: Real part of the sum of `a * conj(b)`.
    """

    size: int = 0
    difference: float = 0.0
    a: float = 0.0
    b: float = 0.0
    product: float = 0.0

    @property
    def rms(self) -> float:
        """The root mean square of the difference."""
        return math.sqrt(self.difference / self.size) if self.size else 0.0

    @property
    def relative(self) -> float:
        """The L2 norm of the difference over that of the first array; infinite if that is 0."""
        if not self.difference:
            return 0.0
        return math.sqrt(self.difference / self.a) if self.a else math.inf

    @property
    def cosine(self) -> float | None:
        """The cosine of the angle between both; None if one of them is 0."""
        norms = math.sqrt(self.a) * math.sqrt(self.b)
        return max(-1.0, min(1.0, self.product / norms)) if norms else None

    def merge(self, other: Moments) -> Moments:
        """Combine the sums of two parts."""
        return Moments(
            self.size + other.size,
            self.difference + other.difference,
            self.a + other.a,
            self.b + other.b,
            self.product + other.product,
        )


def measure_difference(x: HostArray, y: HostArray) -> Moments:
    """Compute the sums over two arrays of numbers, without BLAS; see `statistics.measure`."""
    is_complex = "complex" in {number_kind(x.dtype), number_kind(y.dtype)}
    wide = np.complex128 if is_complex else np.float64
    a, b = x.reshape(-1).astype(wide), y.reshape(-1).astype(wide)
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        a, b = a[finite], b[finite]
    size = len(a)
    if is_complex:  # sums of squares and products are those of the parts
        a, b = a.view(np.float64), b.view(np.float64)
    return Moments(
        size,
        float(np.square(a - b).sum()),
        float(np.square(a).sum()),
        float(np.square(b).sum()),
        float((a * b).sum()),
    )

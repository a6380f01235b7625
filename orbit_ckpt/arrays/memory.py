"""Host memory for arrays that JAX can take over without copying them."""

from __future__ import annotations

import math

import numpy as np

from orbit_ckpt.arrays.dtypes import DType, HostArray
from orbit_ckpt.arrays.slices import Shape

_ALIGNMENT = 64
"""What JAX's CPU backend needs to take a buffer over."""

_BLOCK_BYTES = 1 << 23
"""From 4 MiB on numpy asks the system for huge pages, which it hands out eight times as fast as
small ones. Arrays that are smaller share a block; whoever keeps one of them keeps the block."""


class Arena:
    """Hands out memory; no two arrays share any of it."""

    def __init__(self, nbytes: int) -> None:
        """Make an arena.

        Args:
            nbytes: How much will be asked for in all, about.
        """
        self._block_bytes = min(_BLOCK_BYTES, nbytes)
        self._block = np.empty(0, np.uint8)
        self._used = 0

    def empty(self, shape: Shape, dtype: DType) -> HostArray:
        """Return an array of undefined values."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes > self._block_bytes // 2:
            return aligned_empty(shape, dtype)
        if self._used + nbytes > self._block.nbytes:
            self._block = aligned_empty((self._block_bytes,), np.dtype(np.uint8))
            self._used = 0
        start = self._used
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return np.ndarray(shape, dtype, self._block, start)


def aligned_empty(shape: Shape, dtype: DType) -> HostArray:
    """Return an array of undefined values in memory of its own."""
    nbytes = math.prod(shape) * dtype.itemsize
    buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
    return np.ndarray(shape, dtype, buffer, -buffer.ctypes.data % _ALIGNMENT)

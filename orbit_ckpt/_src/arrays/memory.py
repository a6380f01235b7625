"""Host memory of arrays: views of it, and arenas that JAX can take over without a copy."""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
from typing import cast

import numpy as np

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Shape

_ALIGNMENT = 64
"""What JAX's CPU backend needs to take a buffer over."""

_HUGE_PAGE_BYTES = 1 << 21

_BLOCK_BYTES = 1 << 23
"""Smaller arrays share a block; whoever keeps one of them keeps the block."""


class Arena:
    """Hands out memory; no two arrays share any of it."""

    def __init__(self, nbytes: int) -> None:
        """Make an arena.

        Args:
            nbytes: How much will be asked for in all, about.
        """
        self._block_bytes = min(_BLOCK_BYTES, nbytes)
        self._block = memoryview(bytearray())
        self._used = 0

    def allocate(self, nbytes: int) -> memoryview:
        """Return aligned bytes of undefined values."""
        if nbytes > self._block_bytes // 2:
            return _aligned(nbytes)
        if self._used + nbytes > self._block.nbytes:
            self._block = _aligned(self._block_bytes)
            self._used = 0
        start = self._used
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return self._block[start : start + nbytes]


def aligned_empty(shape: Shape, dtype: DType) -> HostArray:
    """Return an array of undefined values in memory of its own."""
    return np.ndarray(shape, dtype, _aligned(math.prod(shape) * dtype.itemsize))


def available_bytes() -> int | None:
    """Return how much memory programs can get without swapping, None if the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def check_available(nbytes: int) -> None:
    """Check that so much memory can be had, for code that ends the program if it cannot.

    Raises:
        OSError: It cannot.
    """
    available = available_bytes()
    if available is not None and nbytes > available:
        raise OSError(errno.ENOMEM, f"{nbytes} bytes of memory are needed, {available} are free")
    _aligned(nbytes)


def _aligned(nbytes: int) -> memoryview:
    if nbytes >= _HUGE_PAGE_BYTES and _MAP_FLAGS is not None:
        return _mapped(nbytes, _MAP_FLAGS)
    buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return memoryview(cast(bytearray, buffer))[start : start + nbytes]


def _mapped(nbytes: int, flags: int) -> memoryview:
    """Return memory straight from the system, in huge pages where it has them.

    The allocator would put something in front of it: then what begins and ends between two huge
    pages is made of small ones, which the system hands out at an eighth of the speed.
    """
    # whole huge pages are aligned; of the last one no more is taken than what is used
    pages, rest = divmod(nbytes, _HUGE_PAGE_BYTES)
    block = mmap.mmap(-1, (pages + bool(rest)) * _HUGE_PAGE_BYTES, flags=flags)
    with contextlib.suppress(AttributeError, OSError):
        block.madvise(mmap.MADV_HUGEPAGE, 0, pages * _HUGE_PAGE_BYTES)
    return memoryview(block)[:nbytes]


_MAP_FLAGS: int | None = (
    mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if hasattr(mmap, "MAP_ANONYMOUS") else None
)


def byte_view(array: HostArray) -> memoryview:
    """Return the memory of an array in C order."""
    flat = array.reshape(-1).view(np.uint8) if array.ndim != 1 else array.view(np.uint8)
    return memoryview(cast(bytearray, flat))

"""Host memory of arrays: byte views, and arenas whose memory JAX can adopt without a copy."""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import cast

import numpy as np

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Shape

_ALIGNMENT = 64
"""Alignment that JAX's CPU backend requires to adopt a buffer."""

HUGE_PAGE_BYTES = 1 << 21

_BLOCK_BYTES = 1 << 23
"""Smaller arrays share a block, which lives as long as any of them."""


class Arena:
    """Allocates memory for arrays; no two share any of it."""

    def __init__(self, nbytes: int, allocate: Callable[[int], memoryview] | None = None) -> None:
        """Create an arena.

        Args:
            nbytes: Approximate total of all allocations.
            allocate: Returns aligned memory of the given size; None takes it from the system.
        """
        self._allocate = allocate or allocate_aligned
        self._block_bytes = min(_BLOCK_BYTES, nbytes)
        self._block = memoryview(bytearray())
        self._used = 0

    def allocate(self, nbytes: int) -> memoryview:
        """Allocate aligned bytes, uninitialized."""
        if nbytes > self._block_bytes // 2:
            return self._allocate(nbytes)
        if self._used + nbytes > self._block.nbytes:
            self._block = self._allocate(self._block_bytes)
            self._used = 0
        start = self._used
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return self._block[start : start + nbytes]

    def allocate_each(self, sizes: Sequence[int]) -> list[memoryview]:
        """Allocate aligned bytes for several small arrays together."""
        ends = list(accumulate([-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in sizes]))
        memory = self.allocate(ends[-1] if ends else 0)
        starts = (0, *ends)
        return [memory[start : start + n] for start, n in zip(starts, sizes, strict=False)]


def aligned_empty(shape: Shape, dtype: DType) -> HostArray:
    """Allocate an uninitialized array in memory of its own."""
    return np.ndarray(shape, dtype, allocate_aligned(math.prod(shape) * dtype.itemsize))


def available_bytes() -> int | None:
    """Return the memory available without swapping, None if the system does not report it."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            found = dict(line.split(":", 1) for line in lines)
        return int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def check_available(nbytes: int) -> None:
    """Check that `nbytes` of memory are available, for code that aborts the program otherwise.

    Raises:
        OSError: They are not.
    """
    available = available_bytes()
    if available is not None and nbytes > available:
        raise OSError(errno.ENOMEM, f"{nbytes} bytes of memory are needed, {available} are free")
    allocate_aligned(nbytes)


def allocate_aligned(nbytes: int) -> memoryview:
    """Take memory from the system whose start JAX's CPU backend can adopt, uninitialized."""
    if nbytes >= HUGE_PAGE_BYTES and _MAP_FLAGS is not None:
        return _mapped(nbytes, _MAP_FLAGS)
    buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return memoryview(cast(bytearray, buffer))[start : start + nbytes]


def _mapped(nbytes: int, flags: int) -> memoryview:
    """Map memory from the system, in huge pages where supported.

    The allocator would put a header in front: the ends of the block, inside huge pages, would then
    consist of small pages, which the system hands out at an eighth of the speed.
    """
    # align to whole huge pages; take only the used part of the last one
    pages, rest = divmod(nbytes, HUGE_PAGE_BYTES)
    block = mmap.mmap(-1, (pages + bool(rest)) * HUGE_PAGE_BYTES, flags=flags)
    with contextlib.suppress(AttributeError, OSError):
        block.madvise(mmap.MADV_HUGEPAGE, 0, pages * HUGE_PAGE_BYTES)
    return memoryview(block)[:nbytes]


_MAP_FLAGS: int | None = (
    mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS if hasattr(mmap, "MAP_ANONYMOUS") else None
)


def byte_view(array: HostArray) -> memoryview:
    """View the memory of an array as bytes in C order."""
    flat = array.reshape(-1).view(np.uint8) if array.ndim != 1 else array.view(np.uint8)
    return memoryview(cast(bytearray, flat))

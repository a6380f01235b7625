"""Read a box out of an array whose elements lie in a file in C order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.memory import aligned_empty, byte_view
from orbit_ckpt._src.arrays.slices import Region, Shape
from orbit_ckpt._src.storage.zarr import ZarrArray

PAGE_BYTES = 4096
"""Gaps up to this size are read too: the system reads whole pages anyway."""

SPAN_BYTES = 1 << 20

Fetch = Callable[[int, memoryview], str | None]
"""Fills a buffer with the bytes of a chunk from a position; returns what is wrong with it."""


def read_box(
    layout: ZarrArray,
    box: Region,
    into: HostArray,
    fetch: Fetch,
    *,
    max_gap_bytes: int = PAGE_BYTES,
    span_bytes: int = SPAN_BYTES,
) -> str | None:
    """Read the bytes of a box, and small gaps between them.

    Args:
        layout: How the chunk's array is stored; uncompressed.
        box: The box, in the chunk's coordinates; not empty.
        into: The destination, of the box's shape.
        fetch: Reads bytes of the chunk.
        max_gap_bytes: Gaps up to this size are read too.
        span_bytes: Approximate limit of what is read at once with gaps in it.

    Returns:
        What is wrong with the chunk, None if nothing is.
    """
    itemsize = layout.dtype.itemsize
    # A box is a grid (`outer`) of contiguous runs of `run` elements, because its last dimensions
    # are whole in the chunk. Neighbours along the grid's last dimension are `stride` elements
    # apart. If the gap between them is small, one read covers `count` runs and their gaps, and
    # the strided view below selects the runs. A read never covers two rows of the grid.
    outer, run = _split(box.shape, layout.chunk_shape)
    strides = _strides(layout.chunk_shape)
    if not outer:
        position = sum(map(math.prod, zip(box.start, strides, strict=True))) * itemsize
        return _read(position, into, fetch)
    stride = strides[len(outer) - 1]
    has_gaps = (stride - run) * itemsize <= max_gap_bytes
    count = max(1, span_bytes // (stride * itemsize)) if has_gaps else 1
    for start, rows in _groups(outer, count):
        index = tuple(s + i for s, i in zip(box.start, start, strict=False))
        index += box.start[len(index) :]
        position = sum(map(math.prod, zip(index, strides, strict=True))) * itemsize
        place = into[(*start[:-1], slice(start[-1], start[-1] + rows), ...)]
        if rows == 1:
            problem = _read(position, place, fetch)
        else:
            span = aligned_empty(((rows - 1) * stride + run,), layout.dtype)
            problem = _read(position, span, fetch)
            # `as_strided` does not know all dtypes
            apart = (stride * itemsize, itemsize)
            taken = np.ndarray((rows, run), layout.dtype, byte_view(span), strides=apart)
            place[...] = taken.reshape(place.shape)
        if problem is not None:
            return problem
    return None


def box_bytes(layout: ZarrArray, box: Region, *, max_gap_bytes: int = PAGE_BYTES) -> int:
    """Return about the number of bytes that `read_box` reads."""
    itemsize = layout.dtype.itemsize
    outer, run = _split(box.shape, layout.chunk_shape)
    if not outer:
        return run * itemsize
    stride = _strides(layout.chunk_shape)[len(outer) - 1]
    has_gaps = (stride - run) * itemsize <= max_gap_bytes
    return math.prod(outer) * (stride if has_gaps else run) * itemsize


def _split(shape: Shape, chunk_shape: Shape) -> tuple[Shape, int]:
    """Return the grid dimensions of a box's contiguous runs, and the elements of a run."""
    axis, run = len(shape), 1
    while axis and shape[axis - 1] == chunk_shape[axis - 1]:
        axis -= 1
        run *= shape[axis]
    if axis:
        axis -= 1
        run *= shape[axis]
    outer = shape[:axis]
    return (outer, run) if math.prod(outer) > 1 else ((), run)


def _strides(shape: Shape) -> Shape:
    """Return the distance in elements between neighbours along every dimension."""
    strides: list[int] = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _groups(outer: Shape, count: int) -> Iterator[tuple[Shape, int]]:
    """Yield the indices of a grid in C order, up to `count` neighbours along its last dimension."""
    for first in np.ndindex(*outer[:-1]):
        for start in range(0, outer[-1], count):
            yield (*first, start), min(count, outer[-1] - start)


def _read(position: int, into: HostArray, fetch: Fetch) -> str | None:
    values = into if into.flags.c_contiguous else np.empty(into.shape, into.dtype)
    problem = fetch(position, byte_view(values))
    if problem is None and values is not into:
        into[...] = values
    return problem

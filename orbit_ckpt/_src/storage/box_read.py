"""Read a box out of an array whose elements lie in a file in C order."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.memory import aligned_empty, byte_view
from orbit_ckpt._src.arrays.slices import Region, Shape
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.store_path import is_store_url
from orbit_ckpt._src.storage.value_read import MAX_OBJECT_AHEAD_BYTES, ValueReader, part_of
from orbit_ckpt._src.storage.zarr import ZarrArray

_PAGE_BYTES = 4096
"""Gaps up to this size are read too: the system reads whole pages anyway."""

_SPAN_BYTES = 1 << 20

_OBJECT_SPAN_BYTES = 1 << 25
"""The same for objects of a store, whose requests cost as much as `MAX_OBJECT_AHEAD_BYTES`."""


def read_box(
    value: Extent, layout: ZarrArray, box: Region, into: HostArray, reading: ValueReader
) -> bool:
    """Read the bytes of a box, and gaps between them of at most a page each.

    In an object store the gaps may be larger, see `MAX_OBJECT_AHEAD_BYTES`.

    Args:
        value: The place of the chunk.
        layout: How its array is stored; plain.
        box: The box, in the chunk's coordinates; not empty.
        into: The destination, of the box's shape.
        reading: Reads, and counts the bytes read.

    Returns:
        Whether the file contains the whole box.
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
        return _read(value, position, into, reading)
    stride = strides[len(outer) - 1]
    count = _runs_at_once(run, stride, itemsize, in_store=is_store_url(value.file))
    for start, rows in _groups(outer, count):
        index = tuple(s + i for s, i in zip(box.start, start, strict=False))
        index += box.start[len(index) :]
        position = sum(map(math.prod, zip(index, strides, strict=True))) * itemsize
        place = into[(*start[:-1], slice(start[-1], start[-1] + rows), ...)]
        if rows == 1:
            is_whole = _read(value, position, place, reading)
        else:
            span = aligned_empty(((rows - 1) * stride + run,), layout.dtype)
            is_whole = _read(value, position, span, reading)
            # `as_strided` does not know all dtypes
            apart = (stride * itemsize, itemsize)
            taken = np.ndarray((rows, run), layout.dtype, byte_view(span), strides=apart)
            place[...] = taken.reshape(place.shape)
        if not is_whole:
            return False
    return True


def box_bytes(layout: ZarrArray, box: Region, *, in_store: bool) -> int:
    """Return the number of bytes that `read_box` reads, without gaps at the ends of spans."""
    itemsize = layout.dtype.itemsize
    outer, run = _split(box.shape, layout.chunk_shape)
    if not outer:
        return run * itemsize
    stride = _strides(layout.chunk_shape)[len(outer) - 1]
    has_gaps = _runs_at_once(run, stride, itemsize, in_store=in_store) > 1
    return math.prod(outer) * (stride if has_gaps else run) * itemsize


def _runs_at_once(run: int, stride: int, itemsize: int, *, in_store: bool) -> int:
    """Return the number of neighbouring runs that one read covers, together with their gaps."""
    max_gap = MAX_OBJECT_AHEAD_BYTES if in_store else _PAGE_BYTES
    if (stride - run) * itemsize > max_gap:
        return 1
    span_bytes = _OBJECT_SPAN_BYTES if in_store else _SPAN_BYTES
    return max(1, span_bytes // (stride * itemsize))


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


def _read(value: Extent, position: int, into: HostArray, reading: ValueReader) -> bool:
    values = into if into.flags.c_contiguous else np.empty(into.shape, into.dtype)
    reading.nbytes += values.nbytes
    place = part_of(value, position, values.nbytes)
    is_whole = reading.read_into(place, [byte_view(values)]) == values.nbytes
    if values is not into:
        into[...] = values
    return is_whole

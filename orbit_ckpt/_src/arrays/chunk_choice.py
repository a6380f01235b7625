"""Choose chunks that later readers need whole; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from orbit_ckpt._src.arrays.slices import Shape, default_chunk_shape

MIN_CHUNK_BYTES = 1 << 20
"""Smaller chunks cost more to find and request than reading too much does."""


def refine_chunk_shape(
    shape: Shape, write_shape: Shape, read_shapes: Sequence[Shape], itemsize: int
) -> Shape:
    """Return the largest chunk of which every part that is read later consists.

    That is the common refinement of the grids of all parts. Where it is less than
    `MIN_CHUNK_BYTES`, chunks are merged, so that as little as possible is read in vain.

    Args:
        shape: Shape of the array.
        write_shape: Shape of the part that one device writes, which the chunk divides.
        read_shapes: Shapes of the parts that are read later, each from a regular grid.
        itemsize: Bytes of an element.

    Raises:
        ValueError: A part has another rank than the array.
    """
    wrong = [read for read in read_shapes if len(read) != len(shape)]
    if wrong:
        raise ValueError(f"read_shapes has {wrong[0]}, but the array has {len(shape)} dimensions")
    limits = tuple(max(1, n) for n in write_shape)
    chunk = [
        math.gcd(limits[axis], *(read[axis] for read in read_shapes)) for axis in range(len(shape))
    ]
    while math.prod(chunk) * itemsize < MIN_CHUNK_BYTES:
        larger = [
            (*chunk[:axis], n, *chunk[axis + 1 :])
            for axis in range(len(shape))
            if (n := _next_multiple(chunk[axis], limits[axis])) is not None
        ]
        if not larger:
            break
        # of equally good ones the last, whose rows are longer
        chunk = list(min(reversed(larger), key=lambda c: _cost(shape, c, read_shapes)))
    return default_chunk_shape(tuple(chunk), itemsize)


def read_ratio(shape: Shape, chunk_shape: Shape, read_shape: Shape) -> float:
    """Return how much the readers of all parts read, in relation to what they need.

    Args:
        shape: Shape of the array.
        chunk_shape: Shape of its chunks, each of which is read whole.
        read_shape: Shape of the parts.
    """
    ratio = 1.0
    for n, chunk, part in zip(shape, chunk_shape, read_shape, strict=True):
        if n:
            starts = range(0, n, max(1, part))
            chunks = sum(-(-min(s + part, n) // chunk) - s // chunk for s in starts)
            ratio *= chunks * chunk / n
    return ratio


def _cost(shape: Shape, chunk_shape: Shape, read_shapes: Sequence[Shape]) -> tuple[float, int]:
    ratios = [read_ratio(shape, chunk_shape, read) for read in read_shapes]
    return max(ratios, default=1.0), math.prod(chunk_shape)


def _next_multiple(n: int, limit: int) -> int | None:
    """Return the least multiple of `n` above it that divides `limit`, None if there is none."""
    return next((m for m in range(2 * n, limit + 1, n) if limit % m == 0), None)

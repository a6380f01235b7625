"""Boxes inside arrays: the extent of a shard, the chunks that it touches, and their shape; pure.

The rules of chunk shapes are Orbax's (`SaveArgs.chunk_byte_size` and `shard_axes`): a chunk divides
what one device writes, so that no chunk is written twice or read back to be completed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

_CHUNK_BYTES = 1 << 25
"""Threads share the chunks of a large array, and a slice reads no more than a few of them."""

_MIN_CHUNK_BYTES = 1 << 21

Shape = tuple[int, ...]
Index = tuple[slice, ...]


class Region(Struct, frozen=True, gc=False):
    """A box inside an array.

    Attributes:
        start: Index of its first element along every dimension.
        shape: Its extent along every dimension.
    """

    start: Shape
    shape: Shape

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def stop(self) -> Shape:
        """One past the last index along every dimension."""
        return tuple(s + n for s, n in zip(self.start, self.shape, strict=True))

    @property
    def slices(self) -> tuple[slice, ...]:
        """The region as an index of the array it lies in."""
        return tuple(slice(s, s + n) for s, n in zip(self.start, self.shape, strict=True))

    def within(self, outer: Region) -> Region:
        """Return the region in the coordinates of one that contains it."""
        start = tuple(s - o for s, o in zip(self.start, outer.start, strict=True))
        return Region(start, self.shape)

    def intersect(self, other: Region) -> Region | None:
        """Return the intersection of two regions, None if they are disjoint."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        shape = tuple(b - a for a, b in zip(start, stop, strict=True))
        return Region(start, shape) if all(n > 0 for n in shape) else None


@functools.lru_cache(maxsize=4096)
def whole(shape: Shape) -> Region:
    """Return the region that covers an array."""
    return Region((0,) * len(shape), tuple(shape))


def from_index(index: Sequence[slice], shape: Shape) -> Region:
    """Return the region of a tuple of unit-step slices, as JAX's shards carry."""
    bounds = [s.indices(n) for s, n in zip(index, shape, strict=True)]
    return Region(
        tuple(start for start, _, _ in bounds),
        tuple(max(0, stop - start) for start, stop, _ in bounds),
    )


def chunk_indices(region: Region, chunk_shape: Shape) -> Iterator[Shape]:
    """Yield the grid index of every chunk that overlaps a region, in C order."""
    if region.shape == chunk_shape and not any(region.start):
        yield region.start
        return
    if not region.size:
        return
    ranges = [
        range(start // chunk, -(-stop // chunk))
        for start, stop, chunk in zip(region.start, region.stop, chunk_shape, strict=True)
    ]
    yield from _grid(ranges)


def _grid(ranges: Sequence[range]) -> Iterator[Shape]:
    # itertools.product would first make tuples of the ranges
    if not ranges:
        yield ()
        return
    for index in ranges[0]:
        for rest in _grid(ranges[1:]):
            yield (index, *rest)


def chunk_region(index: Shape, chunk_shape: Shape) -> Region:
    """Return the full box of one chunk; at the array's edge it may reach beyond the array."""
    return Region(
        tuple(i * chunk for i, chunk in zip(index, chunk_shape, strict=True)), chunk_shape
    )


def split_by_rows(region: Region, chunk_shape: Shape, max_elements: int) -> Iterator[Region]:
    """Yield parts of a region, each of whole chunks and at most `max_elements` where possible.

    The region must start on the chunk grid. Cuts along the first dimension that has more than one
    chunk, then along the next; a part is never smaller than one chunk.
    """
    if region.size <= max_elements:
        yield region
        return
    cuttable = [a for a, n in enumerate(region.shape) if n > chunk_shape[a]]
    if not cuttable:
        yield region
        return
    axis = cuttable[0]
    extent, chunk = region.shape[axis], chunk_shape[axis]
    row = region.size // extent * chunk
    step = chunk * max(1, max_elements // row)
    for offset in range(0, extent, step):
        start, shape = list(region.start), list(region.shape)
        start[axis] += offset
        shape[axis] = min(step, extent - offset)
        yield from split_by_rows(Region(tuple(start), tuple(shape)), chunk_shape, max_elements)


def band_shape(shape: Shape, chunk_shape: Shape) -> Shape:
    """Return the shape of the smallest part of whole chunks whose elements follow one another.

    `split_by_rows` with parts of this shape cuts an array into ranges of its elements in C order.
    """
    band: list[int] = []
    for n, chunk in zip(shape, chunk_shape, strict=True):
        is_row = all(extent == 1 for extent in band)
        band.append(min(n, chunk) if is_row else n)
    return tuple(band)


def effective_chunk_bytes(
    write_nbytes: int, *, chunk_bytes: int | None, file_bytes: int
) -> int | None:
    """Return the maximum chunk size in bytes, None for no limit.

    Args:
        write_nbytes: Bytes of the array that one device writes.
        chunk_bytes: Limit requested by the user, if any.
        file_bytes: Maximum size of a data file, which must hold a chunk; 0 means no limit.
    """
    if not file_bytes:
        return chunk_bytes
    if chunk_bytes is None:
        return file_bytes if write_nbytes > file_bytes else None
    return min(chunk_bytes, file_bytes)


def choose_chunk_shape(
    shape: Shape,
    write_shape: Shape,
    *,
    itemsize: int,
    max_bytes: int | None = None,
    shard_axes: Sequence[int] = (),
) -> Shape:
    """Return a chunk shape that divides `write_shape`.

    Axes in `shard_axes` are cut to length 1 first. While the chunk is larger than `max_bytes`, its
    longest axis shrinks to the next smaller divisor of what one device writes; axes that are
    already sharded (`write_shape` smaller than `shape`) go first. Axes of length 0 give 1, because
    zarr has no empty chunks.

    Raises:
        ValueError: The ranks differ, an axis is out of range, or `max_bytes` is less than one
            element.
    """
    rank = len(shape)
    if len(write_shape) != rank:
        raise ValueError(f"shape={shape} and write_shape={write_shape} must have the same length")
    if any(not 0 <= axis < rank for axis in shard_axes):
        raise ValueError(
            f"All shard_axes={tuple(shard_axes)} must be non-negative and less than rank={rank}"
        )
    chunk = [max(1, n) for n in write_shape]
    for axis in shard_axes:
        chunk[axis] = 1
    if max_bytes is None:
        return tuple(chunk)
    if max_bytes < itemsize:
        raise ValueError(f"chunk_byte_size={max_bytes} must be >= {itemsize}, one element")
    sharded = {axis for axis in range(rank) if write_shape[axis] < shape[axis]}
    while math.prod(chunk) * itemsize > max_bytes:
        candidates = [axis for axis in range(rank) if chunk[axis] > 1]
        preferred = [axis for axis in candidates if axis in sharded] or candidates
        axis = max(preferred, key=lambda a: chunk[a])
        chunk[axis] = _divisor_below(chunk[axis], write_shape[axis])
    return tuple(chunk)


def default_chunk_shape(write_shape: Shape, itemsize: int) -> Shape:
    """Return the chunk shape of an array for which none is requested.

    A chunk is a block of whole rows of what one device writes, so that a load on the same sharding
    reads it straight into place: at most `_CHUNK_BYTES`, and more only if its rows have no divisor
    near that. A part whose dimensions are primes stays whole.
    """
    chunk = [max(1, n) for n in write_shape]
    for axis, length in enumerate(chunk):
        nbytes = math.prod(chunk) * itemsize
        row = nbytes // length
        if nbytes <= _CHUNK_BYTES:
            break
        if row > _CHUNK_BYTES:
            chunk[axis] = 1
            continue
        found = _divisors(length)
        fitting = [d for d in found if _MIN_CHUNK_BYTES <= d * row <= _CHUNK_BYTES]
        larger = [d for d in found if _CHUNK_BYTES < d * row <= 2 * _CHUNK_BYTES]
        if fitting or larger:
            chunk[axis] = fitting[-1] if fitting else larger[0]
            break
    return tuple(chunk)


def _divisor_below(limit: int, n: int) -> int:
    """Return the largest divisor of `n` below `limit`; `limit` is a divisor itself."""
    return max(d for d in _divisors(n) if d < limit)


def _divisors(n: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})

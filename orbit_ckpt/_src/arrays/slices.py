"""Boxes inside arrays: the extent of a shard, the chunks it touches; pure."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

Shape = tuple[int, ...]


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

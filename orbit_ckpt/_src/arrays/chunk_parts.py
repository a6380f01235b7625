"""Group the regions of an array by the chunks that they touch; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape, chunk_indices, chunk_region


class ChunkPart(Struct, frozen=True, gc=False):
    """The part of one chunk that belongs to one region.

    Attributes:
        number: The position of the region among all regions.
        source: The part, in the chunk's coordinates.
        target: The same part, in the region's coordinates.
    """

    number: int
    source: Region
    target: Region


def parts_by_chunk(
    regions: Sequence[Region], chunk_shape: Shape
) -> Mapping[Shape, Sequence[ChunkPart]]:
    """Return the parts of every chunk that regions touch, by the chunk's grid index.

    A region is the disjoint union of the targets of its parts; regions may overlap.
    """
    found: dict[Shape, list[ChunkPart]] = {}
    for number, region in enumerate(regions):
        for index in chunk_indices(region, chunk_shape):
            chunk = chunk_region(index, chunk_shape)
            common = region.intersect(chunk)
            if common is not None:
                part = ChunkPart(number, common.within(chunk), common.within(region))
                found.setdefault(index, []).append(part)
    return found


def bounding_box(parts: Sequence[ChunkPart]) -> Region:
    """Return the smallest box of a chunk that contains some parts of it, at least one."""
    start = tuple(map(min, *(part.source.start for part in parts), parts[0].source.start))
    stop = tuple(map(max, *(part.source.stop for part in parts), parts[0].source.stop))
    return Region(start, tuple(b - a for a, b in zip(start, stop, strict=True)))


def copy_parts(
    block: Region,
    values: HostArray,
    parts: Sequence[ChunkPart],
    targets: Sequence[HostArray],
) -> None:
    """Copy what a block of a chunk has of its parts.

    Args:
        block: The block, in the chunk's coordinates.
        values: Its elements.
        parts: Parts of the chunk.
        targets: Where each goes.
    """
    for part, target in zip(parts, targets, strict=True):
        common = part.source.intersect(block)
        if common is not None:
            source = values[(*common.within(block).slices, ...)]
            target[(*common.within(part.source).slices, ...)] = source

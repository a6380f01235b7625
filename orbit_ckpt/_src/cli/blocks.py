"""Read leaves of a checkpoint block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray, storable
from orbit_ckpt._src.arrays.slices import chunk_indices, chunk_region, split_by_rows, whole
from orbit_ckpt._src.arrays.statistics import ArrayStatistics, measure
from orbit_ckpt._src.checkpointer.api import load
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.storage.region_stream import RegionStream
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyLeaf


def open_leaves(path: str, reader: Format | None = None) -> dict[NamePath, object]:
    """Return leaves by keys: arrays as `LazyArray`, which use no device until `get` is called."""
    flat = flatten(load(path, lazy=True, reader=reader))
    return dict(zip(flat.names, flat.values, strict=True))


def statistics_of(
    value: object, max_bytes: int, advance: Callable[[int], object]
) -> ArrayStatistics | None:
    """Return the statistics of a leaf, None if it has no numbers.

    Args:
        value: A result of `open_leaves`.
        max_bytes: Approximate number of bytes to hold at once.
        advance: Called with the size in bytes of each block once it is measured.
    """
    if isinstance(value, LazyArray):
        if value.leaf.key_impl is not None:
            return None
        found = ArrayStatistics()
        for block in _blocks(value.leaf, max_bytes):
            found = found.merge(measure(block))
            advance(block.nbytes)
        return found
    host = as_host(value)
    return None if host is None else measure(host)


def as_host(value: object) -> HostArray | None:
    """Convert one or several numbers to an array; return None for anything else."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        host = np.asarray(cast("object", value))
        return host if storable(host.dtype) else None
    return None


def _blocks(leaf: LazyLeaf, max_bytes: int) -> Iterator[HostArray]:
    """Yield all values of an array in blocks, reading each chunk once."""
    layout = leaf.read.layout
    reader = load_batch_of(leaf.info).reader
    everything = whole(leaf.shape)
    for index in chunk_indices(everything, layout.chunk_shape):
        box = chunk_region(index, layout.chunk_shape)
        region = everything.intersect(box)
        if region is None:
            continue
        is_small = layout.chunk_nbytes <= max_bytes
        if region == box or is_small or not reader.can_stream(layout):
            yield from leaf.blocks(region, max_bytes)
            continue
        # a chunk that exceeds the array and the limit: stream through it once
        elements = max(1, max_bytes // layout.dtype.itemsize)
        with leaf.directory.reading(leaf.info.label):
            stream = RegionStream(reader, leaf.read)
            for part in split_by_rows(region, (1,) * len(region.shape), elements):
                yield stream.next(part).view(leaf.logical)

"""Leaves of a checkpoint as commands see them: described without reading, or block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np
from msgspec import Struct, structs

from orbit_ckpt._src.arrays.dtypes import HostArray, storable
from orbit_ckpt._src.arrays.slices import chunk_indices, chunk_region, split_by_rows, whole
from orbit_ckpt._src.arrays.statistics import ArrayStatistics, measure
from orbit_ckpt._src.checkpointer.api import load, metadata
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.metadata.values import ArrayMetadata, ScalarMetadata, StringMetadata
from orbit_ckpt._src.storage.region_stream import RegionStream
from orbit_ckpt._src.transform.patterns import explain_unmatched, join_name, names_matching
from orbit_ckpt._src.tree.flatten import flatten, is_empty_node
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray
from orbit_ckpt._src.type_handlers.lazy_leaf import LazyLeaf


class Leaf(Struct, frozen=True):
    """What is known of a leaf.

    Attributes:
        keys: Its keys.
        kind: `array`, `scalar`, `string`, `empty`, or a class of metadata of others.
        dtype: Its dtype, None if it has none.
        shape: Its shape, None if it has none.
        nbytes: Size of its values in memory.
        sharding: How it was laid out when it was saved, as text.
        chunk_shape: Shape of the chunks it is stored in.
        compression: How they are compressed.
    """

    keys: NamePath
    kind: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    nbytes: int = 0
    sharding: str | None = None
    chunk_shape: tuple[int, ...] | None = None
    compression: str | None = None

    @property
    def name(self) -> str:
        """Its keys, joined by slashes; not its own if keys have slashes too."""
        return join_name(self.keys)

    @property
    def fields(self) -> dict[str, object]:
        """What JSON says of it."""
        found = structs.asdict(self)
        del found["keys"]
        return {"name": self.name, **found}

    @property
    def description(self) -> str:
        """Dtype and shape, or what else it is."""
        if self.shape is None or self.dtype is None:
            return self.kind
        return self.dtype if self.kind == "scalar" else f"{self.dtype}{list(self.shape)}"


def list_leaves(
    path: str, patterns: Sequence[str] = (), reader: Format | None = None
) -> list[Leaf]:
    """Return the leaves of a checkpoint in their order; no array is read.

    Args:
        path: The checkpoint.
        patterns: Only leaves that match one of them, if there are any.
        reader: The format to read it as, None to find out.

    Raises:
        ValueError: No leaf matches.
    """
    flat = flatten(metadata(path, reader=reader).tree)
    chosen = set(choose([join_name(keys) for keys in flat.names], patterns))
    return [
        _describe(keys, value)
        for keys, value in zip(flat.names, flat.values, strict=True)
        if join_name(keys) in chosen
    ]


def choose(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of some patterns; all if there are none.

    Raises:
        ValueError: None matches.
    """
    if not patterns:
        return list(names)
    found = {name for pattern in patterns for name in names_matching(pattern, names)}
    if not found:
        raise ValueError(
            f"No leaf matches {' or '.join(map(repr, patterns))}. "
            f"{explain_unmatched(patterns[0], names)}"
        )
    return [name for name in names if name in found]


def _describe(keys: NamePath, value: object) -> Leaf:
    if is_empty_node(value):
        return Leaf(keys, "None" if value is None else f"empty {type(value).__name__}")
    if isinstance(value, StringMetadata):
        return Leaf(keys, "string")
    if not isinstance(value, ArrayMetadata):
        return Leaf(keys, type(value).__name__.removesuffix("Metadata").lower() or "unknown")
    storage = value.storage
    return Leaf(
        keys,
        "scalar" if isinstance(value, ScalarMetadata) else "array",
        str(value.dtype),
        tuple(value.shape),
        value.nbytes,
        None if value.sharding is None else str(value.sharding),
        storage.chunk_shape if storage else None,
        storage.compression if storage else None,
    )


def open_leaves(path: str, reader: Format | None = None) -> dict[NamePath, object]:
    """Return leaves by keys: arrays as `LazyArray`, which touch no device until `get` is called."""
    flat = flatten(load(path, lazy=True, reader=reader))
    return dict(zip(flat.names, flat.values, strict=True))


def statistics_of(
    value: object, max_bytes: int, advance: Callable[[int], object]
) -> ArrayStatistics | None:
    """Return the statistics of a leaf, None if it has no numbers.

    Args:
        value: What `open_leaves` returned.
        max_bytes: About how many bytes to hold at once.
        advance: Called with the bytes of each block, once it is measured.
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
    """Return a value that is a number, or several, as an array; None for all others."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        host = np.asarray(cast(object, value))
        return host if storable(host.dtype) else None
    return None


def _blocks(leaf: LazyLeaf, max_bytes: int) -> Iterator[HostArray]:
    """Yield all values of an array in blocks, each chunk read once."""
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
        # a chunk that reaches beyond the array: read through it once
        elements = max(1, max_bytes // layout.dtype.itemsize)
        with leaf.directory.reading(leaf.info.label):
            stream = RegionStream(reader, leaf.read)
            for part in split_by_rows(region, (1,) * len(region.shape), elements):
                yield stream.next(part).view(leaf.logical)

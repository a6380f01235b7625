"""Pairs of stored arrays, and the parts in which they are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from msgspec import Struct

from orbit_ckpt._src.arrays.compare import (
    Arithmetic,
    Comparison,
    choose_arithmetic,
)
from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.slices import Region, Shape, split_by_rows, whole
from orbit_ckpt._src.metadata.schema import LeafRecord
from orbit_ckpt._src.pytree.compare.units import PairForm, PartToCompare
from orbit_ckpt._src.pytree.restore.leaves import StoredLeaves
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.located import for_other_process
from orbit_ckpt._src.storage.region_stream import DECODER_BYTES
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import logical_dtype
from orbit_ckpt._src.type_handlers.capabilities import plain_arrays
from orbit_ckpt._src.type_handlers.described import key_type_of

_PART_BYTES = 1 << 25
"""Maximum bytes of an array that one thread reads or compares at once."""

_MAX_DECODER_BYTES = 1 << 30
"""Limit for all decoders. With more, chunks are small, and better read several times."""


class StoredArray(Struct, frozen=True):
    """An array in one of the trees.

    Attributes:
        reader: Reads it.
        read: Reads all of it.
        dtype: Its logical dtype.
        key_dimensions: Number of trailing dimensions of one key's data, 0 for other arrays.
    """

    reader: BatchReader
    read: ArrayRead
    dtype: DType
    key_dimensions: int

    @property
    def layout(self) -> ZarrArray:
        return self.read.layout

    def part(self, region: Region) -> ArrayRead:
        return ArrayRead(self.read.path, self.read.name, self.layout, (region,))


def stored_arrays(
    stored: StoredLeaves, records: Sequence[LeafRecord]
) -> dict[NamePath, StoredArray]:
    """Return the leaves that are arrays with readable parts, by names.

    Only the handlers of other leaves know their contents.
    """
    batch = stored.batch
    found: dict[NamePath, StoredArray] = {}
    for handler, group in stored.split(records, {})[1]:
        arrays = plain_arrays(handler)
        if arrays is None:
            continue
        infos = stored.infos(group)
        for record, info, read in zip(group, infos, arrays.stored_arrays(infos), strict=True):
            layout = read.layout
            known = batch.arrays.get(record.name)
            is_keys = known is not None and known.random_key_impl is not None
            found[record.names] = StoredArray(
                batch.reader,
                read,
                logical_dtype(info, layout.dtype) if batch.details else layout.dtype,
                key_type_of(info, layout.dtype)[1] if is_keys else 0,
            )
    return found


class ArrayPair(Struct, frozen=True):
    """An array in both trees.

    Attributes:
        names: Its name.
        a: The array in the first tree.
        b: The array in the second.
        form: How their elements are compared.
        block: Shape of whose multiples parts are made, so that no chunk is read twice; None if the
            array is streamed.
    """

    names: NamePath
    a: StoredArray
    b: StoredArray
    form: PairForm
    block: Shape | None

    @classmethod
    def of(
        cls, names: NamePath, a: StoredArray, b: StoredArray, max_bytes: int, how: Comparison
    ) -> ArrayPair:
        arithmetic = choose_arithmetic(a.dtype, b.dtype)
        if a.key_dimensions:
            arithmetic = Arithmetic.BITS
        chosen = cast(Arithmetic, arithmetic)
        form = PairForm((a.dtype, b.dtype), chosen, a.key_dimensions, how)
        return cls(names, a, b, form, _choose_block(a, b, max_bytes))

    @property
    def nbytes(self) -> int:
        return math.prod(self.a.layout.shape) * self.itemsize

    @property
    def itemsize(self) -> int:
        return self.a.layout.dtype.itemsize + self.b.layout.dtype.itemsize


def _choose_block(a: StoredArray, b: StoredArray, max_bytes: int) -> Shape | None:
    """Return the shape of whose multiples two arrays are cut, None to stream them."""
    layouts = [(side.reader, side.layout) for side in (a, b)]
    shape = a.layout.shape
    fixed = len(shape) - a.key_dimensions  # a key is not cut
    grids = zip(a.layout.chunk_shape, b.layout.chunk_shape, shape, strict=True)
    common = tuple(
        max(1, min(math.lcm(i, j), n)) if axis < fixed else max(1, n)
        for axis, (i, j, n) in enumerate(grids)
    )
    itemsize = sum(layout.dtype.itemsize for _, layout in layouts)
    if math.prod(common) * itemsize <= max_bytes:
        return common
    others = [layout for reader, layout in layouts if not reader.can_stream(layout)]
    if others:
        largest = max(others, key=lambda layout: layout.chunk_nbytes).chunk_shape
        return (*largest[:fixed], *common[fixed:])
    if sum(_decoder_bytes(layout) for _, layout in layouts) <= _MAX_DECODER_BYTES:
        return None
    return (*(1,) * fixed, *common[fixed:])


def _decoder_bytes(layout: ZarrArray) -> int:
    """Return the bytes of the chunks open at once while an array is streamed."""
    if layout.compression is None:
        return 0
    grid = zip(layout.shape[1:], layout.chunk_shape[1:], strict=True)
    return math.prod(-(-n // c) for n, c in grid) * min(layout.chunk_nbytes, DECODER_BYTES)


class PairPart(Struct, frozen=True, gc=False):
    """A part of an array in both trees."""

    pair: ArrayPair
    region: Region

    def for_other_process(self, stream_bytes: int) -> PartToCompare:
        """Return the part in a form that can be pickled; an array without blocks is streamed."""
        pair = self.pair
        reads = (for_other_process(pair.a.read), for_other_process(pair.b.read))
        is_streamed = pair.block is None
        return PartToCompare(reads, self.region, pair.form, stream_bytes if is_streamed else None)


def parts_of_pairs(pairs: Iterable[ArrayPair], max_bytes: int) -> Iterator[PairPart]:
    """Yield parts of arrays that one thread reads or compares at once."""
    for pair in pairs:
        size = max(1, min(max_bytes, _PART_BYTES) // pair.itemsize)
        for region in split_by_rows(whole(pair.a.layout.shape), cast(Shape, pair.block), size):
            yield PairPart(pair, region)


def part_nbytes(part: PairPart) -> int:
    return part.region.size * part.pair.itemsize

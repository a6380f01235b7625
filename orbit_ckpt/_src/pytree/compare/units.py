"""Parts of two arrays to compare, in any process; imports no JAX."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from orbit_ckpt._src.arrays.compare import Arithmetic, Comparison, ValueChange, compare_values
from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape, split_by_rows, whole
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.located import LocatedChunks
from orbit_ckpt._src.storage.region_stream import RegionStream


class PairForm(Struct, frozen=True):
    """How the elements of two arrays are compared.

    Attributes:
        dtypes: Their logical dtypes.
        arithmetic: The domain in which elements are compared.
        key_dimensions: Number of trailing dimensions of one key's data, 0 for other arrays.
        how: Tolerance, and what else to compute.
    """

    dtypes: tuple[DType, DType]
    arithmetic: Arithmetic
    key_dimensions: int
    how: Comparison

    def compare(self, x: HostArray, y: HostArray, region: Region) -> ValueChange:
        """Compare the stored values of a region of both arrays."""
        start = region.start
        if self.arithmetic is Arithmetic.BITS:
            outer = len(start) - self.key_dimensions
            x, y = (v.reshape(*v.shape[:outer], math.prod(v.shape[outer:])) for v in (x, y))
            start = start[:outer]
        else:
            x, y = x.view(self.dtypes[0]), y.view(self.dtypes[1])
        return compare_values(x, y, self.arithmetic, start=start, how=self.how)

    def rows(self, shape: Shape, max_bytes: int, itemsize: int) -> list[Region]:
        """Return the regions in which arrays of a shape are streamed, in order.

        Args:
            shape: The shape.
            max_bytes: Maximum bytes of a region of both.
            itemsize: Bytes of an element of both.
        """
        fixed = len(shape) - self.key_dimensions  # a key is not cut
        block = (*(1,) * fixed, *shape[fixed:])
        return list(split_by_rows(whole(shape), block, max(1, max_bytes // itemsize)))


class PartToCompare(Struct, frozen=True):
    """A part of two arrays, or all of them in order.

    Attributes:
        reads: Both arrays.
        region: The part.
        form: How they are compared.
        stream_bytes: Maximum bytes held of arrays that are streamed, None if not.
    """

    reads: tuple[ArrayRead, ArrayRead]
    region: Region
    form: PairForm
    stream_bytes: int | None = None


class CompareUnit(Struct, frozen=True):
    """Parts to compare.

    Attributes:
        located: The places of the chunks of both sides.
        parts: The parts.
    """

    located: tuple[LocatedChunks, LocatedChunks]
    parts: Sequence[PartToCompare]


class DamagedPart(Struct, frozen=True):
    """A part that cannot be read.

    Attributes:
        side: 0 if it is the first array's, 1 if the second's.
        error: The error.
    """

    side: int
    error: CorruptionError


class Compared(Struct, frozen=True):
    """The result of a unit.

    Attributes:
        changes: The result of each part.
        bytes_read: Bytes read, as stored.
    """

    changes: Sequence[ValueChange | DamagedPart | CorruptionError]
    bytes_read: int


def compare_unit(unit: CompareUnit) -> Compared:
    """Read and compare parts of arrays."""
    readers = (unit.located[0].open(), unit.located[1].open())
    changes = [_compare(readers, part) for part in unit.parts]
    return Compared(changes, sum(reader.bytes_read for reader in readers))


def _compare(
    readers: tuple[BatchReader, BatchReader], part: PartToCompare
) -> ValueChange | DamagedPart:
    sides = list(zip(readers, part.reads, strict=True))
    values: list[HostArray] = []
    try:
        if part.stream_bytes is None:
            for reader, read in sides:
                values.append(reader.read_part(read, part.region))
            return part.form.compare(values[0], values[1], part.region)
        streams = [RegionStream(reader, read) for reader, read in sides]
        shape = part.reads[0].layout.shape
        itemsize = sum(read.layout.dtype.itemsize for read in part.reads)
        change = ValueChange(0)
        for region in part.form.rows(shape, part.stream_bytes, itemsize):
            values.clear()
            values.extend(stream.next(region) for stream in streams)
            change = change.merge(part.form.compare(values[0], values[1], region))
    except CorruptionError as error:
        return DamagedPart(len(values), error)  # of the side that was not read
    return change

"""Compare whole arrays with the SHA-256 checksums that other programs record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.memory import byte_view
from orbit_ckpt._src.arrays.slices import Region, Shape, whole
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.storage.chunk_read import ArrayRead


class ArrayChecksum(Struct, frozen=True):
    """The recorded checksum of one array.

    Attributes:
        sha256: Lower-case hex digest of the array's elements in C order, little-endian.
        array: The file or directory of the array.
        file: The file that records the checksum.
    """

    sha256: str
    array: str
    file: str


class ChecksumComparison:
    """Computes the checksum of one array that is read from start to end.

    Args:
        read: The array.
        expected: The recorded checksum.
    """

    def __init__(self, read: ArrayRead, expected: ArrayChecksum) -> None:
        self._read = read
        self._expected = expected
        self._sum = hashlib.sha256()

    def add(self, values: HostArray) -> None:
        """Add the next elements."""
        self._sum.update(byte_view(np.ascontiguousarray(values)))

    def finish(self) -> None:
        """Compare the checksum after the last element.

        Raises:
            CorruptionError: The array is not the one that was saved.
        """
        found, expected = self._sum.hexdigest(), self._expected
        if found == expected.sha256:
            return
        what = f"its SHA-256 is {found}, {expected.file} says {expected.sha256}"
        raise CorruptionError(
            f"{self._read.where}: the array in {expected.array} is damaged: {what}. Restore an "
            "earlier checkpoint or another copy of this one.",
            path=self._read.where,
            file=expected.array,
            what=what,
        )


class ArrayChecksums:
    """The checksums of some arrays of a store.

    Args:
        sums: The checksums, by storage name.
    """

    def __init__(self, sums: Mapping[str, ArrayChecksum]) -> None:
        self._sums = sums

    def __bool__(self) -> bool:
        return bool(self._sums)

    def knows(self, read: ArrayRead) -> bool:
        """Return whether a checksum of an array is recorded."""
        return read.name in self._sums

    def begin(self, read: ArrayRead, region: Region) -> ChecksumComparison | None:
        """Return a comparison for a part read in order; None if it is not the whole array."""
        expected = self._sums.get(read.name)
        if expected is None or region != whole(read.layout.shape):
            return None
        return ChecksumComparison(read, expected)

    def compare(self, read: ArrayRead, values: Sequence[HostArray]) -> None:
        """Compare an array after its regions were read; skip it if they are not all its rows.

        Raises:
            CorruptionError: It is not the one that was saved.
        """
        expected = self._sums.get(read.name)
        order = None if expected is None else _row_order(read.regions, read.layout.shape)
        if expected is None or order is None:
            return
        check = ChecksumComparison(read, expected)
        for i in order:
            check.add(values[i])
        check.finish()


def _row_order(regions: Sequence[Region], shape: Shape) -> Sequence[int] | None:
    """Return the order in which the regions make up all rows of an array, None if they do not."""
    for i, region in enumerate(regions):
        if region == whole(shape):
            return [i]
    order = sorted(range(len(regions)), key=lambda i: regions[i].start)
    end = 0
    for region in (regions[i] for i in order):
        if not shape or region.start != (end, *(0 for _ in shape[1:])):
            return None
        if region.shape[1:] != shape[1:]:
            return None
        end = region.stop[0]
    return order if shape and end == shape[0] else None

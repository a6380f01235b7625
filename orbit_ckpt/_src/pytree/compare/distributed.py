"""Compare parts of arrays in the workers of an executor."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from orbit_ckpt._src.arrays.chunk_parts import parts_by_chunk
from orbit_ckpt._src.arrays.compare import ValueChange
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.pytree.compare.report import naming_checkpoint
from orbit_ckpt._src.pytree.compare.units import (
    Compared,
    CompareUnit,
    DamagedPart,
    PartToCompare,
    compare_unit,
)
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES, Kept, run_units
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.storage.located import ChunkLocator

_Chunks = list[tuple[ArrayRead, Shape, Value]]


class DistributedComparison:
    """Compares parts of the arrays of two checkpoints.

    Args:
        executor: Where to read and compare them.
        readers: Readers of both checkpoints.
        paths: Their paths, for errors.

    Attributes:
        bytes_read: Bytes that the workers have read, as stored.
    """

    def __init__(
        self,
        executor: Executor,
        readers: tuple[BatchReader, BatchReader],
        paths: tuple[Path, Path],
    ) -> None:
        self.bytes_read = 0
        self._executor = executor
        self._locators = (ChunkLocator(readers[0]), ChunkLocator(readers[1]))
        self._paths = paths

    async def run(
        self,
        parts: Iterable[PartToCompare],
        here: Callable[[PartToCompare], Awaitable[ValueChange | CorruptionError]],
        advance: Callable[[int], object],
    ) -> list[ValueChange | CorruptionError]:
        """Return the result of each part.

        Args:
            parts: The parts.
            here: Compares a part in this process.
            advance: Called with the bytes of values compared since its last call.
        """

        async def compare_here(part: PartToCompare) -> Compared:
            found = await here(part)
            advance(_nbytes(part))
            return Compared([found], 0)

        def finished(unit: CompareUnit, found: Compared) -> None:
            self.bytes_read += found.bytes_read
            advance(sum(map(_nbytes, unit.parts)))

        results = await run_units(
            self._executor, compare_unit, self._units(parts), here=compare_here, finished=finished
        )
        found = (change for result in results for change in result.changes)
        return [self._named(one) if isinstance(one, DamagedPart) else one for one in found]

    def _named(self, found: DamagedPart) -> CorruptionError:
        try:
            with naming_checkpoint(self._paths[found.side]):
                raise found.error
        except CorruptionError as error:
            return error

    def _units(self, parts: Iterable[PartToCompare]) -> Iterator[CompareUnit | Kept[PartToCompare]]:
        """Yield units of consecutive parts, and between them parts to compare here."""
        for group, _ in batched(parts, _nbytes, UNIT_BYTES):
            chunks: tuple[_Chunks, _Chunks] = ([], [])
            ready: list[PartToCompare] = []
            for part in group:
                found = self._find(part)
                if found is None:
                    yield from self._unit(chunks, ready)
                    chunks, ready = ([], []), []
                    yield Kept(part)
                    continue
                for all_of_side, some in zip(chunks, found, strict=True):
                    all_of_side.extend(some)
                ready.append(part)
            yield from self._unit(chunks, ready)

    def _unit(
        self, chunks: tuple[_Chunks, _Chunks], parts: Sequence[PartToCompare]
    ) -> Iterator[CompareUnit]:
        if parts:
            first, second = self._locators
            yield CompareUnit((first.pack(chunks[0]), second.pack(chunks[1])), parts)

    def _find(self, part: PartToCompare) -> tuple[_Chunks, _Chunks] | None:
        """Return the chunks of a part in both checkpoints, None if some are to be read here."""
        found: tuple[_Chunks, _Chunks] = ([], [])
        for side, locator in enumerate(self._locators):
            read = part.reads[side]
            for index in parts_by_chunk([part.region], read.layout.chunk_shape):
                value = locator.find(read, index)
                if value is None:
                    return None
                found[side].append((read, index, value))
        return found


def _nbytes(part: PartToCompare) -> int:
    return part.region.size * sum(read.layout.dtype.itemsize for read in part.reads)

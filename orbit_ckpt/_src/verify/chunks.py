"""Read the chunks of arrays to their ends, here or in the workers of an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial

from orbit_ckpt._src.arrays.slices import Shape, chunk_indices, whole
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES, Kept, run_units
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_check import ChunkCheck, check_chunks
from orbit_ckpt._src.storage.chunk_read import ArrayRead, stored_size
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.storage.located import ChunkLocator, for_other_process
from orbit_ckpt._src.storage.read_threads import RunInThread
from orbit_ckpt._src.verify.report import Findings
from orbit_ckpt._src.verify.shared import ChunkKey
from orbit_ckpt._src.verify.units import ChunkUnit, check_unit

_BLOCK_BYTES = 1 << 20
_OBJECT_BLOCK_BYTES = 1 << 23
"""Bytes of a chunk that are held at once, and the same in a store: the size of a request."""

_GROUP_BYTES = 1 << 22
_GROUP_CHUNKS = 64
"""Smaller chunks are checked in groups, to save overhead per thread call."""

_UNIT_CHUNKS = 2048

_Chunk = tuple[ArrayRead, Shape]


class ChunkChecks:
    """Checks chunks of one store, and records the damage in their order.

    Args:
        reader: Reads the store.
        findings: Where findings are recorded.
        is_known: Returns whether a chunk can be skipped, because its bytes have been compared.
    """

    def __init__(
        self, reader: BatchReader, findings: Findings, is_known: Callable[[Value], bool]
    ) -> None:
        self._reader = reader
        self._findings = findings
        self._is_known = is_known
        self._asked: dict[str, ChunkKey] = {}
        """Chunks that other checkpoints may share, by storage key."""
        most = _OBJECT_BLOCK_BYTES if reader.store.is_remote else _BLOCK_BYTES
        limit = findings.limiter.max_bytes or 4 * most
        self._block = max(1, min(most, limit // 4))

    async def run(self, reads: Sequence[ArrayRead]) -> list[ChunkCheck]:
        """Check all chunks of some arrays; return the results in their order."""
        executor, findings = self._findings.executor, self._findings
        chunks = _chunks_of(reads)
        if executor is None:
            store = self._reader.store
            if store.has_object_per_value:  # every chunk is a request
                groups = _groups(chunks, self._block, 1)
            elif store.is_remote:
                groups = _groups(chunks, self._block, _UNIT_CHUNKS)
            else:
                groups = _groups(chunks, _GROUP_BYTES, _GROUP_CHUNKS)
            with self._reader.threads.running() as run:
                found = await run_all(self._check_here(group, run) for group in groups)
        else:
            found = await self._check_there(chunks, executor)
        errors = [error for check in found for error in check.errors]
        for error in errors:
            findings.record(error)
        damaged = {error.chunk for error in errors}
        if None not in damaged:
            intact = (key for name, key in self._asked.items() if name not in damaged)
            findings.checked.add(intact)
        return found

    async def _check_here(
        self, group: Sequence[_Chunk], run: RunInThread = asyncio.to_thread
    ) -> ChunkCheck:
        reader = self._reader
        async with self._findings.limiter.reserve(_held(reader, group, self._block)):
            found = await run(
                partial(check_chunks, reader, group, max_bytes=self._block, is_known=self._can_skip)
            )
        self._count(found, len(group))
        return found

    async def _check_there(self, chunks: Iterator[_Chunk], executor: Executor) -> list[ChunkCheck]:
        """Check chunks in workers, and those that only this process can read here."""
        locator = ChunkLocator(self._reader)

        def units() -> Iterator[ChunkUnit | Kept[_Chunk]]:
            for group in _groups(chunks, UNIT_BYTES, _UNIT_CHUNKS):
                yield from self._split(group, locator)

        async def check_one(chunk: _Chunk) -> ChunkCheck:
            return await self._check_here([chunk])

        def finished(unit: ChunkUnit, found: ChunkCheck) -> None:
            self._count(found, len(unit.chunks))

        return await run_units(executor, check_unit, units(), here=check_one, finished=finished)

    def _split(
        self, group: Sequence[_Chunk], locator: ChunkLocator
    ) -> Iterator[ChunkUnit | Kept[_Chunk]]:
        """Yield units of consecutive chunks, and between them chunks to check here."""
        new = [chunk for chunk in group if not self._is_done(chunk, locator)]
        self._findings.chunks += len(group) - len(new)
        portable = {read.name: for_other_process(read) for read, _ in new}
        at = [(portable[read.name], index) for read, index in new]
        for located, part in locator.split(at):
            if located is None:
                yield from map(Kept, new[part.start : part.stop])
            else:
                yield ChunkUnit(located, at[part.start : part.stop], self._block)

    def _is_done(self, chunk: _Chunk, locator: ChunkLocator) -> bool:
        """Return whether a chunk can be skipped; one that is checked here is asked again."""
        read, index = chunk
        value = locator.find(read, index)
        key = read.layout.chunk_key(read.name, index)
        return value is not None and self._can_skip(read, key, value)

    def _can_skip(self, read: ArrayRead, name: str, value: Value) -> bool:
        if self._is_known(value):
            return True
        checked = self._findings.checked
        key = checked.key(read, value)
        if key is None:
            return False
        if checked.is_intact(key):
            self._findings.progress(stored_size(value))
            return True
        self._asked[name] = key
        return False

    def _count(self, found: ChunkCheck, chunks: int) -> None:
        self._findings.count(found.nbytes)
        self._findings.chunks += chunks


def _chunks_of(reads: Sequence[ArrayRead]) -> Iterator[_Chunk]:
    for read in reads:
        layout = read.layout
        for index in chunk_indices(whole(layout.shape), layout.chunk_shape):
            yield read, index


def _groups(chunks: Iterable[_Chunk], max_bytes: int, most: int) -> Iterator[Sequence[_Chunk]]:
    for group, _ in batched(chunks, lambda chunk: chunk[0].layout.chunk_nbytes, max_bytes):
        yield from (group[i : i + most] for i in range(0, len(group), most))


def _held(reader: BatchReader, group: Sequence[_Chunk], block: int) -> int:
    """Return the maximum bytes held while chunks are checked one after the other."""
    layouts = [read.layout for read, _ in group]
    largest = max(
        min(layout.chunk_nbytes, block) if reader.can_stream(layout) else layout.chunk_nbytes
        for layout in layouts
    )
    fetched = sum(layout.chunk_nbytes for layout in layouts) if reader.store.is_remote else 0
    return largest + max(largest, min(fetched, block))

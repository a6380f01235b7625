"""Write many arrays at once.

A batch collects the arrays of a save. Threads take arrays, or parts of large ones, from it, bring
them to host memory, encode their chunks and pass those to the store; a byte budget bounds what they
hold.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import chain
from pathlib import Path

from msgspec import Struct, structs

from orbit_ckpt._src.arrays.slices import whole
from orbit_ckpt._src.arrays.transfer import (
    Shard,
    is_on_host,
)
from orbit_ckpt._src.errors import CheckpointError, StorageError
from orbit_ckpt._src.runtime.commit import ProgressCounter
from orbit_ckpt._src.runtime.jobs import UNIT_BYTES
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.runtime.loop import clean_up, run_all
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.distributed_write import WriteUnit, write_there
from orbit_ckpt._src.storage.incremental import Base, IncrementalWrite, ReusedBytes
from orbit_ckpt._src.storage.layout import Value, join_key
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt._src.storage.part_write import (
    ArrayPart,
    ArrayWrite,
    check_unchanged,
    parts_in_groups,
    write_parts,
)
from orbit_ckpt._src.storage.reuse import (
    TiedArray,
    report_unwritten,
    without_known,
    without_tied,
    write_tied,
)
from orbit_ckpt._src.storage.small_write import (
    SmallArray,
    WholeArrays,
    small_batches,
    write_batch,
)
from orbit_ckpt._src.storage.staging import TASK_BYTES, THREADS, copy_to_host_within
from orbit_ckpt._src.storage.value_write import DatabaseWriter, FilesWriter, ValueWriter
from orbit_ckpt._src.storage.zarr import ZarrArray

_MAX_BYTES = 1 << 31
"""Default limit of bytes held at once."""


class WriteOptions(Struct, frozen=True):
    """Where and how a batch is written.

    Attributes:
        directory: Root of the database, or directory of the files.
        use_ocdbt: Whether to write one database or a directory per array.
        data_file_bytes: Size at which a new data file begins; None is 2 GiB, 0 no limit.
        max_bytes: Maximum bytes held in memory for writing at once, None for the default.
        max_transfer_bytes: Maximum bytes being copied from devices at once, None for no limit.
        chunks_have_checksums: Whether stored chunks end in their own checksum, as in zarr3.
        base: What an incremental save refers to; None for a save that is not incremental.
        executor: Where to write stored arrays into a database; None for threads of this process.
    """

    directory: Path
    use_ocdbt: bool = True
    data_file_bytes: int | None = None
    max_bytes: int | None = None
    max_transfer_bytes: int | None = None
    chunks_have_checksums: bool = True
    base: Base | None = None
    executor: Executor | None = None


class BatchWriter:
    """Collects arrays and writes them.

    Attributes:
        progress: Progress of the writing.
        record: The manifest's record of the database, after `commit`; None without a database.
        values: What the database holds, after `commit`.
        reused: How much of an incremental save the base step holds, after `commit`.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.progress = ProgressCounter()
        self.record: Manifest | None = None
        self.values: Mapping[bytes, Value] = {}
        self.reused = ReusedBytes()
        self._options = options
        self._writes: list[ArrayWrite] = []
        self._small: list[WholeArrays] = []
        self._tied: Mapping[str, str] = {}
        self._is_ordered = False
        self._incremental: IncrementalWrite | None = None

    def open_base(self) -> IncrementalWrite | None:
        """Open what an incremental save refers to; None for one that is not incremental."""
        base = self._options.base
        if self._incremental is None and base is not None and self._options.use_ocdbt:
            self._incremental = IncrementalWrite(base)
        return self._incremental

    def add(self, write: ArrayWrite) -> None:
        """Add an array; nothing is written before `commit`."""
        self._writes.append(write)
        if write.shards and write.shards[0].watch is not None:
            self._is_ordered = True

    def tie(self, arrays: Mapping[str, str]) -> None:
        """Store arrays once that are the same.

        Args:
            arrays: The names of arrays, and that of the first one that each is the same as.
        """
        self._tied = arrays

    def add_whole(self, arrays: WholeArrays) -> None:
        """Add arrays that are stored alike."""
        if arrays.are_small:
            self._small.append(arrays)
        else:
            for write in _one_by_one(arrays):
                self.add(write)

    @property
    def arrays(self) -> list[tuple[str, ZarrArray]]:
        """Names and layouts of the arrays that are added and not yet written."""
        small = [(name, arrays.layout) for arrays in self._small for name in arrays.names]
        return [(write.name, write.layout) for write in self._writes] + small

    async def snapshot(self) -> None:
        """Copy all added data to memory that only this batch can change."""
        small, self._small = self._small, []
        writes = self._writes = [*self._writes, *chain.from_iterable(map(_one_by_one, small))]
        shards = [shard for write in writes for shard in write.shards]
        copies = iter(await copy_to_host_within(self._options.max_transfer_bytes, shards))
        self._writes = [
            structs.replace(write, shards=[next(copies) for _ in write.shards]) for write in writes
        ]

    async def commit(self) -> None:
        """Write everything and wait until it is durable.

        Raises:
            StorageError: The storage refused a write.
        """
        options, writes, small = self._options, self._writes, self._small
        self._writes, self._small = [], []
        if self._is_ordered:
            writes.sort(key=_priority)
        try:
            writer = (
                DatabaseWriter(
                    options.directory,
                    data_file_bytes=options.data_file_bytes,
                    values_have_checksums=options.chunks_have_checksums,
                )
                if options.use_ocdbt
                else FilesWriter(options.directory)
            )
            here = sum(bool(write.shards) for write in writes)
            here += sum(len(arrays.names) for arrays in small)
            nbytes = sum(map(_nbytes, writes)) + sum(arrays.nbytes for arrays in small)
            self.progress.plan(here, nbytes)
            incremental = await asyncio.to_thread(self.open_base)
            tied: list[TiedArray] = []
            if isinstance(writer, DatabaseWriter) and self._tied:
                pending, tied = without_tied(writes, self._tied)
            else:
                pending = writes
            await _write(pending, small, writer, options, self.progress, incremental, tied)
            report_unwritten(writes, pending, self.progress)
            if isinstance(writer, DatabaseWriter):
                self.record, self.values = writer.record, writer.values
            self.reused = incremental.reused if incremental is not None else ReusedBytes()
        except (ValueError, OSError) as error:
            if isinstance(error, CheckpointError):
                raise
            if isinstance(error, FileExistsError):
                raise StorageError(
                    f"{error.filename}: written twice. The processes do not save the same tree, "
                    "or not in the same shardings; give all of them the same arrays."
                ) from error
            raise StorageError(
                f"{options.directory}: writing failed: {error}. Nothing was committed; check the "
                "free space and permissions there and save again."
            ) from error


def _priority(write: ArrayWrite) -> int:
    watch = write.shards[0].watch if write.shards else None
    return 0 if watch is None else watch.priority


def _nbytes(write: ArrayWrite) -> int:
    return sum(shard.nbytes for shard in write.shards)


def _one_by_one(arrays: WholeArrays) -> Iterator[ArrayWrite]:
    """Yield arrays that are stored alike as single ones."""
    layout, document, dtype = arrays.layout, arrays.document, arrays.dtype
    region = whole(layout.shape)
    for name, value, path in zip(arrays.names, arrays.values, arrays.paths, strict=True):
        yield ArrayWrite(name, layout, document, [Shard(region, value)], dtype, path)


async def _write(
    writes: Sequence[ArrayWrite],
    small: Sequence[WholeArrays],
    writer: ValueWriter,
    options: WriteOptions,
    progress: ProgressCounter,
    incremental: IncrementalWrite | None,
    tied: Sequence[TiedArray],
) -> None:
    limiter = ByteLimiter(options.max_bytes or _MAX_BYTES)
    transfers = ByteLimiter(options.max_transfer_bytes)
    limits = (limiter.max_bytes, transfers.max_bytes, TASK_BYTES)
    task_bytes = min(limit for limit in limits if limit is not None)
    loop = asyncio.get_running_loop()
    stopped = threading.Event()
    pool = Workers(THREADS, "orbit_ckpt-write")

    async def run(parts: Sequence[ArrayPart], nbytes: int) -> None:
        remote = sum(part.nbytes for part in parts if not is_on_host(part.shard.data))
        async with transfers.reserve(min(remote, task_bytes)), limiter.reserve(nbytes):
            try:
                await loop.run_in_executor(
                    pool, write_parts, parts, writer, task_bytes, stopped, incremental
                )
            except BaseException:  # re-raised; the others have to stop
                stopped.set()
                raise
            progress.add(sum(part.is_last for part in parts), sum(part.nbytes for part in parts))

    async def run_small(batch: Sequence[SmallArray], nbytes: int) -> None:
        async with limiter.reserve(nbytes):
            if not stopped.is_set():
                await loop.run_in_executor(pool, write_batch, batch, writer, incremental)
            progress.add(len(batch), nbytes)

    def give_up() -> None:
        pool.shutdown(cancel_futures=True)  # nothing may be written once this has returned
        writer.abort()

    async def write_all(writes: Sequence[ArrayWrite]) -> None:
        await run_all(
            chain(
                _large(writes, writer, options, task_bytes, run, progress),
                (run_small(*batch) for batch in small_batches(small, task_bytes)),
            )
        )

    try:
        new = writes
        if incremental is not None:
            new = [without_known(write, incremental) for write in writes]
        await write_all(new)
        report_unwritten(writes, new, progress)
        if incremental is not None and isinstance(writer, DatabaseWriter):
            is_intact = await loop.run_in_executor(pool, incremental.refer, writer)
            if not is_intact:
                await write_all(writes)  # also what the base step was known to hold
        await loop.run_in_executor(pool, _finish, new, tied, writer, incremental, options)
    except GeneratorExit:  # the loop is gone
        stopped.set()
        give_up()
        raise
    except BaseException:  # re-raised, an interrupt too
        stopped.set()
        await clean_up(give_up)  # takes minutes if a store does not answer
        raise
    finally:
        pool.shutdown()


def _large(
    writes: Sequence[ArrayWrite],
    writer: ValueWriter,
    options: WriteOptions,
    task_bytes: int,
    run: Callable[[Sequence[ArrayPart], int], Coroutine[object, object, None]],
    progress: ProgressCounter,
) -> Iterator[Coroutine[object, object, None]]:
    """Yield what writes arrays part by part, in this process or in workers.

    Args:
        writes: The arrays.
        writer: Where they are written.
        options: Those of the batch.
        task_bytes: Bytes of the parts that are written together.
        run: Writes parts in this process.
        progress: Counts what workers write.
    """
    executor = options.executor
    if executor is None or options.base is not None or not isinstance(writer, DatabaseWriter):
        yield from (run(*task) for task in parts_in_groups(writes, task_bytes))
        return

    def finished(parts: Sequence[ArrayPart]) -> None:
        progress.add(sum(part.is_last for part in parts), sum(part.nbytes for part in parts))

    sums = options.chunks_have_checksums
    unit = WriteUnit(options.directory, options.data_file_bytes, sums, (), task_bytes)
    groups = parts_in_groups(writes, min(task_bytes, UNIT_BYTES))
    yield write_there(groups, writer, unit, executor, here=run, finished=finished)


def _finish(
    writes: Sequence[ArrayWrite],
    tied: Sequence[TiedArray],
    writer: ValueWriter,
    incremental: IncrementalWrite | None,
    options: WriteOptions,
) -> None:
    """Write what remains once all parts are written, and make all of it durable."""
    check_unchanged(writes)
    _write_documents(writes, writer)
    if not isinstance(writer, DatabaseWriter):
        writer.close()
        return
    if incremental is not None:
        incremental.refer_to_equal(writer)
    write_tied(tied, writer, incremental)
    if options.executor is not None:
        writer.remove_other_files()
    writer.close()
    if incremental is not None:
        incremental.write_digests(writer)


def _write_documents(writes: Sequence[ArrayWrite], writer: ValueWriter) -> None:
    """Write the documents of arrays whose parts other processes write."""
    for write in writes:
        if not write.shards and write.has_document:
            writer.put(join_key(write.name, write.layout.document_name), write.document)

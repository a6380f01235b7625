"""Write many arrays at once.

A batch collects the arrays of a save. Threads take arrays, or parts of large ones, from it, bring
them to host memory, encode their chunks and pass those to the store; a byte budget bounds what they
hold.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import jax
import numpy as np
from msgspec import Struct, structs

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, cast_array
from orbit_ckpt._src.arrays.memory import byte_view
from orbit_ckpt._src.arrays.references import sample_checksum
from orbit_ckpt._src.arrays.slices import Region, chunk_indices, chunk_region, split_by_rows, whole
from orbit_ckpt._src.arrays.transfer import (
    DeferredData,
    Shard,
    begin_transfer,
    host_blocks,
    is_on_host,
)
from orbit_ckpt._src.errors import CheckpointError, StorageError, UnsupportedLeafError
from orbit_ckpt._src.runtime.commit import ProgressCounter
from orbit_ckpt._src.runtime.limiter import ByteLimiter, batched
from orbit_ckpt._src.runtime.loop import Workers, clean_up, run_all
from orbit_ckpt._src.storage.codec import PIECE_BYTES, encode_chunk
from orbit_ckpt._src.storage.incremental import Base, IncrementalWrite, ReusedBytes
from orbit_ckpt._src.storage.layout import join_key
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt._src.storage.ocdbt_encode import MAX_INLINE_BYTES
from orbit_ckpt._src.storage.small_write import (
    SmallArray,
    WholeArrays,
    small_batches,
    write_batch,
)
from orbit_ckpt._src.storage.staging import TASK_BYTES, THREADS, copy_to_host_within
from orbit_ckpt._src.storage.value_write import DatabaseWriter, FilesWriter, ValueWriter
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.keypath import KeyPath, format_path

_MAX_BYTES = 1 << 31
"""Default limit of bytes held at once."""


class ArrayWrite(Struct, frozen=True, gc=False):
    """One array to write.

    Attributes:
        name: Storage name.
        layout: How it is stored.
        document: Its metadata document, None if another process writes it.
        shards: The parts this process writes; each consists of whole chunks.
        dtype: Logical dtype that the shards are cast to before they are stored.
        path: The leaf, for messages.
    """

    name: str
    layout: ZarrArray
    document: bytes | None
    shards: Sequence[Shard]
    dtype: DType
    path: KeyPath


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
    """

    directory: Path
    use_ocdbt: bool = True
    data_file_bytes: int | None = None
    max_bytes: int | None = None
    max_transfer_bytes: int | None = None
    chunks_have_checksums: bool = True
    base: Base | None = None


class BatchWriter:
    """Collects arrays and writes them.

    Attributes:
        progress: Progress of the writing.
        record: The manifest's record of the database, after `commit`; None without a database.
        reused: How much of an incremental save the base step holds, after `commit`.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.progress = ProgressCounter()
        self.record: Manifest | None = None
        self.reused = ReusedBytes()
        self._options = options
        self._writes: list[ArrayWrite] = []
        self._small: list[WholeArrays] = []
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
            if incremental is not None:
                writes = [_without_known(write, incremental) for write in writes]
            await _write(writes, small, writer, options, self.progress, incremental)
            self.record = writer.record if isinstance(writer, DatabaseWriter) else None
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


class _Part(Struct, frozen=True, gc=False):
    """Chunks of one array that one thread writes.

    Attributes:
        write: The array.
        shard: The shard that holds their data.
        region: The chunks, in coordinates of the array.
        nbytes: Their size in memory.
        is_first: Whether the metadata document is written with them.
        is_last: Whether they are the last chunks of the array.
    """

    write: ArrayWrite
    shard: Shard
    region: Region
    nbytes: int
    is_first: bool
    is_last: bool


def _nbytes(write: ArrayWrite) -> int:
    return sum(shard.nbytes for shard in write.shards)


def _without_known(write: ArrayWrite, incremental: IncrementalWrite) -> ArrayWrite:
    """Return an array without its data if the base step is known to hold all of them."""
    is_known = bool(write.shards) and all(shard.unchanged for shard in write.shards)
    if is_known and incremental.has_array(write.name, write.layout, write.document):
        return structs.replace(write, shards=())
    return write


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
) -> None:
    limiter = ByteLimiter(options.max_bytes or _MAX_BYTES)
    transfers = ByteLimiter(options.max_transfer_bytes)
    limits = (limiter.max_bytes, transfers.max_bytes, TASK_BYTES)
    task_bytes = min(limit for limit in limits if limit is not None)
    loop = asyncio.get_running_loop()
    stopped = threading.Event()
    pool = Workers(THREADS, "orbit_ckpt-write")

    async def run(parts: Sequence[_Part], nbytes: int) -> None:
        remote = sum(part.nbytes for part in parts if not is_on_host(part.shard.data))
        async with transfers.reserve(min(remote, task_bytes)), limiter.reserve(nbytes):
            try:
                await loop.run_in_executor(
                    pool, _write_parts, parts, writer, task_bytes, stopped, incremental
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

    async def write_all() -> None:
        await run_all(
            chain(
                (run(*task) for task in _tasks(writes, task_bytes)),
                (run_small(*batch) for batch in small_batches(small, task_bytes)),
            )
        )

    try:
        await write_all()
        if incremental is not None and isinstance(writer, DatabaseWriter):
            is_intact = await loop.run_in_executor(pool, incremental.refer, writer)
            if not is_intact:
                await write_all()
        await loop.run_in_executor(pool, _check_unchanged, writes)
        await loop.run_in_executor(pool, _write_documents, writes, writer)
        await loop.run_in_executor(pool, writer.close)
        if incremental is not None and isinstance(writer, DatabaseWriter):
            await loop.run_in_executor(pool, incremental.write_digests, writer)
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


def _tasks(writes: Sequence[ArrayWrite], max_bytes: int) -> Iterator[tuple[list[_Part], int]]:
    """Yield groups of parts and the bytes that each holds, at most `max_bytes`."""
    # of a larger chunk no more is held
    yield from batched(_parts(writes, max_bytes), lambda p: min(p.nbytes, max_bytes), max_bytes)


def _parts(writes: Sequence[ArrayWrite], max_bytes: int) -> Iterator[_Part]:
    """Yield the parts of arrays; large ones are cut between chunks."""
    for write in writes:
        is_first = True
        for number, shard in enumerate(write.shards, 1):
            itemsize = shard.data.dtype.itemsize
            regions = list(
                split_by_rows(shard.region, write.layout.chunk_shape, max_bytes // itemsize)
            )
            for region in regions:
                is_last = number == len(write.shards) and region is regions[-1]
                yield _Part(write, shard, region, region.size * itemsize, is_first, is_last)
                is_first = False


def _write_parts(
    parts: Sequence[_Part],
    writer: ValueWriter,
    max_bytes: int,
    stopped: threading.Event,
    incremental: IncrementalWrite | None,
) -> None:
    if stopped.is_set():
        return
    sources = [_source(part, max_bytes) for part in parts]
    for part, source in zip(parts, sources, strict=True):
        if stopped.is_set():
            return
        write, layout, watch = part.write, part.write.layout, part.shard.watch
        if watch is not None:
            watch.begin_write()
        if part.is_first and write.document is not None:
            writer.put(join_key(write.name, layout.document_name), write.document)
        for index in chunk_indices(part.region, layout.chunk_shape):
            chunk = chunk_region(index, layout.chunk_shape)
            key = layout.chunk_key(write.name, index)
            is_inline = layout.compression is None and layout.chunk_nbytes <= MAX_INLINE_BYTES
            if incremental is not None and not is_inline:
                pieces = _pieces(source, chunk, write, max_bytes)
                if incremental.is_stored(write.name, layout, write.document, key, pieces):
                    continue
            pieces = _pieces(source, chunk, write, max_bytes)
            encoded = encode_chunk(layout, pieces, layout.chunk_nbytes)
            if is_inline:
                writer.put(key, b"".join(encoded))
            else:
                nbytes = layout.chunk_nbytes
                writer.append(key, encoded, nbytes, ends_in_checksum=layout.checksum)
        if watch is not None:
            watch.written(part.region.size)
        if part.shard.on_device is not None:
            part.shard.on_device.release(part.region.size)


def _write_documents(writes: Sequence[ArrayWrite], writer: ValueWriter) -> None:
    """Write the documents of arrays whose parts other processes write."""
    for write in writes:
        if not write.shards and write.document is not None:
            writer.put(join_key(write.name, write.layout.document_name), write.document)


def _check_unchanged(writes: Sequence[ArrayWrite]) -> None:
    """Check that data of which the save has no copy have not changed since it took them.

    Raises:
        UnsupportedLeafError: Some have.
    """
    changed = [
        format_path(write.path)
        for write in writes
        for shard in write.shards
        if shard.sample is not None and sample_checksum(np.asarray(shard.data)) != shard.sample
    ]
    if changed:
        raise UnsupportedLeafError(
            f"{shorten_list(changed)}: changed while being saved, by code that writes into the "
            "memory of a jax.Array. Wait for the save before that, or give "
            "AsyncOptions(snapshot='copy').",
            paths=changed,
        )


def _source(part: _Part, max_bytes: int) -> Shard:
    """Return a part's data, with its transfer to the host begun unless it is too large."""
    shard = part.shard
    if shard.in_place or shard.unchanged:
        _check_exists(shard, part.write.path)
    if isinstance(shard.data, DeferredData) and part.nbytes <= max_bytes:
        (data,) = shard.data.fetch(part.region.within(shard.region), max_bytes)
        return Shard(part.region, data)
    if part.region != shard.region or part.nbytes > max_bytes:
        return shard
    return Shard(shard.region, begin_transfer(shard.data))


def _check_exists(shard: Shard, path: KeyPath) -> None:
    """Check that data that were not copied still exist.

    Raises:
        UnsupportedLeafError: The caller has deleted or donated them.
    """
    if isinstance(shard.data, jax.Array) and shard.data.is_deleted():
        leaf = format_path(path)
        raise UnsupportedLeafError(
            f"{leaf}: the array was deleted or donated before it was written. Its priority is not "
            "SYNCHRONOUS, so that it is not copied first: wait for the save, or raise its "
            "priority.",
            paths=[leaf],
        )


def _pieces(
    source: Shard, chunk: Region, write: ArrayWrite, max_bytes: int
) -> Iterator[memoryview]:
    """Yield the elements of a chunk as bytes in C order, zero beyond the array."""
    inside = chunk if chunk == source.region else chunk.intersect(source.region)
    if inside == chunk:
        for block in host_blocks(source.data, chunk.within(source.region), max_bytes):
            yield from _stored_bytes(block, write)
    elif inside is not None:
        padded = np.zeros(chunk.shape, write.dtype)
        (block,) = host_blocks(source.data, inside.within(source.region), padded.nbytes)
        padded[inside.within(chunk).slices] = _cast(block, write)
        yield from _stored_bytes(padded, write)


def _stored_bytes(block: HostArray, write: ArrayWrite) -> Iterator[memoryview]:
    """Yield elements of the stored dtype as bytes, without a copy where possible."""
    if block.dtype == write.dtype and block.flags.c_contiguous:
        yield byte_view(block)
        return
    for rows in split_by_rows(
        whole(block.shape), (1,) * block.ndim, PIECE_BYTES // write.dtype.itemsize
    ):
        yield byte_view(np.ascontiguousarray(_cast(block[rows.slices], write)))


def _cast(values: HostArray, write: ArrayWrite) -> HostArray:
    try:
        return cast_array(values, write.dtype)
    except ValueError as error:
        leaf = format_path(write.path)
        raise UnsupportedLeafError(
            f"{leaf}: cannot be saved: {error}. Ask for a wider dtype, or for none.",
            paths=[leaf],
        ) from error

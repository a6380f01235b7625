"""Write many arrays at once.

A batch collects what a save will write and commits it in as few transactions as the byte budget
allows. Small uncompressed chunks go to the key-value store as they are, next to their metadata
documents; large or compressed arrays go through TensorStore's zarr drivers in the same
transaction, which encode on many threads.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
from crc32c import crc32c

from orbit_ckpt.arrays.dtypes import DType, HostArray
from orbit_ckpt.arrays.slices import Shape, chunk_indices, chunk_region, split_by_rows
from orbit_ckpt.arrays.transfer import Shard, start_transfers, to_host
from orbit_ckpt.errors import CheckpointError, StorageError
from orbit_ckpt.runtime.loop import run_all
from orbit_ckpt.storage import ocdbt
from orbit_ckpt.storage.kvstore import open_array
from orbit_ckpt.storage.layout import join_key
from orbit_ckpt.storage.ocdbt import Json
from orbit_ckpt.storage.zarr import ZarrArray

_DIRECT_CHUNK_BYTES = 1 << 20
"""Uncompressed chunks up to this size are handed to the key-value store; for larger ones
TensorStore's encoding threads save more than opening the array costs."""

_TRANSACTION_BYTES = 1 << 31
"""A transaction holds what it writes in memory until it commits."""


_WriteFuture = ts.Future[ts.KvStore.TimestampedStorageGeneration]


@dataclass(frozen=True, slots=True)
class ArrayWrite:
    """One array to write.

    Attributes:
        path: The leaf, for messages.
        name: Storage name.
        layout: How it is stored.
        document: Its metadata document.
        shards: The parts this process writes; each consists of whole chunks.
        dtype: Logical dtype that the shards are cast to before they are stored.
    """

    path: str
    name: str
    layout: ZarrArray
    document: bytes
    shards: Sequence[Shard]
    dtype: DType


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where and how a batch is written.

    Attributes:
        directory: Root of the database, or directory of the files.
        use_ocdbt: Whether to write one database or a directory per array.
        data_file_bytes: Size at which a new data file is begun; None is 2 GiB, 0 no limit.
        max_bytes: Most bytes held in memory for writing at once, None for the default.
    """

    directory: Path
    use_ocdbt: bool = True
    data_file_bytes: int | None = None
    max_bytes: int | None = None


class BatchWriter:
    """Collects arrays and writes them."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._writes: list[ArrayWrite] = []

    def add(self, write: ArrayWrite) -> None:
        """Add an array; nothing is written before `commit`."""
        self._writes.append(write)

    async def commit(self) -> None:
        """Write everything that was added and wait until it is durable.

        Raises:
            StorageError: The storage refused a write.
        """
        options = self._options
        context = ts.Context()
        spec = (
            ocdbt.write_spec(options.directory, data_file_bytes=options.data_file_bytes)
            if options.use_ocdbt
            else {"driver": "file", "path": f"{options.directory}/"}
        )
        try:
            store = await ts.KvStore.open(spec, context=context)
            for window in _windows(self._writes, options.max_bytes or _TRANSACTION_BYTES):
                await _Transaction(spec, store, context, atomic=options.use_ocdbt).run(window)
            if not self._writes and options.use_ocdbt:
                await store.write(b"", None)
        except (ValueError, OSError, NotImplementedError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise StorageError(
                f"{options.directory}: writing failed: {error}. Nothing was committed; check the "
                "free space and permissions there and save again."
            ) from error
        finally:
            self._writes = []


class _Transaction:
    """Writes some arrays, or parts of them, together."""

    def __init__(self, spec: Json, store: ts.KvStore, context: ts.Context, *, atomic: bool) -> None:
        self._spec = spec
        self._context = context
        self._handle = ts.Transaction(atomic=True) if atomic else None
        self._store = store.with_transaction(self._handle) if self._handle else store

    async def run(self, writes: Sequence[ArrayWrite]) -> None:
        """Write arrays; when this returns or raises no write is under way any more."""
        start_transfers([shard for write in writes for shard in write.shards])
        small = [write for write in writes if _is_direct(write.layout)]
        large = [write for write in writes if not _is_direct(write.layout)]
        pending = [future for write in small for future in self._put_chunks(write)]
        try:
            await run_all(self._write_array(write) for write in large)
            if self._handle is not None:
                await self._handle.commit_async()
        except BaseException:
            if self._handle is not None:
                self._handle.abort()
            _errors_of(pending)  # not in a thread: what failed may be that there is none left
            raise
        await asyncio.to_thread(_wait_for_all, pending)

    def _put_chunks(self, write: ArrayWrite) -> Iterator[_WriteFuture]:
        layout = write.layout
        yield self._store.write(join_key(write.name, layout.document_name), write.document)
        for shard in write.shards:
            host = _stored_form(shard, write)
            for index in chunk_indices(shard.region, layout.chunk_shape):
                chunk = chunk_region(index, layout.chunk_shape)
                part = host if chunk == shard.region else host[chunk.within(shard.region).slices]
                data = _full_chunk(part, layout.chunk_shape).tobytes()
                if layout.checksum:
                    data += crc32c(data).to_bytes(4, "little")
                yield self._store.write(layout.chunk_key(write.name, index), data)

    async def _write_array(self, write: ArrayWrite) -> None:
        prefix = f"{write.name}/" if write.name else ""
        kvstore = self._spec | {"path": self._spec.get("path", "") + prefix}
        array = await open_array(
            {
                "driver": write.layout.driver,
                "kvstore": kvstore,
                "metadata": json.loads(write.document),
                "store_data_equal_to_fill_value": True,
            },
            create=True,
            open=True,
            context=self._context,
            transaction=self._handle,
        )
        futures: list[Awaitable[None]] = []
        for shard in write.shards:
            host = await asyncio.to_thread(_stored_form, shard, write)
            target: Any = array[shard.region.slices]
            done = target.write(host, can_reference_source_data_indefinitely=True)
            # inside a transaction the write itself completes only when that commits
            futures.append(done if self._handle is None else done.copy)
        await run_all(futures)


def _full_chunk(part: HostArray, chunk_shape: Shape) -> HostArray:
    """Return a chunk's elements; where it reaches beyond the array they are zero."""
    if part.shape == chunk_shape:
        return part
    chunk = np.zeros(chunk_shape, part.dtype)
    chunk[tuple(map(slice, part.shape))] = part
    return chunk


def _errors_of(futures: Sequence[_WriteFuture]) -> list[BaseException]:
    """Wait for all writes; return the errors of those that failed."""
    return [error for future in futures if (error := future.exception()) is not None]


def _wait_for_all(futures: Sequence[_WriteFuture]) -> None:
    for error in _errors_of(futures):
        raise error


def _is_direct(layout: ZarrArray) -> bool:
    return layout.is_plain and layout.chunk_nbytes <= _DIRECT_CHUNK_BYTES


def _stored_form(shard: Shard, write: ArrayWrite) -> HostArray:
    """Return a shard's elements on the host, of the stored dtype."""
    host = to_host(shard.data, copy=False)
    if host.dtype != write.dtype:
        host = host.astype(write.dtype)
    return host if host.dtype == write.layout.dtype else host.view(write.layout.dtype)


def _windows(writes: Sequence[ArrayWrite], max_bytes: int) -> Iterator[list[ArrayWrite]]:
    """Yield groups of writes that hold at most `max_bytes`, cutting arrays between chunks."""
    window: list[ArrayWrite] = []
    held = 0
    for write in _split(writes, max_bytes):
        nbytes = sum(shard.nbytes for shard in write.shards)
        if window and held + nbytes > max_bytes:
            yield window
            window, held = [], 0
        window.append(write)
        held += nbytes
    if window:
        yield window


def _split(writes: Sequence[ArrayWrite], max_bytes: int) -> Iterator[ArrayWrite]:
    for write in writes:
        if sum(shard.nbytes for shard in write.shards) <= max_bytes:
            yield write
            continue
        for shard in write.shards:
            for part in _split_shard(shard, write.layout, max_bytes):
                yield replace(write, shards=[part])


def _split_shard(shard: Shard, layout: ZarrArray, max_bytes: int) -> Iterator[Shard]:
    if shard.nbytes <= max_bytes:
        yield shard
        return
    host = to_host(shard.data, copy=False)
    elements = max_bytes // host.dtype.itemsize
    for region in split_by_rows(shard.region, layout.chunk_shape, elements):
        yield Shard(region, host[region.within(shard.region).slices])

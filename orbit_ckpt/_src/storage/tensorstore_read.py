"""Read parts of arrays with TensorStore's drivers, for codecs that only it has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import tensorstore as ts

from orbit_ckpt._src.arrays.chunk_parts import ChunkPart, bounding_box, copy_parts, parts_by_chunk
from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.memory import aligned_empty, check_available
from orbit_ckpt._src.arrays.slices import Region, Shape, chunk_indices, chunk_region
from orbit_ckpt._src.errors import CorruptionError, FormatError, StorageError
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.blosc import HEADER_BYTES, FrameError, check_header, parse_header
from orbit_ckpt._src.storage.buckets import shared_context
from orbit_ckpt._src.storage.chunk_read import (
    ArrayRead,
    ByteCount,
    ChunkReader,
    damaged_chunk,
    stored_size,
)
from orbit_ckpt._src.storage.codec import CHECKSUM_BYTES
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import Value, join_key
from orbit_ckpt._src.storage.ocdbt import Json
from orbit_ckpt._src.storage.store_errors import NotInTensorStoreError, store_failure
from orbit_ckpt._src.storage.store_path import map_requests
from orbit_ckpt._src.storage.value_read import part_of, read_value
from orbit_ckpt._src.storage.zarr import most_decoded

open_array = cast(Callable[..., Awaitable[ts.TensorStore]], ts.open)
"""`tensorstore.open`."""

_LARGE_BYTES = 1 << 26

_Copy = tuple[Json, ts.Context]
"""TensorStore's spec of values in memory, and the context that holds them."""


class TensorStoreReader:
    """Reads arrays of one store.

    Args:
        store: The store of the values.
        chunks: Finds chunks in it.
        fetched: Called with the number of bytes read.
        fill_missing: Whether a missing chunk stands for zeros; else it is an error.
    """

    def __init__(
        self, store: ValueStore, chunks: ChunkReader, fetched: ByteCount, *, fill_missing: bool
    ) -> None:
        self._store = store
        self._chunks = chunks
        self._fetched = fetched
        self._fill_missing = fill_missing
        self._context = ts.Context()

    async def read(self, read: ArrayRead) -> list[HostArray]:
        """Read the regions of an array, each chunk once.

        Raises:
            CorruptionError: A chunk is missing or damaged.
            FormatError: TensorStore does not have the array's codecs.
            StorageError: The store does not answer, or permission to read a file is missing.
        """
        layout = read.layout
        chunks = parts_by_chunk(read.regions, layout.chunk_shape)
        copied = await self._check_chunks(read, list(chunks))
        if all(len(parts) == 1 for parts in chunks.values()):
            regions = read.regions
            return await run_all(self._read_region(read, region, copied) for region in regions)
        results = [aligned_empty(region.shape, layout.dtype) for region in read.regions]
        limiter = ByteLimiter(_LARGE_BYTES)

        async def fill(index: Shape, parts: Sequence[ChunkPart]) -> None:
            box = bounding_box(parts)
            start = chunk_region(index, layout.chunk_shape).start
            place = Region(tuple(map(sum, zip(start, box.start, strict=True))), box.shape)
            targets = [results[part.number][(*part.target.slices, ...)] for part in parts]
            async with limiter.reserve(box.size * layout.dtype.itemsize):
                copy_parts(box, await self._read_region(read, place, copied), parts, targets)

        await run_all(fill(index, parts) for index, parts in chunks.items())
        return results

    async def _check_chunks(self, read: ArrayRead, indices: Sequence[Shape]) -> _Copy | None:
        """Check chunks; return the spec of a copy if checking has read them from a store."""
        if not self._store.has_object_per_value:
            for index in indices:
                self._check_chunk(read, index)
            return None
        check = partial(self._check_chunk, read)
        values = await asyncio.to_thread(map_requests, check, indices)
        keys = (read.layout.chunk_key(read.name, index) for index in indices)
        found = {key: value for key, value in zip(keys, values, strict=True) if value is not None}
        return await self._copy_to_memory(read.name, found)

    async def _read_region(
        self, read: ArrayRead, region: Region, copied: _Copy | None
    ) -> HostArray:
        needed = max(region.size * read.layout.dtype.itemsize, read.layout.chunk_nbytes)
        if needed > _LARGE_BYTES:
            check_available(needed)
        array = await self._open(read, copied)
        try:
            return await self._read_into_own_memory(array[region.slices])
        except (ValueError, OSError) as error:
            failure = store_failure(read.where, error, is_remote=self._store.is_remote)
            if failure is not None:
                raise failure from None
            raise await self._locate_damage(read, region, copied, error) from error

    async def _read_into_own_memory(self, array: ts.TensorStore) -> HostArray:
        """Read an array into memory that returns to the system when dropped.

        TensorStore's own results come from the allocator, which keeps freed memory.
        """
        host = aligned_empty(tuple(array.shape), array.dtype.numpy_dtype)
        target = cast(Any, ts).array(host, context=self._context)  # the stubs know no dtypes
        await target.write(array)
        return host

    def _check_chunk(self, read: ArrayRead, index: Shape) -> Value | None:
        """Check that a chunk exists and matches the manifest; count it as read, and return it.

        Nor may it be too small for the array: TensorStore allocates memory for it, and ends the
        program if it cannot.
        """
        layout = read.layout
        key = layout.chunk_key(read.name, index)
        value = self._chunks.find(read.path, key)
        if value is None and not self._fill_missing:
            raise self._chunks.missing(read, key)
        nbytes = 0 if value is None else stored_size(value)
        if value is not None and most_decoded(layout, nbytes) < layout.chunk_nbytes:
            problem = f"its {nbytes} bytes cannot be {layout.chunk_nbytes}"
            raise damaged_chunk(read, key, value, problem)
        if value is not None and layout.has_frames:
            _check_frame(read, key, value)
        self._fetched.add(nbytes)
        return value

    async def _open(self, read: ArrayRead, copied: _Copy | None) -> ts.TensorStore:
        key = join_key(read.name, read.layout.document_name)
        value = self._store.find(key)
        # in another context a `memory://` store is empty
        context = shared_context() if self._store.is_remote else self._context
        try:
            kvstore, context = copied or (self._store.spec(read.name), context)
        except NotInTensorStoreError:
            kvstore, context = await self._copy_all_to_memory(read.name)
        is_text = _is_text(json.dumps(kvstore, ensure_ascii=False))
        if kvstore["driver"] == "file" and ("\\" in read.name or not is_text):
            kvstore, context = await self._copy_all_to_memory(read.name)
        elif not is_text:
            raise StorageError(
                f"{read.where}: the path of the checkpoint is not UTF-8, as TensorStore "
                "needs it to read this array. Rename the directory, or make a link to it."
            )
        # passing the document spares TensorStore from reading it again
        known = {"metadata": json.loads(read_value(value))} if value is not None else {}
        spec = {
            "driver": read.layout.driver,
            "kvstore": kvstore,
            "fill_missing_data_reads": self._fill_missing,
            "recheck_cached_data": False,
            "recheck_cached_metadata": False,
            **known,
        }
        try:
            return await open_array(spec, open=True, assume_metadata=bool(known), context=context)
        except (ValueError, OverflowError, NotImplementedError) as error:
            raise FormatError(
                f"{read.where}: TensorStore cannot read an array described by {key!r}: {error}"
            ) from error

    async def _copy_all_to_memory(self, name: str) -> _Copy:
        """Copy an array's files to memory, for paths or stores that TensorStore does not take."""
        found = ((key, self._store.find(key)) for key in self._store.keys_below(name))
        values = {key: value for key, value in found if value is not None}
        return await self._copy_to_memory(name, values)

    async def _copy_to_memory(self, name: str, values: Mapping[str, Value]) -> _Copy:
        spec, context = {"driver": "memory", "path": f"{name}/"}, ts.Context()
        copy = await ts.KvStore.open(spec, context=context)
        for key, value in values.items():
            await copy.write(key.removeprefix(f"{name}/"), read_value(value))
        return spec, context

    async def _locate_damage(
        self, read: ArrayRead, region: Region, copied: _Copy | None, error: Exception
    ) -> CorruptionError:
        """Read chunk by chunk to name the one that fails."""
        layout = read.layout
        array = await self._open(read, copied)
        for index in chunk_indices(region, layout.chunk_shape):
            key = layout.chunk_key(read.name, index)
            value = self._store.find(key)
            part = chunk_region(index, layout.chunk_shape).intersect(region)
            try:
                await array[cast(Region, part).slices].read()
            except (ValueError, OSError) as chunk_error:
                return damaged_chunk(read, key, value, f"it cannot be decoded: {chunk_error}")
        return damaged_chunk(read, read.name, None, str(error))


def _check_frame(read: ArrayRead, key: str, value: Value) -> None:
    """Check the sizes that a Blosc frame claims, because TensorStore allocates memory by them.

    Raises:
        CorruptionError: They are not its own, or not those of a chunk of the array.
    """
    layout = read.layout
    nbytes = stored_size(value) - (CHECKSUM_BYTES if layout.checksum else 0)
    first = min(HEADER_BYTES, max(0, nbytes))
    start = value[:first] if isinstance(value, bytes) else part_of(value, 0, first)
    try:
        check_header(parse_header(read_value(start)), nbytes, layout.chunk_nbytes)
    except FrameError as error:
        raise damaged_chunk(read, key, value, f"it cannot be decompressed: {error}") from error
    except FileNotFoundError:
        raise damaged_chunk(read, key, value, "the file is missing") from None


def _is_text(path: str) -> bool:
    """Return whether a path is UTF-8; Python represents other bytes as surrogates."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True

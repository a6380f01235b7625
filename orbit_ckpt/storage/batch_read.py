"""Read parts of many arrays at once.

Uncompressed chunks on a local disk are read by a few threads straight into aligned buffers and
compared with their checksums there; a part that is one chunk is returned without another copy.
Everything else is decoded by TensorStore.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import cast

import numpy as np
import tensorstore as ts
from crc32c import crc32c

from orbit_ckpt.arrays.dtypes import DType, HostArray
from orbit_ckpt.arrays.slices import Region, Shape, chunk_indices, chunk_region
from orbit_ckpt.arrays.transfer import byte_view
from orbit_ckpt.errors import CheckpointError, CorruptionError, FormatError
from orbit_ckpt.runtime.limiter import ByteLimiter
from orbit_ckpt.runtime.loop import run_all
from orbit_ckpt.storage.kvstore import ValueStore, open_array, read_value
from orbit_ckpt.storage.layout import join_key
from orbit_ckpt.storage.ocdbt import Json
from orbit_ckpt.storage.ocdbt_encode import Extent, Value
from orbit_ckpt.storage.zarr import ZarrArray, document_name, parse_array

_ALIGNMENT = 64
"""What JAX's CPU backend needs to take a buffer over without copying it."""

_THREADS = max(2, min(8, os.cpu_count() or 2))
_CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class ArrayRead:
    """Parts of one array to read.

    Attributes:
        path: The leaf, for messages.
        name: Storage name.
        layout: How it is stored.
        regions: The parts.
    """

    path: str
    name: str
    layout: ZarrArray
    regions: Sequence[Region]

    @property
    def nbytes(self) -> int:
        """Size of the parts in bytes."""
        return sum(region.size for region in self.regions) * self.layout.dtype.itemsize


class BatchReader:
    """Reads arrays of one store.

    Args:
        store: Where the values are.
        zarr_format: Format of the metadata documents, 2 or 3.
        max_bytes: Most bytes of parts to hold at once, None for no limit.
        fill_missing: Whether a chunk that does not exist stands for zeros, as in checkpoints of
            writers that left such chunks out. Otherwise it is an error.
    """

    def __init__(
        self,
        store: ValueStore,
        *,
        zarr_format: int,
        max_bytes: int | None = None,
        fill_missing: bool = False,
    ) -> None:
        self._store = store
        self._zarr_format = zarr_format
        self.limiter = ByteLimiter(max_bytes)
        self._fill_missing = fill_missing
        self._context = ts.Context()
        self._layouts: dict[bytes, ZarrArray] = {}

    def layout(self, path: str, name: str, *, metadata_key: str | None = None) -> ZarrArray:
        """Return how an array is stored.

        Raises:
            CorruptionError: Its metadata document is missing.
            FormatError: Its metadata document is not understood.
        """
        key = join_key(name, metadata_key or document_name(self._zarr_format))
        value = self._find(path, key)
        if value is None:
            raise CorruptionError(
                f"{path}: the array's metadata document {key!r} is missing. "
                f"{self._other_names(name)}",
                path=path,
                chunk=key,
            )
        document = read_value(value)
        known = self._layouts.get(document)
        if known is None:
            where = f"{path} ({key})"
            known = parse_array(document, zarr_format=self._zarr_format, where=where)
            self._layouts[document] = known
        return known

    async def read_in_windows(
        self, reads: Sequence[ArrayRead]
    ) -> AsyncGenerator[list[list[HostArray]]]:
        """Yield what `read` returns, for consecutive groups of reads that fit the byte budget.

        A group counts against the budget, which all callers share, until the next is asked for.
        """
        for window in self._windows(reads):
            async with self.limiter.reserve(sum(read.nbytes for read in window)):
                yield await self.read(window)

    def _windows(self, reads: Sequence[ArrayRead]) -> Iterator[list[ArrayRead]]:
        limit = self.limiter.max_bytes
        window: list[ArrayRead] = []
        held = 0
        for read in reads:
            if window and limit is not None and held + read.nbytes > limit:
                yield window
                window, held = [], 0
            window.append(read)
            held += read.nbytes
        if window:
            yield window

    async def read(self, reads: Sequence[ArrayRead]) -> list[list[np.ndarray]]:
        """Return for every read the values of its regions, of the stored dtype.

        The arrays are writable and owned by the caller alone.

        Raises:
            CorruptionError: A chunk is missing, cut short or damaged.
        """
        results: list[list[np.ndarray]] = [[] for _ in reads]
        direct = [i for i, read in enumerate(reads) if self._is_direct(read)]
        others = [i for i, read in enumerate(reads) if not self._is_direct(read)]

        def read_directly(positions: Sequence[int]) -> None:
            with _Files() as files:
                for i in positions:
                    results[i] = [self._read_plain(reads[i], r, files) for r in reads[i].regions]

        async def read_decoded(i: int) -> None:
            results[i] = await run_all(self._decode(reads[i], r) for r in reads[i].regions)

        shares = _shares(direct, [read.nbytes for read in reads])
        await run_all(
            [
                *(asyncio.to_thread(read_directly, share) for share in shares),
                *(read_decoded(i) for i in others),
            ]
        )
        return results

    def _is_direct(self, read: ArrayRead) -> bool:
        return read.layout.is_plain and not self._fill_missing

    def _read_plain(self, read: ArrayRead, region: Region, files: _Files) -> HostArray:
        layout = read.layout
        result: np.ndarray | None = None
        for index in chunk_indices(region, layout.chunk_shape):
            chunk = chunk_region(index, layout.chunk_shape)
            values = self._read_chunk(read, index, files)
            if chunk == region:
                return values
            if result is None:
                result = aligned_empty(region.shape, layout.dtype)
            common = region.intersect(chunk)
            if common is not None:
                result[common.within(region).slices] = values[common.within(chunk).slices]
        return aligned_empty(region.shape, layout.dtype) if result is None else result

    def _read_chunk(self, read: ArrayRead, index: Shape, files: _Files) -> HostArray:
        layout = read.layout
        key = layout.chunk_key(read.name, index)
        value = self._find(read.path, key)
        if value is None:
            raise self._missing(read, key)
        values = aligned_empty(layout.chunk_shape, layout.dtype)
        data = byte_view(values)
        tail = bytearray(_CHECKSUM_BYTES if layout.checksum else 0)
        expected = len(data) + len(tail)
        length = len(value) if isinstance(value, bytes) else value.length
        try:
            complete = length == expected and files.read(value, data, tail) == expected
        except FileNotFoundError:
            raise _damaged(read, key, value, "the file is missing") from None
        if not complete:
            raise _damaged(read, key, value, f"it does not have {expected} bytes")
        if tail and crc32c(data) != int.from_bytes(tail, "little"):
            raise _damaged(read, key, value, "its checksum does not match")
        return values

    async def _decode(self, read: ArrayRead, region: Region) -> HostArray:
        self._check_chunks(read, region)
        array = await self._open(read)
        try:
            return np.asarray(await array[region.slices].read())
        except (ValueError, OSError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise await self._locate_damage(read, region, error) from error

    def _find(self, path: str, key: str) -> Value | None:
        try:
            return self._store.find(key)
        except CorruptionError as error:
            raise CorruptionError(
                f"{path}: {key!r}: {error}", path=path, chunk=key, file=error.file
            ) from error

    def _check_chunks(self, read: ArrayRead, region: Region) -> None:
        """Check that all chunks exist, and what the manifest says of them."""
        for index in chunk_indices(region, read.layout.chunk_shape):
            key = read.layout.chunk_key(read.name, index)
            if self._find(read.path, key) is None and not self._fill_missing:
                raise self._missing(read, key)

    async def _open(self, read: ArrayRead) -> ts.TensorStore:
        key = join_key(read.name, read.layout.document_name)
        value = self._store.find(key)
        kvstore = self._store.spec(read.name)
        if kvstore["driver"] == "file" and "\\" in read.name:
            kvstore = await self._copy_to_memory(read.name)
        # the document was read before; handing it over spares TensorStore a second reading
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
            return await open_array(
                spec, open=True, assume_metadata=bool(known), context=self._context
            )
        except (ValueError, NotImplementedError) as error:
            raise FormatError(
                f"{read.path}: TensorStore cannot read an array described by {key!r}: {error}"
            ) from error

    async def _copy_to_memory(self, name: str) -> Json:
        """Copy an array's files to where TensorStore does not take a backslash for a slash."""
        spec = {"driver": "memory", "path": f"{name}/"}
        copy = await ts.KvStore.open(spec, context=self._context)
        for key in self._store.keys_below(name):
            value = self._store.find(key)
            if value is not None:
                await copy.write(key.removeprefix(f"{name}/"), read_value(value))
        return spec

    async def _locate_damage(
        self, read: ArrayRead, region: Region, error: Exception
    ) -> CorruptionError:
        """Read chunk by chunk to name the one that fails."""
        layout = read.layout
        array = await self._open(read)
        for index in chunk_indices(region, layout.chunk_shape):
            key = layout.chunk_key(read.name, index)
            value = self._store.find(key)
            part = chunk_region(index, layout.chunk_shape).intersect(region)
            try:
                await array[cast(Region, part).slices].read()
            except (ValueError, OSError) as chunk_error:
                return _damaged(read, key, value, f"it cannot be decoded: {chunk_error}")
        return _damaged(read, read.name, None, str(error))

    def _missing(self, read: ArrayRead, key: str) -> CorruptionError:
        return CorruptionError(
            f"{read.path}: chunk {key!r} is missing. {self._other_names(read.name)}",
            path=read.path,
            chunk=key,
        )

    def _other_names(self, name: str) -> str:
        found = self._store.keys_below(name)[:5]
        return (
            f"Of this array there is only {', '.join(found)}."
            if found
            else "Nothing of this array is there; was the checkpoint copied completely?"
        )


class _Files:
    """Open files of one reading thread."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, value: Value, data: memoryview, tail: bytearray) -> int:
        """Fill two buffers with consecutive bytes of a value; return how many there were."""
        if isinstance(value, bytes):
            data[:] = value[: len(data)]
            tail[:] = value[len(data) :]
            return len(data) + len(tail)
        descriptor = self._open(value.file)
        done = os.preadv(descriptor, [data, tail], value.offset)
        total = len(data) + len(tail)
        while 0 < done < total:
            rest = [data[done:], tail] if done < len(data) else [tail_view(tail, done - len(data))]
            count = os.preadv(descriptor, rest, value.offset + done)
            if count == 0:
                break
            done += count
        return done

    def _open(self, file: str) -> int:
        descriptor = self._descriptors.get(file)
        if descriptor is None:
            descriptor = self._descriptors[file] = os.open(file, os.O_RDONLY)
            self._stack.callback(os.close, descriptor)
        return descriptor


def tail_view(tail: bytearray, offset: int) -> memoryview:
    """Return the rest of a buffer without copying it."""
    return memoryview(tail)[offset:]


def aligned_empty(shape: Shape, dtype: DType) -> HostArray:
    """Return an uninitialised array whose data is aligned for JAX."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    buffer = np.empty(nbytes + _ALIGNMENT, np.uint8)
    offset = -buffer.ctypes.data % _ALIGNMENT
    return buffer[offset : offset + nbytes].view(dtype).reshape(shape)


def _shares(positions: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Deal reads out to threads, each about the same number of bytes, order kept."""
    if not positions:
        return []
    per_read = 4096
    target = sum(sizes[i] + per_read for i in positions) / _THREADS
    shares: list[list[int]] = [[]]
    held = 0
    for i in positions:
        if held >= target and len(shares) < _THREADS:
            shares.append([])
            held = 0
        shares[-1].append(i)
        held += sizes[i] + per_read
    return shares


def _damaged(read: ArrayRead, key: str, value: Value | None, what: str) -> CorruptionError:
    file = value.file if isinstance(value, Extent) else None
    where = f"{file} at byte {value.offset}" if isinstance(value, Extent) else "the index"
    return CorruptionError(
        f"{read.path}: chunk {key!r} in {where} is damaged: {what}. Restore an earlier "
        "checkpoint or another copy of this one.",
        path=read.path,
        chunk=key,
        file=file,
    )

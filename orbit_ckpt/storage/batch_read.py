"""Read parts of many arrays at once.

Chunks on a local disk are read by a few threads straight into aligned buffers, or decompressed into
them, and compared with their checksums; a part that is one chunk is returned without another copy.
Codecs other than zstd are left to TensorStore.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import tensorstore as ts
from crc32c import crc32c
from msgspec import Struct

from orbit_ckpt.arrays.dtypes import HostArray
from orbit_ckpt.arrays.memory import aligned_empty
from orbit_ckpt.arrays.slices import Region, Shape, chunk_indices, chunk_region
from orbit_ckpt.arrays.transfer import byte_view
from orbit_ckpt.errors import CheckpointError, CorruptionError, FormatError
from orbit_ckpt.runtime.limiter import ByteLimiter
from orbit_ckpt.runtime.loop import run_all
from orbit_ckpt.storage.codec import CHECKSUM_BYTES, decode_chunk, decode_stream
from orbit_ckpt.storage.kvstore import ValueStore, open_array
from orbit_ckpt.storage.layout import join_key
from orbit_ckpt.storage.ocdbt import Json
from orbit_ckpt.storage.ocdbt_encode import Extent, Value
from orbit_ckpt.storage.value_read import MAX_AHEAD_BYTES, ValueReader, read_value
from orbit_ckpt.storage.zarr import ZarrArray, document_name, parse_array
from orbit_ckpt.tree.keypath import KeyPath, format_path

_THREADS = max(2, min(8, os.cpu_count() or 2))

_SMALL_BYTES = 1 << 14
"""Reads below this size are left to one thread; several would mostly wait for the interpreter."""


class ArrayRead(Struct, frozen=True, gc=False):
    """Parts of one array to read; a struct, because there are as many as leaves.

    Attributes:
        path: Where the leaf sits.
        name: Storage name.
        layout: How it is stored.
        regions: The parts.
    """

    path: KeyPath
    name: str
    layout: ZarrArray
    regions: Sequence[Region]

    @property
    def where(self) -> str:
        """The leaf as text, for messages."""
        return format_path(self.path)

    @property
    def nbytes(self) -> int:
        """Size of the parts in bytes."""
        return sum([region.size for region in self.regions]) * self.layout.dtype.itemsize


class ReadCost(NamedTuple):
    """What it costs to read parts of an array.

    Attributes:
        stored: Bytes of the chunks as they are stored.
        chunks: Bytes of the chunks' elements.
        wanted: Bytes of the parts' elements.
    """

    stored: int
    chunks: int
    wanted: int


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
        self._document_name = document_name(zarr_format)
        self.limiter = ByteLimiter(max_bytes)
        self._fill_missing = fill_missing
        self._context = ts.Context()
        self._layouts: dict[bytes, ZarrArray] = {}

    def layouts(self, leaves: Iterable[tuple[KeyPath, str]]) -> list[ZarrArray]:
        """Return how arrays are stored.

        Args:
            leaves: Where each sits, and its storage name.

        Raises:
            CorruptionError: A metadata document is missing.
            FormatError: A metadata document is not understood.
        """
        known, document_name = self._layouts, self._document_name
        found: list[ZarrArray] = []
        for path, name in leaves:
            key = join_key(name, document_name)
            value = self._find(path, key)
            layout = known.get(value) if type(value) is bytes else None
            found.append(self._parse(path, name, value) if layout is None else layout)
        return found

    def _parse(self, path: KeyPath, name: str, value: Value | None) -> ZarrArray:
        key = join_key(name, self._document_name)
        if value is None:
            where = format_path(path)
            raise CorruptionError(
                f"{where}: the array's metadata document {key!r} is missing. "
                f"{self._other_names(name)}",
                path=where,
                chunk=key,
            )
        document = value if isinstance(value, bytes) else read_value(value)
        known = self._layouts.get(document)
        if known is None:
            where = f"{format_path(path)} ({key})"
            known = parse_array(document, zarr_format=self._zarr_format, where=where)
            self._layouts[document] = known
        return known

    def cost(self, read: ArrayRead) -> ReadCost:
        """Return what a read costs, from the index or the sizes of files."""
        layout = read.layout
        lengths = [
            self._store.length(layout.chunk_key(read.name, index)) or 0
            for region in read.regions
            for index in chunk_indices(region, layout.chunk_shape)
        ]
        return ReadCost(sum(lengths), len(lengths) * layout.chunk_nbytes, read.nbytes)

    async def read_in_windows(
        self, reads: Sequence[ArrayRead]
    ) -> AsyncGenerator[list[list[HostArray]]]:
        """Yield what `read` returns, for consecutive groups of reads that fit the byte budget.

        A group counts against the budget, which all callers share, until the next is asked for.
        """
        for window, nbytes in self._windows(reads):
            async with self.limiter.reserve(nbytes):
                yield await self.read(window)

    def _windows(self, reads: Sequence[ArrayRead]) -> Iterator[tuple[Sequence[ArrayRead], int]]:
        limit = self.limiter.max_bytes
        if limit is None:
            yield reads, 0
            return
        window: list[ArrayRead] = []
        held = 0
        for read in reads:
            nbytes = read.nbytes
            if window and held + nbytes > limit:
                yield window, held
                window, held = [], 0
            window.append(read)
            held += nbytes
        if window:
            yield window, held

    async def read(self, reads: Sequence[ArrayRead]) -> list[list[np.ndarray]]:
        """Return for every read the values of its regions, of the stored dtype.

        The arrays are writable and owned by the caller alone.

        Raises:
            CorruptionError: A chunk is missing, cut short or damaged.
        """
        results: list[list[np.ndarray]] = [[] for _ in reads]
        sizes = [read.nbytes for read in reads]
        direct: list[int] = []
        others: list[int] = []
        for i, read in enumerate(reads):
            (direct if self.can_stream(read.layout) else others).append(i)

        def read_directly(positions: Sequence[int]) -> None:
            with ValueReader(sum(sizes[i] for i in positions)) as reading:
                for i in positions:
                    read = reads[i]
                    results[i] = [self._read_direct(read, r, reading) for r in read.regions]

        async def read_decoded(i: int) -> None:
            results[i] = await run_all(self._decode(reads[i], r) for r in reads[i].regions)

        await run_all(
            [
                *(asyncio.to_thread(read_directly, share) for share in _shares(direct, sizes)),
                *(read_decoded(i) for i in others),
            ]
        )
        return results

    def chunk(self, read: ArrayRead, index: Shape) -> tuple[str, Value]:
        """Return the key of one chunk of an array, and the chunk as stored or where it is.

        Raises:
            CorruptionError: The chunk is missing.
        """
        key = read.layout.chunk_key(read.name, index)
        value = self._find(read.path, key)
        if value is None:
            raise self._missing(read, key)
        return key, value

    def can_stream(self, layout: ZarrArray) -> bool:
        """Whether arrays of a layout are decoded here, not by TensorStore."""
        return layout.is_direct and not self._fill_missing

    def _read_direct(self, read: ArrayRead, region: Region, reading: ValueReader) -> HostArray:
        layout = read.layout
        memory = reading.arena.take(region.size * layout.dtype.itemsize)
        result = np.ndarray(region.shape, layout.dtype, memory)
        if region.shape == layout.chunk_shape == layout.shape:
            first = (0,) * len(layout.shape)
            self._read_chunk(read, first, memory, reading)
            return result
        for index in chunk_indices(region, layout.chunk_shape):
            chunk = chunk_region(index, layout.chunk_shape)
            if chunk == region:
                self._read_chunk(read, index, memory, reading)
                break
            values = aligned_empty(chunk.shape, layout.dtype)
            self._read_chunk(read, index, byte_view(values), reading)
            common = region.intersect(chunk)
            if common is not None:
                result[common.within(region).slices] = values[common.within(chunk).slices]
        return result

    def _read_chunk(
        self, read: ArrayRead, index: Shape, chunk: memoryview, reading: ValueReader
    ) -> None:
        """Read a chunk into a buffer of its size."""
        layout = read.layout
        key, value = self.chunk(read, index)
        is_plain = layout.compression is None and chunk.nbytes >= _SMALL_BYTES
        try:
            if is_plain and isinstance(value, Extent):
                problem = _read_plain(layout, value, chunk, reading)
            else:
                problem = _read_encoded(layout, value, chunk, reading)
        except FileNotFoundError:
            problem = "the file is missing"
        if problem is not None:
            raise damaged_chunk(read, key, value, problem)

    async def _decode(self, read: ArrayRead, region: Region) -> HostArray:
        self._check_chunks(read, region)
        array = await self._open(read)
        try:
            return np.asarray(await array[region.slices].read())
        except (ValueError, OSError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise await self._locate_damage(read, region, error) from error

    def _find(self, path: KeyPath, key: str) -> Value | None:
        try:
            return self._store.find(key)
        except CorruptionError as error:
            raise CorruptionError(
                f"{format_path(path)}: {key!r}: {error}",
                path=format_path(path),
                chunk=key,
                file=error.file,
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
                f"{read.where}: TensorStore cannot read an array described by {key!r}: {error}"
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
                return damaged_chunk(read, key, value, f"it cannot be decoded: {chunk_error}")
        return damaged_chunk(read, read.name, None, str(error))

    def _missing(self, read: ArrayRead, key: str) -> CorruptionError:
        return CorruptionError(
            f"{read.where}: chunk {key!r} is missing. {self._other_names(read.name)}",
            path=read.where,
            chunk=key,
        )

    def _other_names(self, name: str) -> str:
        found = self._store.keys_below(name)[:5]
        return (
            f"Of this array there is only {', '.join(found)}."
            if found
            else "Nothing of this array is there; was the checkpoint copied completely?"
        )


def _read_plain(
    layout: ZarrArray, value: Extent, chunk: memoryview, reading: ValueReader
) -> str | None:
    """Read an uncompressed chunk to where it is wanted; return what is wrong with it."""
    stored = memoryview(bytearray(CHECKSUM_BYTES if layout.checksum else 0))
    expected = chunk.nbytes + stored.nbytes
    if value.length != expected or reading.read_into(value, [chunk, stored]) != expected:
        return f"it does not have {expected} bytes"
    if stored and crc32c(chunk) != int.from_bytes(stored, "little"):
        return "its checksum does not match"
    return None


def _read_encoded(
    layout: ZarrArray, value: Value, chunk: memoryview, reading: ValueReader
) -> str | None:
    """Read a chunk and decode it; return what is wrong with it."""
    if isinstance(value, Extent) and value.length > MAX_AHEAD_BYTES and layout.compression:
        return decode_stream(layout, reading.stream(value), value.length, chunk)
    encoded = reading.read(value)
    length = len(value) if isinstance(value, bytes) else value.length
    if encoded.nbytes != length:
        return f"it does not have {length} bytes"
    return decode_chunk(layout, encoded, chunk)


def _shares(positions: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Deal reads out to threads, each about the same number of bytes, order kept."""
    small = [i for i in positions if sizes[i] < _SMALL_BYTES]
    large = [i for i in positions if sizes[i] >= _SMALL_BYTES]
    target = sum(sizes[i] for i in large) / _THREADS
    shares: list[list[int]] = [small]
    held = target
    for i in large:
        if held >= target:
            shares.append([])
            held = 0
        shares[-1].append(i)
        held += sizes[i]
    return [share for share in shares if share]


def damaged_chunk(read: ArrayRead, key: str, value: Value | None, what: str) -> CorruptionError:
    """Return an error that tells where a damaged chunk is, and what is wrong with it."""
    file = value.file if isinstance(value, Extent) else None
    where = f"{file} at byte {value.offset}" if isinstance(value, Extent) else "the index"
    return CorruptionError(
        f"{read.where}: chunk {key!r} in {where} is damaged: {what}. Restore an earlier "
        "checkpoint or another copy of this one.",
        path=read.where,
        chunk=key,
        file=file,
    )

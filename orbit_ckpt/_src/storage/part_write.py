"""Write arrays part by part, each chunk by chunk."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import DType, HostArray, cast_array
from orbit_ckpt._src.arrays.memory import byte_view
from orbit_ckpt._src.arrays.references import sample_checksum
from orbit_ckpt._src.arrays.slices import (
    Region,
    Shape,
    chunk_indices,
    chunk_region,
    split_by_rows,
    whole,
)
from orbit_ckpt._src.arrays.transfer import DeferredData, Shard, begin_transfer, host_blocks
from orbit_ckpt._src.errors import UnsupportedLeafError
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.storage.codec import PIECE_BYTES, encode_chunk
from orbit_ckpt._src.storage.incremental import IncrementalWrite
from orbit_ckpt._src.storage.layout import join_key
from orbit_ckpt._src.storage.ocdbt_encode import MAX_INLINE_BYTES
from orbit_ckpt._src.storage.value_write import ValueWriter
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.keypath import KeyPath, format_path


class ArrayWrite(Struct, frozen=True, gc=False):
    """One array to write.

    Attributes:
        name: Storage name.
        layout: How it is stored.
        document: Its metadata document.
        shards: The parts this process writes; each consists of whole chunks.
        dtype: Logical dtype that the shards are cast to before they are stored.
        path: The leaf, for messages.
        has_document: Whether this process writes the document, not another one.
    """

    name: str
    layout: ZarrArray
    document: bytes
    shards: Sequence[Shard]
    dtype: DType
    path: KeyPath
    has_document: bool = True

    @property
    def chunks(self) -> Iterator[Shape]:
        """The grid indices of the chunks that this process writes."""
        for shard in self.shards:
            yield from chunk_indices(shard.region, self.layout.chunk_shape)


class ArrayPart(Struct, frozen=True, gc=False):
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


def parts_in_groups(
    writes: Sequence[ArrayWrite], max_bytes: int
) -> Iterator[tuple[list[ArrayPart], int]]:
    """Yield groups of parts and the bytes that each holds, at most `max_bytes`."""
    # of a larger chunk no more is held
    yield from batched(_parts(writes, max_bytes), lambda p: min(p.nbytes, max_bytes), max_bytes)


def _parts(writes: Sequence[ArrayWrite], max_bytes: int) -> Iterator[ArrayPart]:
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
                yield ArrayPart(write, shard, region, region.size * itemsize, is_first, is_last)
                is_first = False


def write_parts(
    parts: Sequence[ArrayPart],
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
        is_held = False
        if part.is_first and write.has_document:
            writer.put(join_key(write.name, layout.document_name), write.document)
        for index in chunk_indices(part.region, layout.chunk_shape):
            chunk = chunk_region(index, layout.chunk_shape)
            key = layout.chunk_key(write.name, index)
            is_inline = layout.compression is None and layout.chunk_nbytes <= MAX_INLINE_BYTES
            if incremental is not None and not is_inline:
                pieces = _pieces(source, chunk, write, max_bytes)
                if incremental.is_stored(write.name, layout, write.document, key, pieces):
                    is_held = True
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
        if part.shard.on_device is not None and not is_held:  # else it may be needed again
            part.shard.on_device.release(part.region.size)


def check_unchanged(writes: Sequence[ArrayWrite]) -> None:
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


def _source(part: ArrayPart, max_bytes: int) -> Shard:
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

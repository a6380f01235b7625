"""Read chunks to their ends and discard them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from msgspec import Struct

from orbit_ckpt._src.arrays.slices import Region, Shape, chunk_region, whole
from orbit_ckpt._src.errors import CorruptionError, FormatError, VersionError
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead, damaged_chunk, stored_size
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.storage.read_shares import in_requests
from orbit_ckpt._src.storage.store_path import is_damage
from orbit_ckpt._src.storage.value_read import ValueReader


class ChunkCheck(Struct, frozen=True, gc=False):
    """The result of reading chunks to their ends.

    Attributes:
        errors: Errors of the damaged chunks, in the order of the chunks.
        nbytes: Bytes read, as stored.
        absent: Number of missing chunks that stand for zeros.
    """

    errors: list[CorruptionError]
    nbytes: int
    absent: int


def check_chunks(
    reader: BatchReader,
    chunks: Sequence[tuple[ArrayRead, Shape]],
    *,
    max_bytes: int,
    is_known: Callable[[ArrayRead, str, Value], bool] | None = None,
) -> ChunkCheck:
    """Read chunks to their ends and discard them.

    Args:
        reader: Reads the store.
        chunks: Arrays, each with the grid index of a chunk.
        max_bytes: Size of the blocks in which a chunk is decoded, and of requests for several
            chunks; one that TensorStore decodes is held whole.
        is_known: Returns whether a chunk can be skipped, given its array, key, and itself or its
            place.

    Raises:
        StorageError: The store does not answer.
        OSError: A file cannot be read, which does not prove damage.
    """
    errors: dict[int, CorruptionError] = {}
    values: dict[int, Value] = {}
    absent = 0
    for i, (read, index) in enumerate(chunks):
        key = read.layout.chunk_key(read.name, index)
        try:
            value = reader.chunks.find(read.path, key)
        except CorruptionError as error:
            errors[i] = error
            continue
        if value is not None:
            if is_known is None or not is_known(read, key, value):
                values[i] = value
        elif reader.fill_missing:
            absent += 1
        else:
            errors[i] = reader.chunks.missing(read, key)
    with reader.reading(0) as reading:
        for i in in_requests(values, reading, max_bytes=max_bytes):
            read, index = chunks[i]
            error = _check(reader, read, index, values[i], reading, max_bytes)
            if error is not None:
                errors[i] = error
    nbytes = sum(map(stored_size, values.values()))
    return ChunkCheck([errors[i] for i in sorted(errors)], nbytes, absent)


def _check(
    reader: BatchReader,
    read: ArrayRead,
    index: Shape,
    value: Value,
    reading: ValueReader,
    max_bytes: int,
) -> CorruptionError | None:
    """Read one chunk to its end; return its damage."""
    layout = read.layout
    key = layout.chunk_key(read.name, index)
    try:
        if reader.can_stream(layout):
            for _ in reader.chunks.blocks(read, index, reading, max_bytes):
                pass
        else:
            box = chunk_region(index, layout.chunk_shape)
            reader.read_part(read, cast(Region, box.intersect(whole(layout.shape))))
    except CorruptionError as error:
        return error
    except VersionError:
        raise
    except FormatError as error:  # unknown codecs
        what = str(error)
        return CorruptionError(what, path=read.where, chunk=key, what=what)
    except OSError as error:
        if not is_damage(error):
            raise  # an unreachable store is not damage
        return damaged_chunk(read, key, value, f"it cannot be read: {error}")
    return None

"""Write many small arrays at once.

An array that is one uncompressed chunk in host memory is stored as its bytes and their checksum.
Such arrays are written in batches: every step is one pass over the arrays of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from operator import itemgetter

import jax
import numpy as np
from msgspec import Struct
from typing_extensions import Buffer

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.memory import byte_view
from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.storage.codec import CHECKSUM_BYTES
from orbit_ckpt._src.storage.incremental import IncrementalWrite, SmallChunk
from orbit_ckpt._src.storage.layout import join_key
from orbit_ckpt._src.storage.ocdbt_encode import MAX_INLINE_BYTES
from orbit_ckpt._src.storage.value_write import ValueWriter
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.tree.keypath import KeyPath

_SMALL_BYTES = 1 << 14
"""Largest array that is copied on its way to the disk."""

_BATCH_BYTES = 1 << 23

_BUFFER_KINDS = "?biufc"
"""Kinds of numpy's own dtypes whose arrays are buffers; ml_dtypes and dates are not."""


class WholeArrays(Struct, frozen=True):
    """Arrays in host memory that are stored alike, each written whole by this process.

    Attributes:
        layout: How each is stored.
        document: Its metadata document.
        dtype: Logical dtype that they are cast to before they are stored.
        names: Their storage names.
        values: Their values, all of one dtype: numpy arrays, or JAX arrays on the CPU.
        paths: The leaves, for messages.
        positions: Their places in the order of the tree's leaves.
    """

    layout: ZarrArray
    document: bytes
    dtype: DType
    names: Sequence[str]
    values: Sequence[np.ndarray | jax.Array]
    paths: Sequence[KeyPath]
    positions: Sequence[int]

    @property
    def are_small(self) -> bool:
        """Whether they can be written in batches."""
        layout = self.layout
        is_chunk = layout.compression is None and layout.chunk_shape == layout.shape
        is_cast = any(value.dtype != self.dtype for value in self.values[:1])
        return is_chunk and not is_cast and layout.chunk_nbytes <= _SMALL_BYTES

    @property
    def nbytes(self) -> int:
        """Size of all of them in bytes."""
        return len(self.names) * self.layout.chunk_nbytes


class _Form(Struct, frozen=True, gc=False):
    """How the arrays of one group are stored.

    Attributes:
        nbytes: Size of each.
        document: Its metadata document.
        document_key: Name of the document, relative to the array.
        chunk_key: Name of the chunk.
        has_checksum: Whether the chunk ends in its checksum.
        is_inline: Whether it is small enough for the index.
        is_buffer: Whether numpy arrays of the dtype are buffers.
        layout: The arrays' layout.
    """

    nbytes: int
    document: bytes
    document_key: str
    chunk_key: str
    has_checksum: bool
    is_inline: bool
    is_buffer: bool
    layout: ZarrArray

    @classmethod
    def of(cls, arrays: WholeArrays) -> _Form:
        layout, dtype = arrays.layout, arrays.dtype
        return cls(
            layout.chunk_nbytes,
            arrays.document,
            layout.document_name,
            layout.chunk_key("", (0,) * len(layout.shape)),
            layout.checksum,
            layout.chunk_nbytes <= MAX_INLINE_BYTES,
            dtype.kind in _BUFFER_KINDS and dtype.type.__module__ == "numpy",
            layout,
        )


SmallArray = tuple[int, str, np.ndarray | jax.Array, _Form]
"""An array of a batch: its position, name and value, and how it is stored."""


def small_batches(
    groups: Sequence[WholeArrays], max_bytes: int
) -> Iterator[tuple[list[SmallArray], int]]:
    """Yield the arrays of groups in the order of the tree, and the bytes that each batch holds."""
    arrays: Iterator[SmallArray] = chain.from_iterable(
        zip(group.positions, group.names, group.values, repeat(_Form.of(group)), strict=False)
        for group in groups
    )
    in_order = sorted(arrays, key=itemgetter(0))
    yield from batched(in_order, _nbytes_of, min(max_bytes, _BATCH_BYTES))


def _nbytes_of(array: SmallArray) -> int:
    return array[3].nbytes


def write_batch(
    batch: Sequence[SmallArray], writer: ValueWriter, incremental: IncrementalWrite | None = None
) -> None:
    """Write arrays of one save with their metadata documents.

    Args:
        batch: The arrays.
        writer: Where to write them.
        incremental: Tells which need not be written, in an incremental save.
    """
    chunks = [_chunk(np.asarray(value), form) for _, _, value, form in batch]
    if incremental is not None and incremental.may_change:
        chunks = [
            memoryview(chunk).tobytes() for chunk in chunks
        ]  # their digests are those of what is written
    checksums = _checksums(chunks) if batch[0][3].has_checksum else ()
    inline: list[tuple[str, bytes]] = []
    others: list[tuple[str, Buffer, bytes]] = []
    small: list[SmallChunk] = []
    for (_, name, _, form), chunk, checksum in zip(
        batch, chunks, checksums or repeat(b""), strict=False
    ):
        inline.append((join_key(name, form.document_key), form.document))
        key = join_key(name, form.chunk_key)
        if form.is_inline:
            inline.append((key, b"".join((chunk, checksum))))
        else:
            others.append((key, chunk, checksum))
            if incremental is not None:
                document_key = join_key(name, form.document_key)
                small.append(SmallChunk(key, form.layout, document_key, form.document, chunk))
    writer.put_all(inline)
    if incremental is not None:
        are_stored = incremental.are_stored(small)
        others = [other for other, is_kept in zip(others, are_stored, strict=True) if not is_kept]
    if others:
        keys, values, tails = zip(*others, strict=True)
        writer.append_all(keys, values, tails if checksums else ())


def _chunk(host: np.ndarray, form: _Form) -> Buffer:
    """Return the bytes of an array in C order."""
    if not host.flags.c_contiguous:
        host = np.ascontiguousarray(host)
    return host if form.is_buffer else byte_view(host)


def _checksums(chunks: Sequence[Buffer]) -> list[bytes]:
    """Return the crc32c of every chunk, little-endian."""
    packed = np.fromiter(map(crc32c, chunks), "<u4", len(chunks)).tobytes()
    return [packed[i : i + CHECKSUM_BYTES] for i in range(0, len(packed), CHECKSUM_BYTES)]

"""Write trees as T5X's checkpoints, version 3."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

import msgpack
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from orbit_ckpt._src.arrays.dtypes import HostArray, as_dtype, logical_name
from orbit_ckpt._src.arrays.slices import Shape, choose_chunk_shape, whole
from orbit_ckpt._src.errors import NameCollisionError
from orbit_ckpt._src.formats.flax_msgpack.scan import COMPLEX, NDARRAY, SCALAR
from orbit_ckpt._src.formats.flax_msgpack.tree import unique_names
from orbit_ckpt._src.formats.flax_msgpack.write import is_writable
from orbit_ckpt._src.formats.t5x.bands import ZarrBand, ZarrWriter, write_arrays_in_workers
from orbit_ckpt._src.formats.t5x.chunks import GZIP, MAX_OPEN
from orbit_ckpt._src.formats.t5x.spec import VERSION
from orbit_ckpt._src.formats.writing import (
    ArrayStream,
    WriteRequest,
    array_stream,
    kind_of,
    new_directory,
    unsupported_leaves,
)
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.layout import AGGREGATE, PINNED
from orbit_ckpt._src.storage.located import is_shared
from orbit_ckpt._src.storage.path import is_gcs_path
from orbit_ckpt._src.transform.patterns import leaves_matching
from orbit_ckpt._src.tree.flatten import children_of, flatten, is_empty_node, is_leaf
from orbit_ckpt._src.tree.keypath import NamePath, format_path, key_name
from orbit_ckpt._src.type_handlers.lazy import LazyLeaf

CHUNK_BYTES = 64 << 20
"""T5X's target size of chunks."""

_ON_GOOGLE = {"driver": "gcs", "bucket": "t5x-dummy-bucket"}
_MAX_THREADS = 4
_THREAD_BYTES = 1 << 25
"""Upper bound of the memory of one thread's compressors."""

_MIN_FILL = 8
"""Chunks smaller than the target size by this factor are too small."""


class _Plan(Struct, frozen=True):
    """An array to write as a zarr array.

    Attributes:
        name: The name of its directory.
        array: The array.
        chunks: Shape of its chunks.
    """

    name: str
    array: ArrayStream
    chunks: Shape

    def spec(self, directory: Path) -> dict[str, object]:
        """Return its spec for the msgpack file of a directory."""
        # T5X refuses other drivers on gs://, and puts in the bucket that it reads from
        driver = _ON_GOOGLE if is_gcs_path(directory) else {"driver": "file"}
        return {
            "driver": "zarr",
            "dtype": self.array.dtype.name,
            "kvstore": {**driver, "path": f"{self.name}/"},
            "metadata": {
                "chunks": self.chunks,
                "compressor": GZIP,
                "shape": self.array.shape,
            },
        }


def write(request: WriteRequest) -> None:
    """Write a tree into the directory of a step, which T5X expects to be named `checkpoint_<step>`.

    Lists, tuples and namedtuples become dicts, as in Flax. Arrays become gzip-compressed zarr
    arrays, as T5X writes partitioned ones. The msgpack file holds scalars, arrays without
    dimensions or elements, those that `inline` matches, and arrays of uint16, which T5X refuses
    elsewhere. It is written last; then the directory appears. In a store it is written into place,
    and the msgpack file is what makes it a checkpoint.

    Raises:
        UnsupportedLeafError: The format cannot hold some leaves; nothing was written.
        NameCollisionError: Keys of a dict are equal as str; nothing was written.
        CheckpointExistsError: The path exists; it is never replaced.
        ValueError: A limit on the size of files is given, or the tree is a single leaf.
    """
    if request.max_shard_bytes is not None:
        raise ValueError("T5X has no shards of limited size; give no size of them")
    if is_leaf(request.tree) and not is_empty_node(request.tree):
        raise ValueError("A checkpoint of T5X is a tree, not a single leaf")
    plans = _plans(request)
    state = {"version": VERSION, "optimizer": _node(request.tree, (), plans, request)}
    data = msgpack.packb(state)
    room = request.max_bytes // _THREAD_BYTES
    threads = max(1, min(_MAX_THREADS, os.cpu_count() or 1, len(plans), room))
    share = replace(request, max_bytes=max(1, request.max_bytes // threads))
    with new_directory(request.path) as directory:
        distributed = _distributed(plans.values(), request) if is_shared(directory) else []
        if request.executor is not None and distributed:
            write_arrays_in_workers(directory, distributed, request, request.executor)
        written = {name for name, _, _ in distributed}
        alone = [plan for plan in plans.values() if plan.name not in written]
        _write_arrays(directory, alone, share, threads)
        write_file(directory / AGGREGATE, data)


def choose_chunks(shape: Shape, itemsize: int) -> Shape:
    """Return the chunk shape that T5X chooses, or several rows if that would be very small.

    T5X only divides lengths without a remainder, a prime length therefore into single elements.
    """
    chunks = choose_chunk_shape(shape, shape, itemsize=itemsize, max_bytes=CHUNK_BYTES)
    nbytes = math.prod(shape) * itemsize
    is_filled = math.prod(chunks) * itemsize * _MIN_FILL >= min(CHUNK_BYTES, nbytes)
    across = math.prod(n // c for n, c in zip(shape[1:], chunks[1:], strict=True))
    if is_filled and across <= MAX_OPEN:
        return chunks
    rows: list[int] = []
    room = max(1, CHUNK_BYTES // itemsize)
    for n in reversed(shape):
        rows.append(min(n, room))
        room = max(1, room // n) if rows[-1] == n else 1
    return tuple(reversed(rows))


def _plans(request: WriteRequest) -> dict[tuple[str, ...], _Plan]:
    """Check all leaves; return the arrays to write as zarr arrays, by their keys."""
    flat = flatten(request.tree)
    plans: dict[tuple[str, ...], _Plan] = {}
    refused: dict[NamePath, str] = {}
    inline = 0
    named = leaves_matching("inline", request.inline, flat.names)
    if len(set(flat.names)) < len(flat.names):
        same = [format_path(n) for i, n in enumerate(flat.names) if n in flat.names[:i]]
        raise NameCollisionError(f"Several leaves would be called {', '.join(same)}.", paths=same)
    directories = unique_names([_directory_keys(names) for names in flat.names])
    for names, name, value in zip(flat.names, directories, flat.values, strict=True):
        array = array_stream(value)
        if not is_writable(value) or (array and logical_name(array.dtype) is not None):
            refused[names] = kind_of(value)
        elif array is not None and names not in named and not _is_inline(array):
            chunks = choose_chunks(array.shape, array.dtype.itemsize)
            plans[names] = _Plan(name, array, chunks)
        elif array is not None:
            inline += array.nbytes
            if inline > request.max_bytes // 4:
                refused[names] = "too large for the msgpack file, which takes max_bytes / 4"
    if refused:
        raise unsupported_leaves("Checkpoints of T5X", refused)
    return plans


def _is_inline(array: ArrayStream) -> bool:
    return array.nbytes == 0 or not array.shape or array.dtype == as_dtype("uint16")


def _directory_keys(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of the name of a leaf's directory."""
    joined = "/".join(names).replace("\\", "_").replace("\0", "_").replace("/", ".")
    is_taken = not joined.strip(".") or joined in (AGGREGATE, PINNED)
    return (f"{joined}~",) if is_taken or joined.startswith("train_ds-") else (joined,)


def _node(
    node: object,
    names: tuple[str, ...],
    plans: dict[tuple[str, ...], _Plan],
    request: WriteRequest,
) -> object:
    """Return a part of the tree in the form of the msgpack file."""
    if is_empty_node(node):
        return None if node is None else {}
    if not is_leaf(node):
        children = sorted((key_name(key), child) for key, child in children_of(node))
        return {key: _node(child, (*names, key), plans, request) for key, child in children}
    if names in plans:
        return plans[names].spec(request.path)
    array = array_stream(node)
    if array is not None:
        data = b"".join(array.pieces(request)) if array.nbytes else b""
        fields = [array.shape, array.dtype.name, data]
        code = SCALAR if isinstance(node, np.generic) else NDARRAY
        return msgpack.ExtType(code, msgpack.packb(fields))
    if isinstance(node, complex):
        parts = [node.real, node.imag]
        return msgpack.ExtType(COMPLEX, msgpack.packb(parts))
    return node


def _distributed(
    plans: Iterable[_Plan], request: WriteRequest
) -> list[tuple[str, LazyLeaf, Shape]]:
    """Return the arrays that workers of the executor write: their names, and shapes of chunks."""
    if request.executor is None:
        return []
    return [
        (plan.name, leaf, plan.chunks)
        for plan in plans
        if (leaf := plan.array.stored) is not None and not leaf.has_sum
    ]


def _write_arrays(
    directory: Path, plans: Sequence[_Plan], request: WriteRequest, threads: int
) -> None:
    ended = threading.Event()
    with Workers(threads, "orbit_ckpt-write") as pool:
        try:
            for done in [pool.submit(_write_array, directory, p, request, ended) for p in plans]:
                done.result()
        except BaseException:  # interrupts too: threads stop before the directory is removed
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _write_array(
    directory: Path, plan: _Plan, request: WriteRequest, ended: threading.Event
) -> None:
    array = plan.array
    band = ZarrBand(0, whole(array.shape), plan.name, array.shape, array.dtype, plan.chunks)
    ZarrWriter(directory).write([(band, _blocks(array, request, ended))])


def _blocks(
    array: ArrayStream, request: WriteRequest, ended: threading.Event
) -> Iterator[HostArray]:
    for block in array.blocks(request):
        if ended.is_set():
            raise CancelledError
        yield block

"""Measure the values of leaves block by block, here or in the workers of an executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor
from threading import Event, Lock
from typing import cast

import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray, storable
from orbit_ckpt._src.arrays.slices import chunk_indices, whole
from orbit_ckpt._src.arrays.statistics import ArrayStatistics, measure
from orbit_ckpt._src.checkpointer.api import load
from orbit_ckpt._src.checkpointer.distributed_statistics import measure_in_workers
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.runtime.checks import check_callable, check_executor, check_int
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.storage.measured import ChunkToMeasure, chunk_blocks
from orbit_ckpt._src.storage.path import PathLike
from orbit_ckpt._src.transform.patterns import Patterns, join_name
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyLeaf

_MAX_BYTES = 1 << 28
_THREADS = 4
COPIES = 4
"""What is held of a block: as stored, as its dtype, as float64 and a mask."""


def statistics(
    path: PathLike,
    *,
    only: Patterns = None,
    skip: Patterns = None,
    max_bytes: int = _MAX_BYTES,
    progress: Callable[[int, int], object] | None = None,
    reader: Format | None = None,
    executor: Executor | None = None,
) -> dict[str, ArrayStatistics]:
    """Measure the values of a checkpoint: extremes, mean, norm, and counts of NaN and Inf.

    Uses no device, and reads every chunk once.

    Args:
        path: A checkpoint of any format that `load` reads.
        only: Patterns of leaves to measure, as for `load`.
        skip: Patterns of leaves not to measure.
        max_bytes: Approximate number of bytes to hold at once, in each worker.
        progress: Called occasionally with the bytes measured so far and their total.
        reader: The format of `path`, as for `load`.
        executor: Where to read and measure arrays, as for `verify`; the results are the same, to
            the last bit.

    Returns:
        Statistics by the name of the leaf, its keys joined by slashes; leaves without numbers are
        left out.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; the message says what exists instead.
        CorruptionError: Stored data is missing or damaged.

    Example:
        >>> orbit_ckpt.save("run/step_7", {"w": np.array([1.0, 2.0, np.nan])})
        >>> found = orbit_ckpt.statistics("run/step_7")["w"]
        >>> found.max, found.mean, found.nans
        (2.0, 1.5, 1)
    """
    check_int("max_bytes", max_bytes, least=1)
    check_callable("progress", progress, "Give one that takes the bytes done and all of them.")
    check_executor(executor)
    leaves = open_leaves(path, only=only, skip=skip, reader=reader)
    found = measure_leaves(leaves, max_bytes, progress, executor=executor)
    return {join_name(keys): one for keys, one in found.items() if one is not None}


def open_leaves(
    path: PathLike,
    *,
    only: Patterns = None,
    skip: Patterns = None,
    reader: Format | None = None,
) -> dict[NamePath, object]:
    """Return leaves by keys: arrays as `LazyArray`, which use no device until `get` is called."""
    flat = flatten(load(path, only=only, skip=skip, lazy=True, reader=reader))
    return dict(zip(flat.names, flat.values, strict=True))


def statistics_of(
    value: object,
    max_bytes: int,
    advance: Callable[[int], object],
    damage: list[CorruptionError] | None = None,
) -> ArrayStatistics | None:
    """Return the statistics of a leaf, None if it has no numbers.

    Args:
        value: A result of `open_leaves`.
        max_bytes: Approximate number of bytes to hold at once.
        advance: Called with the size in bytes of each block once it is measured.
        damage: Receives the errors of damaged chunks, which the statistics then leave out; without
            it the first one is raised.
    """
    if not isinstance(value, LazyArray):
        host = as_host(value)
        return None if host is None else measure(host)
    if value.leaf.key_impl is not None:
        return None
    found = ArrayStatistics()
    for chunk in _chunks(value.leaf):
        part = ArrayStatistics()
        try:
            for block in _blocks(value.leaf, chunk, max_bytes):
                part = part.merge(measure(block))
                advance(block.nbytes)
            found = found.merge(part)  # a streamed chunk is known to be intact at its end
        except CorruptionError as error:
            if damage is None:
                raise
            damage.append(error)
    return found


def as_host(value: object) -> HostArray | None:
    """Convert one or several numbers to an array; return None for anything else."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        host = np.asarray(cast(object, value))
        return host if storable(host.dtype) else None
    return None


def blocks_of(leaf: LazyLeaf, max_bytes: int) -> Iterator[HostArray]:
    """Yield all values of an array in blocks, reading each chunk once."""
    for chunk in _chunks(leaf):
        yield from _blocks(leaf, chunk, max_bytes)


def _chunks(leaf: LazyLeaf) -> Iterator[ChunkToMeasure]:
    """Yield the chunks of an array."""
    read = leaf.read
    for index in chunk_indices(whole(leaf.shape), read.layout.chunk_shape):
        yield ChunkToMeasure(read, index, leaf.logical)


def _blocks(leaf: LazyLeaf, chunk: ChunkToMeasure, max_bytes: int) -> Iterator[HostArray]:
    """Yield the values of one chunk in blocks, reading it once."""
    with leaf.directory.reading(leaf.info.label):
        yield from chunk_blocks(load_batch_of(leaf.info).reader, chunk, max_bytes)


def measure_leaves(
    values: Mapping[NamePath, object],
    max_bytes: int,
    progress: Callable[[int, int], object] | None = None,
    *,
    damage: dict[NamePath, list[CorruptionError]] | None = None,
    executor: Executor | None = None,
) -> dict[NamePath, ArrayStatistics | None]:
    """Return the statistics of leaves by keys, None for those without numbers.

    Args:
        values: Results of `open_leaves`.
        max_bytes: Approximate number of bytes of values to hold at once.
        progress: Called with the bytes measured so far and their total.
        damage: Receives the errors of damaged chunks, which the statistics then leave out; without
            it the first one is raised.
        executor: Where to read and measure; None for threads of this process.
    """
    block = max(1, max_bytes // (_THREADS * COPIES))
    stored = {
        keys: value.leaf
        for keys, value in values.items()
        if isinstance(value, LazyArray) and value.leaf.key_impl is None
    }
    total = sum(math.prod(leaf.shape) * leaf.logical.itemsize for leaf in stored.values())
    done = 0
    lock, stopped = Lock(), Event()

    def advance(nbytes: int) -> None:
        nonlocal done
        if stopped.is_set():
            raise CancelledError
        with lock:
            done += nbytes
            if progress is not None:
                progress(done, total)

    if executor is not None:
        return _measure_there(values, stored, block, executor, advance, damage)
    found: dict[NamePath, list[CorruptionError]] = {keys: [] for keys in values}
    with ThreadPoolExecutor(_THREADS) as pool:
        futures = {
            keys: pool.submit(
                statistics_of, value, block, advance, None if damage is None else found[keys]
            )
            for keys, value in values.items()
        }
        try:
            return {keys: future.result() for keys, future in futures.items()}
        finally:
            if damage is not None:
                damage.update((keys, errors) for keys, errors in found.items() if errors)
            stopped.set()  # after an error or an interrupt the other threads end soon
            pool.shutdown(wait=False, cancel_futures=True)


def _measure_there(
    values: Mapping[NamePath, object],
    stored: Mapping[NamePath, LazyLeaf],
    block: int,
    executor: Executor,
    advance: Callable[[int], object],
    damage: dict[NamePath, list[CorruptionError]] | None,
) -> dict[NamePath, ArrayStatistics | None]:
    measured = run_sync(measure_in_workers(stored, executor, max_bytes=block, advance=advance))
    found: dict[NamePath, ArrayStatistics | None] = {}
    for keys, value in values.items():
        if keys not in measured:
            found[keys] = statistics_of(value, block, advance)
            continue
        found[keys], errors = measured[keys]
        if errors and damage is None:
            raise errors[0]
        if errors and damage is not None:
            damage[keys] = errors
    return found

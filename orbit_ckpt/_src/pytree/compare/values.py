"""Compare the values of the leaves of two stored trees, a bounded number of bytes at a time.

Only elements decide equality. Equal chunk checksums prove nothing: a crc32c has 32 bits, so one in
four billion pairs of different chunks shares it, and a comparison must find just that pair. The
checksum only shows that a chunk is what was written.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from typing import cast

import jax
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.compare import (
    EXACT,
    Comparison,
    ValueChange,
    choose_arithmetic,
    compare_values,
)
from orbit_ckpt._src.arrays.dtypes import HostArray, is_prng_dtype, storable
from orbit_ckpt._src.arrays.slices import Region, whole
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.metadata.schema import LeafRecord
from orbit_ckpt._src.pytree.compare.array_pairs import (
    ArrayPair,
    PairPart,
    part_nbytes,
    parts_of_pairs,
    stored_arrays,
)
from orbit_ckpt._src.pytree.compare.distributed import DistributedComparison
from orbit_ckpt._src.pytree.compare.report import naming_checkpoint
from orbit_ckpt._src.pytree.compare.units import PartToCompare
from orbit_ckpt._src.pytree.restore.leaves import StoredLeaves, read_leaves
from orbit_ckpt._src.runtime.limiter import batched
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.runtime.read_count import current_read_count
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.region_stream import RegionStream
from orbit_ckpt._src.tree.flatten import is_leaf_node
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import RestoreArgs
from orbit_ckpt._src.type_handlers.prng import key_data

_SHARE_BYTES = 1 << 22
"""Smaller comparisons are not worth a thread of their own."""

_OBJECTS = 256
"""Leaves of other kinds held at once."""


class RecordPair(Struct, frozen=True, gc=False):
    """One leaf in both trees."""

    a: LeafRecord
    b: LeafRecord


class Requests(Struct, frozen=True):
    """What a comparison of values computes, and whom it tells.

    Attributes:
        how: Tolerance, and what else to compute.
        progress: Called with the bytes compared so far and their total.
        damage: Receives the errors of damaged leaves by name, which then do not end the comparison.
        executor: Where to read and compare arrays; None for threads of this process.
    """

    how: Comparison = EXACT
    progress: Callable[[int, int], object] | None = None
    damage: dict[NamePath, CorruptionError] | None = None
    executor: Executor | None = None


async def compare_leaves(
    a: StoredLeaves,
    b: StoredLeaves,
    pairs: Sequence[RecordPair],
    *,
    max_bytes: int,
    requests: Requests,
) -> dict[NamePath, ValueChange]:
    """Return the differences of leaf values, by names.

    Args:
        a: The leaves of the first tree.
        b: Those of the second.
        pairs: The leaves to compare; arrays must have equal shapes, and both or none be keys.
        max_bytes: Approximate limit of bytes held at once. Exceptions are chunks that only
            TensorStore can decode, which are held whole, and compressed ones that do not fit: up to
            a megabyte for each open one.
        requests: What to compute, and whom to tell.

    Raises:
        CorruptionError: A chunk is missing or damaged, and nobody collects damage.
    """
    window_bytes = max(1, max_bytes // 2)  # the rest is for reading, besides its results
    arrays: list[ArrayPair] = []
    objects: list[RecordPair] = []
    firsts = stored_arrays(a, [pair.a for pair in pairs])
    seconds = stored_arrays(b, [pair.b for pair in pairs])
    count = current_read_count()
    if count is not None:
        readers = a.batch.reader, b.batch.reader
        count.add(lambda: sum(reader.bytes_read for reader in readers))
        if count.wants_total:
            stored = [*firsts.values(), *seconds.values()]
            count.total += sum(one.reader.cost(one.read).stored for one in stored)
    for pair in pairs:
        first, second = firsts.get(pair.a.names), seconds.get(pair.b.names)
        if first is None or second is None:
            objects.append(pair)
        else:
            arrays.append(ArrayPair.of(pair.a.names, first, second, window_bytes, requests.how))
    found = await _compare_objects(a, b, objects, requests)
    done, total = 0, sum(pair.nbytes for pair in arrays)

    def advance(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if requests.progress is not None:
            requests.progress(done, total)

    def add(names: NamePath, change: ValueChange) -> None:
        known = found.get(names)
        found[names] = change if known is None else known.merge(change)

    streamed = [PairPart(pair, whole(pair.a.layout.shape)) for pair in arrays if pair.block is None]
    parts = parts_of_pairs((pair for pair in arrays if pair.block is not None), window_bytes)
    if requests.executor is not None:
        every = [*parts, *streamed]
        results = await _compare_there(a, b, every, window_bytes // 2, requests, advance)
        for part, result in zip(every, results, strict=True):
            with _collecting(requests.damage, part.pair.names):
                if isinstance(result, CorruptionError):
                    raise result
                add(part.pair.names, result)
        return found
    for window, nbytes in batched(parts, part_nbytes, window_bytes):
        for part, change in await _compare_intact(a, b, window, requests.damage):
            add(part.pair.names, change)
        advance(nbytes)
    for pair in (part.pair for part in streamed):
        with _collecting(requests.damage, pair.names):
            found[pair.names] = await _compare_streamed(a, b, pair, window_bytes // 2)
        advance(pair.nbytes)
    return found


async def _compare_there(
    a: StoredLeaves,
    b: StoredLeaves,
    parts: Sequence[PairPart],
    stream_bytes: int,
    requests: Requests,
    advance: Callable[[int], object],
) -> list[ValueChange | CorruptionError]:
    """Compare parts in the workers of the executor, and here what only this process can read."""
    executor = cast(Executor, requests.executor)
    readers, paths = (a.batch.reader, b.batch.reader), (a.source.path, b.source.path)
    job = DistributedComparison(executor, readers, paths)
    count = current_read_count()
    if count is not None:
        count.add(lambda: job.bytes_read)
    units = [part.for_other_process(stream_bytes) for part in parts]
    pairs = {id(unit): part for unit, part in zip(units, parts, strict=True)}

    async def here(unit: PartToCompare) -> ValueChange | CorruptionError:
        part = pairs[id(unit)]
        try:
            if part.pair.block is None:
                return await _compare_streamed(a, b, part.pair, stream_bytes)
            return (await _compare_window(a, b, [part]))[0]
        except CorruptionError as error:
            return error

    return await job.run(units, here, advance)


async def _compare_intact(
    a: StoredLeaves,
    b: StoredLeaves,
    window: Sequence[PairPart],
    damage: dict[NamePath, CorruptionError] | None,
) -> list[tuple[PairPart, ValueChange]]:
    """Compare parts of both trees; leave out damaged ones if damage is collected."""
    try:
        return list(zip(window, await _compare_window(a, b, window), strict=True))
    except CorruptionError:
        if damage is None:
            raise
    found: list[tuple[PairPart, ValueChange]] = []
    for part in window:
        with _collecting(damage, part.pair.names):
            found.append((part, (await _compare_window(a, b, [part]))[0]))
    return found


@contextlib.contextmanager
def _collecting(damage: dict[NamePath, CorruptionError] | None, names: NamePath) -> Generator[None]:
    """Record that a leaf is damaged instead of raising it, if damage is collected."""
    try:
        yield
    except CorruptionError as error:
        if damage is None:
            raise
        damage.setdefault(names, error)


async def _compare_window(
    a: StoredLeaves, b: StoredLeaves, window: Sequence[PairPart]
) -> list[ValueChange]:
    """Read parts of both trees and compare them."""
    firsts, seconds = await run_all(
        [
            _read(a, [part.pair.a.part(part.region) for part in window]),
            _read(b, [part.pair.b.part(part.region) for part in window]),
        ]
    )

    def compare(start: int, parts: Sequence[PairPart]) -> list[ValueChange]:
        return [
            part.pair.form.compare(firsts[i], seconds[i], part.region)
            for i, part in enumerate(parts, start)
        ]

    shares = [share for share, _ in batched(window, part_nbytes, _SHARE_BYTES)]
    starts = np.cumsum([0, *map(len, shares)]).tolist()
    results = await run_all(
        asyncio.to_thread(compare, start, share)
        for start, share in zip(starts, shares, strict=False)
    )
    return [change for result in results for change in result]


async def _read(stored: StoredLeaves, reads: Sequence[ArrayRead]) -> list[HostArray]:
    with naming_checkpoint(stored.source.path):
        return [host for (host,) in await stored.batch.reader.read(reads)]


async def _compare_streamed(
    a: StoredLeaves, b: StoredLeaves, pair: ArrayPair, max_bytes: int
) -> ValueChange:
    """Compare an array whose chunks do not fit the budget, or not together."""
    first = RegionStream(pair.a.reader, pair.a.read)
    second = RegionStream(pair.b.reader, pair.b.read)

    def read(stored: StoredLeaves, stream: RegionStream, region: Region) -> HostArray:
        with naming_checkpoint(stored.source.path):
            return stream.next(region)

    change = ValueChange(0)
    for region in pair.form.rows(pair.a.layout.shape, max_bytes, pair.itemsize):
        x, y = await run_all(
            [
                asyncio.to_thread(read, a, first, region),
                asyncio.to_thread(read, b, second, region),
            ]
        )
        change = change.merge(await asyncio.to_thread(pair.form.compare, x, y, region))
    return change


async def _compare_objects(
    a: StoredLeaves, b: StoredLeaves, pairs: Sequence[RecordPair], requests: Requests
) -> dict[NamePath, ValueChange]:
    """Compare leaves that are not stored arrays: strings, values of other handlers."""
    found: dict[NamePath, ValueChange] = {}
    for first in range(0, len(pairs), _OBJECTS):
        group = pairs[first : first + _OBJECTS]
        try:
            found |= await _compare_group(a, b, group, requests.how)
        except CorruptionError:
            if requests.damage is None:
                raise
            for pair in group:
                with _collecting(requests.damage, pair.a.names):
                    found |= await _compare_group(a, b, [pair], requests.how)
    return found


async def _compare_group(
    a: StoredLeaves, b: StoredLeaves, group: Sequence[RecordPair], how: Comparison
) -> dict[NamePath, ValueChange]:
    xs, ys = await run_all(
        [
            _read_objects(a, [pair.a for pair in group]),
            _read_objects(b, [pair.b for pair in group]),
        ]
    )
    return {pair.a.names: _compare_pair(xs[pair.a.names], ys[pair.b.names], how) for pair in group}


async def _read_objects(
    stored: StoredLeaves, records: Sequence[LeafRecord]
) -> dict[NamePath, object]:
    args = {names: RestoreArgs(restore_type=np.ndarray) for names in stored_arrays(stored, records)}
    with naming_checkpoint(stored.source.path):
        return await read_leaves(stored, records, args)


def _compare_pair(x: object, y: object, how: Comparison) -> ValueChange:
    if is_leaf_node(x) and jax.tree.structure(x) == jax.tree.structure(y):
        pairs = zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
        parts = [_compare_pair(one, other, how) for one, other in pairs]
        return functools.reduce(ValueChange.merge, parts, ValueChange(0))
    first, second = _as_array(x), _as_array(y)
    if first is not None and second is not None and first.shape == second.shape:
        arithmetic = choose_arithmetic(first.dtype, second.dtype)
        if arithmetic is not None:
            return compare_values(first, second, arithmetic, how=how)
    try:
        is_same = bool(x == y)
    except Exception:  # noqa: BLE001 - arbitrary values; incomparable ones are not equal
        is_same = False
    return ValueChange(1) if is_same else ValueChange(1, 1, a=x, b=y, has_same_bits=False)


def _as_array(value: object) -> HostArray | None:
    """Convert numbers to an array; None for anything else."""
    if isinstance(value, jax.Array):
        value = key_data(value) if is_prng_dtype(value.dtype) else value
    elif isinstance(value, bytes):
        value = np.frombuffer(value, np.uint8)
    elif not isinstance(value, np.ndarray | np.generic | int | float | complex):
        return None
    host = cast(HostArray, np.asarray(cast(object, value)))
    return host if storable(host.dtype) else None

"""Commands that print statistics and values, read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event, Lock
from typing import cast

import click
import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray, storable
from orbit_ckpt._src.arrays.slices import Region, chunk_indices, chunk_region, split_by_rows, whole
from orbit_ckpt._src.arrays.statistics import ArrayStatistics, measure
from orbit_ckpt._src.checkpointer.api import load
from orbit_ckpt._src.cli.health import record_not_finite
from orbit_ckpt._src.cli.inspect import Leaf, list_leaves
from orbit_ckpt._src.cli.output import echo, human_number, print_json
from orbit_ckpt._src.cli.readers import parse_reader
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import find_checkpoint
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.storage.path import PathLike
from orbit_ckpt._src.storage.region_stream import RegionStream
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyLeaf

_THREADS = 4
COPIES = 4
"""What is held of a block: as stored, as its dtype, as float64 and a mask."""

_DAMAGE = 8
"""Maximum number of damaged chunks to list."""


def open_leaves(path: PathLike, reader: Format | None = None) -> dict[NamePath, object]:
    """Return leaves by keys: arrays as `LazyArray`, which use no device until `get` is called."""
    flat = flatten(load(path, lazy=True, reader=reader))
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


def _chunks(leaf: LazyLeaf) -> Iterator[Region]:
    """Yield the boxes of an array's chunks; the last ones may exceed the array."""
    shape = leaf.read.layout.chunk_shape
    for index in chunk_indices(whole(leaf.shape), shape):
        yield chunk_region(index, shape)


def _blocks(leaf: LazyLeaf, chunk: Region, max_bytes: int) -> Iterator[HostArray]:
    """Yield the values of one chunk in blocks, reading it once."""
    layout = leaf.read.layout
    reader = load_batch_of(leaf.info).reader
    region = whole(leaf.shape).intersect(chunk)
    if region is None:
        return
    if region == chunk or layout.chunk_nbytes <= max_bytes or not reader.can_stream(layout):
        yield from leaf.blocks(region, max_bytes)
        return
    # a chunk that exceeds the array and the limit: stream through it once
    elements = max(1, max_bytes // layout.dtype.itemsize)
    with leaf.directory.reading(leaf.info.label):
        stream = RegionStream(reader, leaf.read)
        for part in split_by_rows(region, (1,) * len(region.shape), elements):
            yield stream.next(part).view(leaf.logical)


def stats(
    path: str,
    only: Sequence[str],
    fail_on_nan: bool,
    memory: int,
    reader: str | None,
    as_json: bool,
) -> None:
    """Print minimum, maximum, mean, L2 norm and counts of NaN and Inf of every leaf.

    Exit with 1 if a chunk is damaged; the statistics leave it out.
    """
    known = parse_reader(reader)
    root = find_checkpoint(path, reader=known)
    leaves = list_leaves(root, only, known)
    damage: dict[NamePath, list[CorruptionError]] = {}
    with progress_bar("Reading") as progress:
        found = measure_all(root, leaves, memory * 10**6, progress, reader=known, damage=damage)
    bad = [leaf.name for leaf in leaves if (s := found[leaf.keys]) and s.nans + s.infs]
    if bad or not (only or damage):
        record_not_finite(root, len(bad))
    if as_json:
        rows = [
            {
                "name": leaf.name,
                **statistics_fields(found[leaf.keys]),
                "damage": [str(error) for error in damage.get(leaf.keys, ())],
            }
            for leaf in leaves
        ]
        print_json("stats", path=root, leaves=rows, not_finite=bad)
    else:
        _print_statistics(leaves, found, damage)
        if bad:
            echo(f"not finite: {shorten_list(bad, 8)}", style="yellow")
        print_damage([error for errors in damage.values() for error in errors])
    if damage or (fail_on_nan and bad):
        raise click.exceptions.Exit(1)


def _print_statistics(
    leaves: Sequence[Leaf],
    found: Mapping[NamePath, ArrayStatistics | None],
    damage: Mapping[NamePath, Sequence[CorruptionError]],
) -> None:
    header = ["leaf", "type", "min", "max", "mean", "l2", "nan", "inf", "problem"]
    cells: list[list[str]] = []
    styles: dict[int, str] = {}
    for i, leaf in enumerate(leaves):
        statistics, problem = found[leaf.keys], ""
        if statistics is not None and statistics.nans + statistics.infs:
            problem, styles[i] = "not finite", "yellow"
        if leaf.keys in damage:
            problem, styles[i] = "damaged", "red"
            statistics = statistics if statistics is not None and statistics.size else None
        cells.append([leaf.name, leaf.description, *_cells(statistics), problem])
    print_table(header, cells, right=set(header[2:-1]), styles=styles)


def print_damage(errors: Sequence[CorruptionError]) -> None:
    """Print what is damaged, and that the rest is complete."""
    for error in errors[:_DAMAGE]:
        echo(f"damaged: {error}", style="red")
    if len(errors) > _DAMAGE:
        echo(f"... and {len(errors) - _DAMAGE} more; `verify` lists all", style="red")


def measure_all(
    path: PathLike,
    leaves: Sequence[Leaf],
    max_bytes: int,
    progress: Callable[[int, int], None],
    *,
    reader: Format | None = None,
    damage: dict[NamePath, list[CorruptionError]] | None = None,
) -> dict[NamePath, ArrayStatistics | None]:
    """Return the statistics of leaves by keys.

    Args:
        path: The checkpoint.
        leaves: The leaves to measure.
        max_bytes: Approximate number of bytes of values to hold at once.
        progress: Called with the bytes measured so far and their total.
        reader: The format to read, None to detect it.
        damage: Receives the errors of damaged chunks, which the statistics then leave out; without
            it the first one is raised.
    """
    values = open_leaves(path, reader)
    block = max(1, max_bytes // (_THREADS * COPIES))
    total = sum(leaf.nbytes for leaf in leaves)
    done = 0
    lock, stopped = Lock(), Event()

    def advance(nbytes: int) -> None:
        nonlocal done
        if stopped.is_set():
            raise CancelledError
        with lock:
            done += nbytes
            progress(done, total)

    found: dict[NamePath, list[CorruptionError]] = {leaf.keys: [] for leaf in leaves}
    with ThreadPoolExecutor(_THREADS) as pool:
        futures = {
            leaf.keys: pool.submit(
                statistics_of,
                values[leaf.keys],
                block,
                advance,
                None if damage is None else found[leaf.keys],
            )
            for leaf in leaves
        }
        try:
            return {keys: future.result() for keys, future in futures.items()}
        finally:
            if damage is not None:
                damage.update((keys, errors) for keys, errors in found.items() if errors)
            stopped.set()  # after an error or an interrupt the other threads end soon
            pool.shutdown(wait=False, cancel_futures=True)


def statistics_fields(found: ArrayStatistics | None) -> dict[str, object]:
    """Return statistics as JSON fields; all null for a leaf without numbers."""
    names = ("size", "min", "max", "mean", "l2", "nans", "infs")
    return {name: None if found is None else getattr(found, name) for name in names}


def _cells(found: ArrayStatistics | None) -> list[str]:
    if found is None:
        return [""] * 6
    numbers = [human_number(n) for n in (found.min, found.max, found.mean, found.l2)]
    return [*numbers, str(found.nans), str(found.infs)]

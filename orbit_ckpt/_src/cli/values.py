"""Commands that print statistics and values, read block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event, Lock
from typing import cast

import numpy as np
import typer

from orbit_ckpt._src.arrays.dtypes import HostArray, storable
from orbit_ckpt._src.arrays.slices import chunk_indices, chunk_region, split_by_rows, whole
from orbit_ckpt._src.arrays.statistics import ArrayStatistics, measure
from orbit_ckpt._src.checkpointer.api import load
from orbit_ckpt._src.cli.inspect import Leaf, choose, list_leaves
from orbit_ckpt._src.cli.output import (
    echo,
    human_bytes,
    human_number,
    print_json,
    print_table,
    progress_bar,
)
from orbit_ckpt._src.cli.readers import parse_reader
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.region_stream import RegionStream
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyLeaf

_THREADS = 4
_COPIES = 4
"""What is held of a block: as stored, as its dtype, as float64 and a mask."""

_SHOWN = 200
_WIDTH = 110


def open_leaves(path: str, reader: Format | None = None) -> dict[NamePath, object]:
    """Return leaves by keys: arrays as `LazyArray`, which use no device until `get` is called."""
    flat = flatten(load(path, lazy=True, reader=reader))
    return dict(zip(flat.names, flat.values, strict=True))


def statistics_of(
    value: object, max_bytes: int, advance: Callable[[int], object]
) -> ArrayStatistics | None:
    """Return the statistics of a leaf, None if it has no numbers.

    Args:
        value: A result of `open_leaves`.
        max_bytes: Approximate number of bytes to hold at once.
        advance: Called with the size in bytes of each block once it is measured.
    """
    if isinstance(value, LazyArray):
        if value.leaf.key_impl is not None:
            return None
        found = ArrayStatistics()
        for block in _blocks(value.leaf, max_bytes):
            found = found.merge(measure(block))
            advance(block.nbytes)
        return found
    host = as_host(value)
    return None if host is None else measure(host)


def as_host(value: object) -> HostArray | None:
    """Convert one or several numbers to an array; return None for anything else."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        host = np.asarray(cast(object, value))
        return host if storable(host.dtype) else None
    return None


def _blocks(leaf: LazyLeaf, max_bytes: int) -> Iterator[HostArray]:
    """Yield all values of an array in blocks, reading each chunk once."""
    layout = leaf.read.layout
    reader = load_batch_of(leaf.info).reader
    everything = whole(leaf.shape)
    for index in chunk_indices(everything, layout.chunk_shape):
        box = chunk_region(index, layout.chunk_shape)
        region = everything.intersect(box)
        if region is None:
            continue
        is_small = layout.chunk_nbytes <= max_bytes
        if region == box or is_small or not reader.can_stream(layout):
            yield from leaf.blocks(region, max_bytes)
            continue
        # a chunk that exceeds the array and the limit: stream through it once
        elements = max(1, max_bytes // layout.dtype.itemsize)
        with leaf.directory.reading(leaf.info.label):
            stream = RegionStream(reader, leaf.read)
            for part in split_by_rows(region, (1,) * len(region.shape), elements):
                yield stream.next(part).view(leaf.logical)


def stats(
    path: str,
    patterns: list[str],
    fail_on_nan: bool,
    memory: int,
    reader: str | None,
    as_json: bool,
) -> None:
    """Print minimum, maximum, mean, L2 norm and counts of NaN and Inf of every leaf."""
    known = parse_reader(reader)
    leaves = list_leaves(path, patterns, known)
    with progress_bar("Reading") as progress:
        found = measure_all(path, leaves, memory * 10**6, progress, reader=known)
    bad = [leaf.name for leaf in leaves if (s := found[leaf.keys]) and s.nans + s.infs]
    if as_json:
        rows = [{"name": leaf.name, **statistics_fields(found[leaf.keys])} for leaf in leaves]
        print_json("stats", path=resolve_path(path), leaves=rows, not_finite=bad)
    else:
        header = ["leaf", "type", "min", "max", "mean", "l2", "nan", "inf"]
        cells = [[leaf.name, leaf.description, *_cells(found[leaf.keys])] for leaf in leaves]
        print_table(header, cells, right=set(header[2:]))
        if bad:
            echo(f"not finite: {shorten_list(bad, 8)}", style="red")
    if fail_on_nan and bad:
        raise typer.Exit(1)


def measure_all(
    path: str,
    leaves: Sequence[Leaf],
    max_bytes: int,
    progress: Callable[[int, int], None],
    *,
    reader: Format | None = None,
) -> dict[NamePath, ArrayStatistics | None]:
    """Return the statistics of leaves by keys.

    Args:
        path: The checkpoint.
        leaves: The leaves to measure.
        max_bytes: Approximate number of bytes of values to hold at once.
        progress: Called with the bytes measured so far and their total.
        reader: The format to read, None to detect it.
    """
    values = open_leaves(path, reader)
    block = max(1, max_bytes // (_THREADS * _COPIES))
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

    with ThreadPoolExecutor(_THREADS) as pool:
        futures = {
            leaf.keys: pool.submit(statistics_of, values[leaf.keys], block, advance)
            for leaf in leaves
        }
        try:
            return {keys: future.result() for keys, future in futures.items()}
        finally:
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


def show(path: str, leaf: str, memory: int, reader: str | None, as_json: bool) -> None:
    """Print one leaf: its metadata, its statistics, and the values in its corners."""
    form = parse_reader(reader)
    leaves = list_leaves(path, reader=form)
    same = [found for found in leaves if found.name == leaf]
    if not same:
        names = choose([found.name for found in leaves], [leaf])  # the error lists what exists
        same = [found for found in leaves if [found.name] == names]
    if not same:
        raise ValueError(f"{leaf!r} is a pattern; give the name of one leaf.")
    if len(same) > 1:
        keys = " and ".join(str(list(found.keys)) for found in same)
        raise ValueError(f"{leaf!r} is the name of {len(same)} leaves, with the keys {keys}.")
    (known,) = same
    value = open_leaves(path, form)[known.keys]
    with progress_bar("Reading") as progress:
        done = 0

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress(done, known.nbytes)

        found = statistics_of(value, memory * 10**6 // _COPIES, advance)
    corners = _corners(value)
    if as_json:
        print_json(
            "show",
            path=resolve_path(path),
            leaf=known.fields,
            statistics=statistics_fields(found),
            corners=None if corners is None else corners[1],
            indices=None if corners is None else corners[0],
            value=value if isinstance(value, str) else None,
        )
        return
    _print_leaf(known, value, found)
    if corners is not None:
        echo()
        edge = _edge(corners[1].ndim)
        echo(_array_text(corners[1], edge))


def _print_leaf(leaf: Leaf, value: object, found: ArrayStatistics | None) -> None:
    echo(leaf.name, style="bold")
    rows = [("type", leaf.description)]
    if leaf.shape is not None:
        rows.append(("size", human_bytes(leaf.nbytes)))
    rows += [("sharding", leaf.sharding or ""), ("compression", leaf.compression or "")]
    if leaf.chunk_shape is not None:
        rows.append(("chunks", str(list(leaf.chunk_shape))))
    if found is not None:
        numbers = (("min", found.min), ("max", found.max), ("mean", found.mean), ("l2", found.l2))
        rows += [(name, human_number(number)) for name, number in numbers]
        rows += [("nan", str(found.nans)), ("inf", str(found.infs))]
    if isinstance(value, str | bytes):
        rows.append(("value", f"{value[:_SHOWN]!r}{' ...' if len(value) > _SHOWN else ''}"))
    for name, text in rows:
        if text:
            echo(f"  {name:13}{text}")


def _array_text(corners: HostArray, edge: int) -> str:
    return np.array2string(corners, max_line_width=_WIDTH, precision=5, threshold=0, edgeitems=edge)


def _edge(rank: int) -> int:
    """Return the number of values shown at each end of a dimension."""
    return 3 if rank < 3 else 2 if rank == 3 else 1


def _corners(value: object) -> tuple[list[list[int]], HostArray] | None:
    """Return the values in the corners of an array, and their indices along every dimension.

    A long dimension yields one value more than is shown, so that the gap is visible.
    """
    if isinstance(value, LazyArray):
        if value.leaf.key_impl is not None:
            return None
        shape = value.shape
    else:
        host = as_host(value)
        if host is None:
            return None
        value, shape = host, host.shape
    edge = _edge(len(shape))
    indices = [
        list(range(n)) if n <= 2 * edge + 1 else [*range(edge + 1), *range(n - edge, n)]
        for n in shape
    ]
    return indices, np.asarray(value[np.ix_(*indices)] if shape else value[...])

"""Statistics of the leaves of several steps, and how much each leaf changes between them.

Steps are read side by side, block by block, so that each is read once for its statistics, its
histograms and its distance to the step before it. Damage never stops it: the leaf, or the step, has
a message instead of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Event, Lock

from msgspec import structs

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.slices import whole
from orbit_ckpt._src.arrays.statistics import ArrayStatistics, distance, measure
from orbit_ckpt._src.checkpointer.statistics import as_host, blocks_of, open_leaves
from orbit_ckpt._src.cli.inspect import Leaf, list_leaves
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt._src.type_handlers.lazy import LazyArray, LazyLeaf

_SIDE_BY_SIDE = 8
"""Steps that are open at once, besides the one before them."""

_THREADS = 4
_COPIES = 5
"""What is held of a block: as stored, as its dtype, as float64 twice, and the indices of bins."""

Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Show nothing."""


@dataclass(slots=True)
class MeasuredLeaf:
    """What is known of the values of a leaf in one step.

    Attributes:
        statistics: Its statistics; None if it has no numbers or is damaged.
        change: The L2 norm of the difference to the previous step, over the norm there. None for
            the first step, or if the arrays cannot be compared.
        damage: Why it cannot be read, None if it can.
    """

    statistics: ArrayStatistics | None = None
    change: float | None = None
    damage: str | None = None


@dataclass(slots=True)
class MeasuredStep:
    """What is known of the contents of one step.

    Attributes:
        leaves: Its leaves, from its metadata.
        error: Why it cannot be opened, None if it can.
        stored: Bytes of the chunks of its arrays.
        found: What its values are, for the leaves that were read.
    """

    leaves: Sequence[Leaf] = ()
    error: str | None = None
    stored: dict[NamePath, int] = field(default_factory=dict[NamePath, int])
    found: dict[NamePath, MeasuredLeaf] = field(default_factory=dict[NamePath, MeasuredLeaf])


def list_step(path: Path) -> MeasuredStep:
    """Return the leaves of a step without reading values."""
    try:
        return MeasuredStep(list_leaves(str(path)))
    except (CheckpointError, OSError) as error:
        return MeasuredStep(error=str(error))


def measure_steps(
    paths: Sequence[Path], max_bytes: int, progress: Progress, *, before: Path | None = None
) -> list[MeasuredStep]:
    """Read all values of several steps.

    Args:
        paths: The steps, ascending.
        max_bytes: Approximate number of bytes of values to hold at once.
        progress: Called with the bytes read so far and their total.
        before: The step that the first is compared with, None for none.
    """
    steps = [list_step(path) for path in paths]
    windows: list[tuple[list[Path], list[MeasuredStep]]] = []
    for first in range(0, len(paths), _SIDE_BY_SIDE):
        part = slice(first, first + _SIDE_BY_SIDE)
        previous = paths[first - 1] if first else before
        ahead = [] if previous is None else [previous]
        windows.append(([*ahead, *paths[part]], [*map(list_step, ahead), *steps[part]]))
    total = sum(leaf.nbytes for _, window in windows for step in window for leaf in step.leaves)
    done = 0
    lock = Lock()

    def advance(nbytes: int) -> None:
        nonlocal done
        with lock:
            done += nbytes
            progress(done, total)

    for chosen, window in windows:
        _measure_window(chosen, window, max_bytes, advance)
    return steps


def _measure_window(
    paths: Sequence[Path],
    steps: Sequence[MeasuredStep],
    max_bytes: int,
    advance: Callable[[int], None],
) -> None:
    """Measure steps side by side; the results go to `steps`."""
    values = [_open(path, step) for path, step in zip(paths, steps, strict=True)]
    block = max(1, max_bytes // (_THREADS * _COPIES * len(paths)))
    stopped = Event()

    def count(nbytes: int) -> None:
        if stopped.is_set():
            raise CancelledError
        advance(nbytes)

    def run(keys: NamePath) -> None:
        leaves = [opened.get(keys, _ABSENT) for opened in values]
        found = measure_leaf(leaves, block, count)
        for step, value, one in zip(steps, leaves, found, strict=True):
            if value is not _ABSENT:
                step.found[keys] = one
            if isinstance(value, LazyArray):
                step.stored[keys] = _stored_bytes(value.leaf)

    with ThreadPoolExecutor(_THREADS) as pool:
        names = dict.fromkeys(keys for opened in values for keys in opened)
        futures = [pool.submit(run, keys) for keys in names]
        try:
            for future in futures:
                future.result()
        finally:
            stopped.set()  # after an error or an interrupt the other threads end soon
            pool.shutdown(wait=False, cancel_futures=True)


def _open(path: Path, step: MeasuredStep) -> Mapping[NamePath, object]:
    if step.error is not None:
        return {}
    try:
        return open_leaves(str(path))
    except (CheckpointError, OSError) as error:
        step.error = str(error)
        return {}


def _stored_bytes(leaf: LazyLeaf) -> int:
    whole_array = structs.replace(leaf.read, regions=[whole(leaf.read.layout.shape)])
    return load_batch_of(leaf.info).reader.cost(whole_array).stored


def measure_leaf(
    values: Sequence[object], max_bytes: int, advance: Callable[[int], None]
) -> list[MeasuredLeaf]:
    """Measure a leaf in consecutive steps, block by block.

    Args:
        values: Its values, results of `open_leaves` or `_ABSENT`.
        max_bytes: Size of the blocks.
        advance: Called with the size of every block that is measured.
    """
    streams = [_Stream(value, max_bytes) for value in values]
    statistics = [ArrayStatistics() for _ in values]
    distances: list[float | None] = [0.0] * len(values)
    while True:
        blocks = [stream.next() for stream in streams]
        if all(block is None for block in blocks):
            break
        for i, block in enumerate(blocks):
            if block is not None:
                statistics[i] = statistics[i].merge(measure(block, histogram=True))
                advance(block.nbytes)
            if i:
                distances[i] = _add(distances[i], blocks[i - 1], block)
    found = [
        MeasuredLeaf(one if stream.is_intact else None, damage=stream.damage)
        for one, stream in zip(statistics, streams, strict=True)
    ]
    for i, (a, b) in enumerate(pairwise(found), start=1):
        if a.statistics is not None and b.statistics is not None:
            b.change = _relative(distances[i], a.statistics.l2)
    return found


def _add(norm: float | None, a: HostArray | None, b: HostArray | None) -> float | None:
    """Add the distance of two blocks; None if the arrays have different ones."""
    if norm is None or (a is None and b is None):
        return norm
    if a is None or b is None or a.shape != b.shape:
        return None
    more = distance(a, b)
    return None if more is None else math.hypot(norm, more)


def _relative(norm: float | None, before: float | None) -> float | None:
    if norm is None or before is None:
        return None
    return norm / before if before else math.inf if norm else 0.0


_ABSENT = object()
"""Stands for a leaf that a step does not have."""


class _Stream:
    """The blocks of a leaf, up to the first that is damaged."""

    def __init__(self, value: object, max_bytes: int) -> None:
        self.damage: str | None = None
        self._blocks: Iterator[HostArray] | None = None
        if isinstance(value, LazyArray):
            if value.leaf.key_impl is None:
                self._blocks = blocks_of(value.leaf, max_bytes)
        elif (host := as_host(value)) is not None:
            self._blocks = iter([host])

    @property
    def is_intact(self) -> bool:
        """Whether there are numbers and all could be read."""
        return self._blocks is not None and self.damage is None

    def next(self) -> HostArray | None:
        """Return the next block, None at the end."""
        if not self.is_intact or self._blocks is None:
            return None
        try:
            return next(self._blocks, None)
        except (CheckpointError, OSError) as error:
            self.damage = str(error)
            return None

"""Run contenders alternately."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import memory
from benchmarks.contenders import Settings, UnsupportedTree
from benchmarks.messages import Measure, Measured, Prepare, Prepared
from benchmarks.process import ContenderError, WorkerDiedError, WorkerProcess, start_worker
from benchmarks.results import Disk, Group, Row
from benchmarks.storage import Storage
from benchmarks.trees import TREES


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark run.

    Attributes:
        trees: Names of trees.
        contenders: Names of contenders.
        operations: Names of operations, `save` first.
        storages: Places to save to.
        rounds: Number of counted rounds.
        small: Whether to do a single round with scaled-down trees, only to compare values.
        compression: Whether to compress; None to leave it to each tree.
        memory_limit_gb: Limit for the contenders that have one.
        seed: Seed of the random numbers.
        timeout_s: Limit for one operation.
    """

    trees: Sequence[str]
    contenders: Sequence[str]
    operations: Sequence[str]
    storages: Sequence[Storage]
    rounds: int = 5
    small: bool = False
    compression: bool | None = None
    memory_limit_gb: float | None = None
    seed: int = 0
    timeout_s: float = 600


def run(plan: Plan, report: Callable[[str], None]) -> Iterator[Group]:
    """Run a plan, one tree and storage at a time.

    Args:
        plan: The plan.
        report: Called with a line of progress.
    """
    # Without timing, extra devices do no harm and save restarting workers.
    most = max(TREES[tree].devices for tree in plan.trees) if plan.small else 0
    for devices, trees in groupby(plan.trees, lambda tree: most or TREES[tree].devices):
        with ExitStack() as stack:
            workers = _Workers(stack, devices=devices, timeout_s=plan.timeout_s)
            for tree, storage in product(trees, plan.storages):
                scratch = stack.enter_context(storage.scratch())
                team = _Team(plan, tree, storage, workers)
                team.run(scratch, report)
                yield team.group


class _Workers:
    """The workers by contender, started on demand and restarted if they die."""

    def __init__(self, stack: ExitStack, *, devices: int, timeout_s: float) -> None:
        self._start = partial(start_worker, devices=devices, timeout_s=timeout_s)
        self._stack = stack
        self._running: dict[str, WorkerProcess] = {}

    def start(self, contenders: Iterable[str]) -> None:
        """Start all missing workers."""
        for contender in contenders:
            if contender not in self._running or not self._running[contender].is_alive:
                self._running[contender] = self._stack.enter_context(self._start())

    def __getitem__(self, contender: str) -> WorkerProcess:
        return self._running[contender]


class _Team:
    """The contenders of one tree, and their results so far."""

    def __init__(self, plan: Plan, tree: str, storage: Storage, workers: _Workers) -> None:
        self._plan = plan
        self._tree = TREES[tree]
        self._is_large = self._tree.gigabytes > 1 and not plan.small
        self._storage = storage
        self._workers = workers
        self._rows = {(o, c): Row(o, c) for o, c in product(plan.operations, plan.contenders)}
        compression = self._tree.compression if plan.compression is None else plan.compression
        self.group = Group(tree, storage.label, compression, rows=list(self._rows.values()))

    def run(self, scratch: Path, report: Callable[[str], None]) -> None:
        """Run all rounds."""
        contenders = self._plan.contenders
        shortage = self._shortage()
        if shortage:
            self._close(self.group.rows, unsupported=shortage)
            return
        self._workers.start(contenders)  # all at once, so that they import in parallel
        for contender in contenders:
            self._prepare(contender)
        # The first round warms up, and counts only if it is the only one.
        for number in range(1 if self._plan.small else self._plan.rounds + 1):
            report(f"{self.group.tree} on {self.group.storage}, round {number}")
            first = number % len(contenders)
            self._round(number, [*contenders[first:], *contenders[:first]], scratch)

    def _shortage(self) -> str | None:
        """Return why the tree is too large for this machine, or None."""
        # A tree per worker, up to two more in the active one, and perhaps the checkpoint.
        trees = len(self._plan.contenders) + 2 + self._storage.in_memory
        needed = trees * self._tree.gigabytes * 2**30
        free = memory.available()
        if self._is_large and free is not None and needed > free:
            return f"{needed / 1e9:.0f} GB of memory needed, {free / 1e9:.0f} GB available"
        return None

    def _prepare(self, contender: str) -> None:
        settings = Settings(self.group.compression, self._plan.memory_limit_gb)
        command = Prepare(contender, self.group.tree, self._plan.small, self._plan.seed, settings)
        rows = [row for row in self.group.rows if row.contender == contender]
        try:
            prepared = self._workers[contender].ask(command, Prepared)
        except UnsupportedTree as reason:
            self._close(rows, unsupported=str(reason))
        except ContenderError as error:
            self._close(rows, error=str(error))
        else:
            self.group.leaves, self.group.nbytes = prepared.leaves, prepared.nbytes
            absent = [row for row in rows if row.operation not in prepared.operations]
            self._close(absent, unsupported="no such operation")

    def _round(self, number: int, contenders: Sequence[str], scratch: Path) -> None:
        # One checkpoint at a time where all of them may not fit.
        for together in [[c] for c in contenders] if self._is_large else [contenders]:
            # A failed save may still be writing while its directory is removed.
            with TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as directory:
                for turn in product(self._plan.operations, together):
                    if not self._rows[turn].is_closed:
                        self._measure(self._rows[turn], number, Path(directory))

    def _measure(self, row: Row, number: int, directory: Path) -> None:
        path = directory / f"{row.contender}{'.async' if row.operation == 'save_async' else ''}"
        command = Measure(row.operation, path, verify=number == 0, settle=not self._plan.small)
        try:
            measured = self._workers[row.contender].ask(command, Measured)
        except ContenderError as error:
            row.error = str(error)
            if isinstance(error, WorkerDiedError) or row.operation == "save":
                others = [other for other in self.group.rows if other.contender == row.contender]
                self._close(others, error=f"Not finished, because {row.operation} failed.")
            return
        if number > 0 or self._plan.small:
            row.seconds.append(measured.seconds)
            if measured.peak_bytes is not None:
                row.peak_bytes.append(measured.peak_bytes)
        if row.operation == "save":
            row.disk = Disk.measure(path)
        if row.operation == "save_async":
            shutil.rmtree(path)

    @staticmethod
    def _close(
        rows: Iterable[Row], *, unsupported: str | None = None, error: str | None = None
    ) -> None:
        for row in rows:
            if not row.is_closed:
                row.unsupported, row.error = unsupported, error

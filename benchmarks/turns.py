"""Run contenders alternately, in random order."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from benchmarks import memory
from benchmarks.contenders import Settings, UnsupportedTree
from benchmarks.messages import Measure, Prepare
from benchmarks.operations import OPERATIONS
from benchmarks.process import ContenderError, WorkerDiedError
from benchmarks.results import Disk, Group, Row
from benchmarks.storage import Storage
from benchmarks.trees import TREES
from benchmarks.workers import Workers, start_workers


@dataclass(frozen=True, slots=True)
class Plan:
    """A benchmark run.

    Attributes:
        suite: Its name in the results.
        trees: Names of trees.
        contenders: Names of contenders.
        operations: Names of operations; a tree leaves out those that make no sense for it.
        storages: Places to save to.
        rounds: Number of counted rounds.
        small: Whether to do a single round with scaled-down trees, only to compare values.
        compression: Whether to compress; None to leave it to each tree.
        memory_limit_gb: Limit for the contenders that have one.
        too_slow: Contenders, and trees that would take them minutes.
        seed: Seed of the random data.
        order_seed: Seed of the random order.
        timeout_s: Limit for one operation.
    """

    suite: str
    trees: Sequence[str]
    contenders: Sequence[str]
    operations: Sequence[str]
    storages: Sequence[Storage]
    rounds: int = 5
    small: bool = False
    compression: bool | None = None
    memory_limit_gb: float | None = None
    too_slow: frozenset[tuple[str, str]] = frozenset()
    seed: int = 0
    order_seed: int = 0
    timeout_s: float = 600


def run(
    plan: Plan, report: Callable[[str], None], shared: Workers | None = None
) -> Iterator[Group]:
    """Run a plan.

    Every round goes through the trees, and through the contenders of each, in random order.

    Args:
        plan: The plan.
        report: Called with a line of progress.
        shared: Workers to use; None starts new ones for trees that take turns.
    """
    order = Random(plan.order_seed)  # noqa: S311 - not for secrets
    for trees in _batches(plan):
        devices = max(TREES[tree].devices for tree in trees)
        with nullcontext(shared) if shared else start_workers(devices, plan.timeout_s) as workers:
            teams = [
                _Team(plan, tree, storage, workers, order)
                for tree, storage in product(trees, plan.storages)
            ]
            able = [team for team in teams if team.prepare()]
            # The first round warms up, and counts only if it is the only one.
            for number in range(1 if plan.small else plan.rounds + 1):
                for team in order.sample(able, len(able)):
                    report(f"{team.group.tree} on {team.group.storage}, round {number}")
                    team.round(number)
            yield from (team.group for team in teams)


def turns_of(rows: Sequence[Row], order: Random) -> list[Row]:
    """Return operations in random order, but saves first, because the others need a checkpoint."""
    shuffled = order.sample(rows, len(rows))
    return sorted(shuffled, key=lambda row: row.operation != "save")


def _batches(plan: Plan) -> Iterator[Sequence[str]]:
    """Yield trees that take turns: those of equal numbers of devices, and each large one alone."""
    if plan.small:
        yield plan.trees
        return
    batches: dict[object, list[str]] = {}
    for name in plan.trees:
        tree = TREES[name]
        batches.setdefault(name if tree.is_large else tree.devices, []).append(name)
    yield from batches.values()


class _Team:
    """The contenders of one tree on one storage, and their results so far."""

    def __init__(
        self, plan: Plan, tree: str, storage: Storage, workers: Workers, order: Random
    ) -> None:
        self._plan = plan
        self._tree = TREES[tree]
        self._is_large = self._tree.is_large and not plan.small
        self._storage = storage
        self._workers = workers
        self._order = order
        operations = [name for name in plan.operations if name in self._tree.operations]
        self.group = Group(
            tree,
            storage.label,
            self._tree.compression if plan.compression is None else plan.compression,
            suite=plan.suite,
            memory_limit_gb=plan.memory_limit_gb,
            rows=[Row(o, c) for o, c in product(operations, plan.contenders)],
        )

    def prepare(self) -> bool:
        """Let all workers make the tree; return whether any round makes sense."""
        if shortage := self._shortage():
            self._close(self.group.rows, unsupported=shortage)
            return False
        for contender, tree in self._plan.too_slow:
            if tree == self.group.tree and not self._plan.small:
                self._close(self._rows_of(contender), unsupported="would take minutes")
        able = [c for c in self._plan.contenders if not all(r.is_closed for r in self._rows_of(c))]
        self._workers.start(able)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(self._prepare, able))
        return True

    def round(self, number: int) -> None:
        """Do every operation of every contender once, in random order but saves first."""
        contenders = self._plan.contenders
        parts = [[c] for c in contenders] if self._is_large else [contenders]
        with self._storage.scratch() as scratch:
            # One checkpoint at a time where all of them may not fit.
            for together in self._order.sample(parts, len(parts)):
                # A failed save may still be writing while its directory is removed.
                with TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as directory:
                    rows = [row for row in self.group.rows if row.contender in together]
                    for row in turns_of(rows, self._order):
                        if not row.is_closed:
                            self._measure(row, number, Path(directory))

    def _rows_of(self, contender: str) -> list[Row]:
        return [row for row in self.group.rows if row.contender == contender]

    def _shortage(self) -> str | None:
        """Return why the tree is too large for this machine, or None."""
        # A tree per worker, up to two more in the active one, and perhaps the checkpoint.
        trees = len(self._plan.contenders) + 2 + self._storage.in_memory
        needed = trees * self._tree.gigabytes * 2**30
        free = memory.available()
        if self._is_large and free is not None and needed > free:
            return f"{needed / 1e9:.0f} GB of memory needed, {free / 1e9:.0f} GB available"
        return None

    def _command(self, contender: str) -> Prepare:
        settings = Settings(self.group.compression, self._plan.memory_limit_gb)
        plan, tree = self._plan, self.group.tree
        return Prepare(contender, tree, plan.small, plan.seed, settings, keep=not self._is_large)

    def _prepare(self, contender: str) -> None:
        rows = self._rows_of(contender)
        try:
            prepared = self._workers.prepare(self._command(contender))
        except UnsupportedTree as reason:
            self._close(rows, unsupported=str(reason))
        except ContenderError as error:
            self._close(rows, error=str(error))
        else:
            self.group.leaves, self.group.nbytes = prepared.leaves, prepared.nbytes
            for row in rows:
                row.asked_bytes = prepared.asked.get(row.operation, 0)
            absent = [row for row in rows if row.operation not in prepared.operations]
            self._close(absent, unsupported="no such operation")

    def _measure(self, row: Row, number: int, directory: Path) -> None:
        plan, operation = self._plan, OPERATIONS[row.operation]
        path = directory / f"{row.contender}{'.async' if row.operation == 'save_async' else ''}"
        command = Measure(
            self.group.tree, row.operation, path, verify=number == 0, settle=not plan.small
        )
        if operation.is_save and not self._storage.in_memory:
            os.sync()  # otherwise a save waits for what others wrote
        try:
            measured = self._workers.measure(self._command(row.contender), command)
        except ContenderError as error:
            row.error = str(error)
            if isinstance(error, WorkerDiedError) or row.operation == "save":
                failed = f"Not finished, because {row.operation} failed."
                self._close(self._rows_of(row.contender), error=failed)
            return
        if number > 0 or plan.small:
            row.seconds.append(measured.cost.seconds)
            row.processor_s.append(measured.cost.processor_s)
            if measured.cost.read_bytes is not None:
                row.read_bytes.append(measured.cost.read_bytes)
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

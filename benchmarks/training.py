"""Run the training loops of contenders alternately, in random order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

from benchmarks.contenders import Settings, UnsupportedTree
from benchmarks.messages import Checked, CheckTraining, Prepare, Prepared, PrepareTraining, Train
from benchmarks.process import ContenderError
from benchmarks.results import Laps, Training, TrainingRow
from benchmarks.storage import Storage
from benchmarks.trees import TREES
from benchmarks.workers import Workers, start_workers

_SMALL_STEPS, _SMALL_EVERY = 4, 2


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Training loops to run.

    Attributes:
        loops: Names of trees, and whether the steps donate their arguments.
        contenders: Names of contenders.
        storages: Places to save to; the first is used.
        rounds: Number of rounds, each a run with saves and one without. None is a warm-up: the
            first save is a figure of its own, and steps are compiled before.
        steps: Number of steps of a run.
        every: Number of steps from one save to the next.
        small: Whether to do one short round with scaled-down trees, only to compare values.
        compression: Whether to compress; None to leave it to each tree.
        seed: Seed of the random data.
        order_seed: Seed of the random order.
        timeout_s: Limit for one run.
    """

    loops: Sequence[tuple[str, bool]]
    contenders: Sequence[str]
    storages: Sequence[Storage]
    rounds: int = 3
    steps: int = 100
    every: int = 20
    small: bool = False
    compression: bool | None = None
    seed: int = 0
    order_seed: int = 0
    timeout_s: float = 600


def train(
    plan: TrainingPlan, report: Callable[[str], None], shared: Workers | None = None
) -> Iterator[Training]:
    """Run training loops, one tree after the other.

    Args:
        plan: The plan.
        report: Called with a line of progress.
        shared: Workers to use; None starts new ones for every tree.
    """
    order = Random(plan.order_seed)  # noqa: S311 - not for secrets
    for tree, donate in plan.loops if plan.storages else ():
        with nullcontext(shared) if shared else start_workers(1, plan.timeout_s) as workers:
            loops = _Loops(plan, tree, workers, donate=donate)
            with plan.storages[0].scratch() as scratch:
                loops.prepare(scratch)
                for number in range(1 if plan.small else plan.rounds):
                    how = "donating" if donate else "not donating"
                    report(f"training {tree}, {how}, round {number}")
                    loops.round(order)
                loops.check()
            yield loops.training


class _Loops:
    """The training loops of all contenders on one tree, and their results so far."""

    def __init__(self, plan: TrainingPlan, tree: str, workers: Workers, *, donate: bool) -> None:
        self._plan = plan
        self._workers = workers
        compression = TREES[tree].compression if plan.compression is None else plan.compression
        self._steps = _SMALL_STEPS if plan.small else plan.steps
        self._every = _SMALL_EVERY if plan.small else plan.every
        self.training = Training(
            tree,
            donate,
            plan.storages[0].label,
            compression,
            self._steps,
            rows=[TrainingRow(name, every=self._every) for name in plan.contenders],
        )

    def prepare(self, scratch: Path) -> None:
        """Let all workers make the tree and compile the step."""
        self._workers.start(self._plan.contenders)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(lambda row: self._prepare(row, scratch), self.training.rows))

    def round(self, order: Random) -> None:
        """Let every contender train once with saves and once without, in random order."""
        runs = list(product(self.training.rows, (0, self._every)))
        for row, every in order.sample(runs, len(runs)):
            if not row.is_closed:
                command = Train(self._steps, every, settle=not self._plan.small)
                try:
                    laps = self._workers.ask(row.contender, command, Laps)
                except ContenderError as error:
                    row.error = str(error)
                else:
                    (row.saving if every else row.alone).append(laps)

    def check(self) -> None:
        """Let every contender compare a save with the state that it was given."""
        for row in self.training.rows:
            if not row.is_closed:
                try:
                    self._workers.ask(row.contender, CheckTraining(), Checked)
                except ContenderError as error:
                    row.error = str(error)

    def _prepare(self, row: TrainingRow, scratch: Path) -> None:
        plan, training = self._plan, self.training
        settings = Settings(training.compression)
        tree = Prepare(row.contender, training.tree, plan.small, plan.seed, settings)
        command = PrepareTraining(tree, training.donate, scratch / row.contender)
        try:
            prepared = self._workers.ask(row.contender, command, Prepared)
        except UnsupportedTree as reason:
            row.unsupported = str(reason)
        except ContenderError as error:
            row.error = str(error)
        else:
            training.leaves, training.nbytes = prepared.leaves, prepared.nbytes

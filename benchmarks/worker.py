"""The process of one contender, which executes one command at a time.

`benchmarks.process` starts it with the number of the file descriptor for commands.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import assert_never, cast

import jax

from benchmarks import memory
from benchmarks.clock import Meter
from benchmarks.contenders import Contender, UnsupportedTree, find_contender
from benchmarks.messages import (
    Answer,
    Checked,
    CheckTraining,
    Command,
    Failed,
    Measure,
    Measured,
    Prepare,
    Prepared,
    PrepareTraining,
    Result,
    Train,
    Unsupported,
)
from benchmarks.operations import OPERATIONS, Request
from benchmarks.results import Laps
from benchmarks.trainer import CanTrain, Trainer
from benchmarks.trees import TREES, make_tree, tree_nbytes
from benchmarks.verify import verify

_TOUCHED_PER_BYTE = 2.5
_TOUCHED_AT_LEAST = 2**28
"""Memory to touch before an operation: a multiple of the tree or of what is asked for, whichever is
larger. An operation may fill a file in memory, a copy and a result."""


@dataclass(frozen=True, slots=True)
class _Task:
    """A tree, the contender that stores it, and what is asked of it by operation."""

    tree: object
    nbytes: int
    contender: Contender
    requests: dict[str, Request]

    def describe(self) -> Prepared:
        """Return what the parent must know."""
        return Prepared(
            operations=frozenset(self.requests),
            leaves=len(jax.tree.leaves(self.tree)),
            nbytes=self.nbytes,
            asked={name: request.nbytes for name, request in self.requests.items()},
        )


@dataclass(frozen=True, slots=True)
class _Training:
    """A training loop and the size of its tree."""

    trainer: Trainer
    nbytes: int


class Worker:
    """Answers commands, and turns failures of the contender into answers."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}
        self._training: _Training | None = None

    def answer(self, command: Command) -> Answer:
        """Execute a command and return the answer."""
        try:
            return self._execute(command)
        except UnsupportedTree as reason:
            return Unsupported(str(reason))
        except Exception:  # noqa: BLE001 - the report shows any error of a contender
            return Failed(traceback.format_exc())

    def _execute(self, command: Command) -> Result:
        match command:
            case Prepare():
                return self._prepare(command)
            case Measure():
                return self._measure(command)
            case PrepareTraining():
                return self._prepare_training(command)
            case Train():
                return self._train(command)
            case CheckTraining():
                return self._check_training()
            case _:
                assert_never(command)

    def _prepare(self, command: Prepare) -> Prepared:
        if not command.keep:
            self._tasks.clear()  # two trees may not fit into memory
            memory.settle()
        task = _make(command)
        self._tasks[command.tree] = task
        return task.describe()

    def _measure(self, command: Measure) -> Measured:
        task = self._tasks[command.tree]
        kind, request = OPERATIONS[command.operation], task.requests[command.operation]
        operation: Callable[..., object] = getattr(task.contender, kind.method)
        if command.settle:
            _settle(max(task.nbytes, request.nbytes))
        before = memory.reset_peak()
        meter = Meter()
        result = operation(command.path, *request.arguments)
        if request.expected is not None and kind.array_type is jax.Array:
            jax.block_until_ready(result)
        cost = meter.cost()
        if kind.method == "save_async" and callable(result):
            result()
        after = memory.peak()
        if command.verify and request.expected is not None:
            verify(result, request.expected(), array_type=kind.array_type)
        if before is None or after is None:
            return Measured(cost, peak_bytes=None)
        return Measured(cost, peak_bytes=max(after - before, 0))

    def _prepare_training(self, command: PrepareTraining) -> Prepared:
        task = _make(command.tree)
        if not hasattr(task.contender, "saves"):
            raise UnsupportedTree("has no checkpoint manager")
        contender = cast("CanTrain", task.contender)
        trainer = Trainer(task.tree, contender, command.directory, donate=command.donate)
        self._training = _Training(trainer, task.nbytes)
        return task.describe()

    def _train(self, command: Train) -> Laps:
        training = self._require_training()
        if command.settle:
            _settle(training.nbytes)
        return training.trainer.run(command.steps, command.every)

    def _check_training(self) -> Checked:
        trainer = self._require_training().trainer
        self._training = None
        with closing(trainer):
            trainer.check()
        return Checked()

    def _require_training(self) -> _Training:
        if self._training is None:
            raise RuntimeError("The command to train came before the command to prepare it.")
        return self._training


def _make(command: Prepare) -> _Task:
    """Make a tree and its contender."""
    tree = make_tree(command.tree, seed=command.seed, small=command.small)
    contender = find_contender(command.contender)(tree, command.settings)
    requests = {
        name: OPERATIONS[name].request(tree)
        for name in TREES[command.tree].operations
        if hasattr(contender, OPERATIONS[name].method)
    }
    return _Task(tree, tree_nbytes(tree), contender, requests)


def _settle(nbytes: int) -> None:
    """Make an operation on `nbytes` independent of what was before."""
    memory.settle()
    memory.touch(max(_TOUCHED_AT_LEAST, int(_TOUCHED_PER_BYTE * nbytes)))


def main() -> None:
    """Answer commands until the parent exits."""
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    worker = Worker()
    with Connection(int(sys.argv[1])) as parent:
        jax.devices()  # not timed
        while True:
            try:
                command: Command = parent.recv()
            except EOFError:
                return
            parent.send(worker.answer(command))


if __name__ == "__main__":
    main()

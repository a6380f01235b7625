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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import assert_never

import jax

from benchmarks import memory
from benchmarks.clock import Meter
from benchmarks.contenders import Contender, UnsupportedTree, find_contender
from benchmarks.messages import (
    Answer,
    Command,
    Failed,
    Measure,
    Measured,
    Prepare,
    Prepared,
    Unsupported,
)
from benchmarks.operations import OPERATIONS, Request
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


class Worker:
    """Answers commands, and turns failures of the contender into answers."""

    def __init__(self) -> None:
        self._tasks: dict[str, _Task] = {}

    def answer(self, command: Command) -> Answer:
        """Execute a command and return the answer."""
        try:
            match command:
                case Prepare():
                    return self._prepare(command)
                case Measure():
                    return self._measure(command)
                case _:
                    assert_never(command)
        except UnsupportedTree as reason:
            return Unsupported(str(reason))
        except Exception:  # noqa: BLE001 - the report shows any error of a contender
            return Failed(traceback.format_exc())

    def _prepare(self, command: Prepare) -> Prepared:
        if not command.keep:
            self._tasks.clear()  # two trees may not fit into memory
            memory.settle()
        tree = make_tree(command.tree, seed=command.seed, small=command.small)
        contender = find_contender(command.contender)(tree, command.settings)
        requests = {
            name: OPERATIONS[name].request(tree)
            for name in TREES[command.tree].operations
            if hasattr(contender, OPERATIONS[name].method)
        }
        task = _Task(tree, tree_nbytes(tree), contender, requests)
        self._tasks[command.tree] = task
        return Prepared(
            operations=frozenset(requests),
            leaves=len(jax.tree.leaves(tree)),
            nbytes=task.nbytes,
            asked={name: request.nbytes for name, request in requests.items()},
        )

    def _measure(self, command: Measure) -> Measured:
        task = self._tasks[command.tree]
        kind, request = OPERATIONS[command.operation], task.requests[command.operation]
        operation: Callable[..., object] = getattr(task.contender, kind.method)
        if command.settle:
            memory.settle()
            used = max(task.nbytes, request.nbytes)
            memory.touch(max(_TOUCHED_AT_LEAST, int(_TOUCHED_PER_BYTE * used)))
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

"""The process of one contender, which executes one command at a time.

`benchmarks.process` starts it with the number of the file descriptor for commands.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import assert_never

import jax
import numpy as np

from benchmarks import memory
from benchmarks.contenders import OPERATIONS, Contender, UnsupportedTree, find_contender
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
from benchmarks.trees import make_tree, tree_nbytes
from benchmarks.verify import verify

_ARRAY_TYPES = {"load_jax": jax.Array, "load_renamed": jax.Array, "load_numpy": np.ndarray}


@dataclass(frozen=True, slots=True)
class _Task:
    """A tree and the contender that stores it."""

    tree: object
    contender: Contender


class Worker:
    """Answers commands, and turns failures of the contender into answers."""

    def __init__(self) -> None:
        self._task: _Task | None = None

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
        self._task = None  # two trees may not fit into memory
        memory.settle()
        tree = make_tree(command.tree, seed=command.seed, small=command.small)
        contender = find_contender(command.contender)(tree, command.settings)
        self._task = _Task(tree, contender)
        return Prepared(
            operations=frozenset(name for name in OPERATIONS if hasattr(contender, name)),
            leaves=len(jax.tree.leaves(tree)),
            nbytes=tree_nbytes(tree),
        )

    def _measure(self, command: Measure) -> Measured:
        if self._task is None:
            raise RuntimeError("The command to measure came before the command to prepare a tree.")
        operation: Callable[..., object] = getattr(self._task.contender, command.operation)
        if command.settle:
            _rehearse(operation, command)
            memory.settle()
        before = memory.reset_peak()
        start = time.perf_counter()
        result = operation(command.path)
        if _ARRAY_TYPES.get(command.operation) is jax.Array:
            jax.block_until_ready(result)
        seconds = time.perf_counter() - start
        if command.operation == "save_async" and callable(result):
            result()
        after = memory.peak()
        if command.verify and command.operation in _ARRAY_TYPES:
            verify(result, self._task.tree, array_type=_ARRAY_TYPES[command.operation])
        if before is None or after is None:
            return Measured(seconds, peak_bytes=None)
        return Measured(seconds, peak_bytes=max(after - before, 0))


def _rehearse(operation: Callable[..., object], command: Measure) -> None:
    """Run the operation once before it is timed, so that its memory is available."""
    if _ARRAY_TYPES.get(command.operation) is jax.Array:
        jax.block_until_ready(operation(command.path))
    elif not command.operation.startswith("save"):
        operation(command.path)
    else:
        with TemporaryDirectory(dir=command.path.parent) as directory:
            result = operation(Path(directory) / "rehearsal")
            if callable(result):
                result()


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

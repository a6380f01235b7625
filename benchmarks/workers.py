"""The workers of several contenders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from benchmarks.messages import Command, Measure, Measured, Prepare, Prepared
from benchmarks.process import T, WorkerProcess, start_worker


@contextmanager
def start_workers(devices: int, timeout_s: float) -> Iterator[Workers]:
    """Yield workers, which are stopped at the end of the block.

    Args:
        devices: Number of CPU devices that JAX has in each worker.
        timeout_s: Limit for one operation.
    """
    with ExitStack() as stack:
        yield Workers(partial(start_worker, devices=devices, timeout_s=timeout_s), stack)


@dataclass(frozen=True, slots=True)
class _Running:
    """A worker, and how it prepared for each tree."""

    process: WorkerProcess
    prepared: dict[str, tuple[Prepare, Prepared]] = field(default_factory=dict)


class Workers:
    """The workers by contender, started on demand and restarted if they die."""

    def __init__(
        self, start: Callable[[], AbstractContextManager[WorkerProcess]], stack: ExitStack
    ) -> None:
        self._start, self._stack = start, stack
        self._running: dict[str, _Running] = {}

    def start(self, contenders: Iterable[str]) -> None:
        """Start all missing workers, so that they import in parallel."""
        for contender in contenders:
            running = self._running.get(contender)
            if running is None or not running.process.is_alive:
                process = self._stack.enter_context(self._start())
                self._running[contender] = _Running(process)

    def ask(self, contender: str, command: Command, expected: type[T]) -> T:
        """Send a message to the worker of a contender and return its answer."""
        return self._running[contender].process.ask(command, expected)

    def prepare(self, command: Prepare) -> Prepared:
        """Let a worker make a tree, unless it has just made it."""
        running = self._running[command.contender]
        before, answer = running.prepared.get(command.tree, (None, None))
        if answer is None or before != command:
            answer = self.ask(command.contender, command, Prepared)
            running.prepared[command.tree] = command, answer
        return answer

    def measure(self, prepare: Prepare, command: Measure) -> Measured:
        """Let a worker do an operation, and make the tree first if the worker is a new one."""
        self.start([prepare.contender])
        self.prepare(prepare)
        return self.ask(prepare.contender, command, Measured)

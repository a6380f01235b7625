"""The fixture `chaos`."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from orbit_ckpt.testing.chaos.fork_server import ForkServers
from orbit_ckpt.testing.chaos.points import Result, Sweep
from orbit_ckpt.testing.chaos.scripts import Command, Run, RunningScript, wait_for_all
from orbit_ckpt.testing.hook.faults import Action, Fault, Phase

_TIMEOUT_S = 300.0


class Chaos:
    """Runs scripts in processes of their own, and lets things go wrong in them.

    Attributes:
        environment: Variables for the scripts, in addition to those of this process.
        preload: Modules that a fork server imports once, so that scripts need not import them again;
            `()` to start every script without one.
    """

    def __init__(self, servers: ForkServers, root: Path, test: str) -> None:
        """Make one.

        Args:
            servers: Fork processes.
            root: A directory for the directories of `every_point`.
            test: Name of the test, for messages.
        """
        self.environment: dict[str, str] = {}
        self.preload: tuple[str, ...] = (
            ("jax", "jax.numpy", "orbit_ckpt") if hasattr(os, "fork") else ()
        )
        self._servers = servers
        self._root = root
        self._test = test
        self._armed: dict[int, Fault] = {}
        self._started: list[RunningScript] = []
        self._directories = 0

    @staticmethod
    def kill(at: int = 1, *, phase: Phase | str | None = None, kind: str | None = None, path: str | None = None) -> Fault:
        """Return a fault that kills the process before an operation.

        Args:
            at: Which of the selected operations, from 1.
            phase: Select only those of one phase of a save.
            kind: Select only those of one kind.
            path: Select only those on a path that matches a pattern.
        """
        return Fault(Action.KILL, at, None if phase is None else Phase(phase), kind, path)

    def start(self, script: str | Path, *arguments: object, directory: str | Path, faults: Sequence[Fault] = (), environment: Mapping[str, str] | None = None) -> RunningScript:
        """Start a script.

        Args:
            script: The file.
            arguments: What it finds in `sys.argv`.
            directory: Its working directory. Only storage operations below it count, and those in
                object stores.
            faults: What goes wrong.
            environment: Variables for this script only.
        """
        command = Command(
            Path(script).resolve(),
            tuple(map(str, arguments)),
            Path(directory).resolve(),
            {**os.environ, **self.environment, **(environment or {})},
            tuple(self.preload),
        )
        armed = self._armed.pop(len(self._started), None)
        running = RunningScript(command, [*faults, *([armed] if armed else [])], self._servers)
        self._started.append(running)
        return running

    def run(self, script: str | Path, *arguments: object, directory: str | Path, faults: Sequence[Fault] = (), environment: Mapping[str, str] | None = None, timeout_s: float = _TIMEOUT_S) -> Run:
        """Run a script to its end, whatever that is.

        Args:
            script: The file.
            arguments: What it finds in `sys.argv`.
            directory: Its working directory; see `start`.
            faults: What goes wrong.
            environment: Variables for this script only.
            timeout_s: How long it may take.

        Raises:
            TimeoutError: It takes longer.
        """
        running = self.start(script, *arguments, directory=directory, faults=faults, environment=environment)
        return running.wait(timeout_s)

    def every_point(
        self,
        run: Callable[[Path], object],
        check: Callable[[Result], object],
        *,
        fault: Callable[[int], Fault] | None = None,
        most: int | None = None,
        seed: int = 0,
        process: int = 0,
        most_restarts: int = 1,
    ) -> int:
        """Prove that a program resumes, whichever storage operation a crash comes before.

        The program first runs undisturbed. Then, for each of its operations, it runs from scratch
        in a new directory, is killed right before the operation, and is restarted until it ends.

        Args:
            run: Runs the program in a directory, by `run` or `run_together` of this fixture. A
                program that finds its own checkpoints there has to resume from them.
            check: Called after each of these; raises if the program has not ended as it should.
            fault: Returns what goes wrong at the n-th operation; by default `kill`.
            most: How many points to try; by default all.
            seed: Chooses them.
            process: Which process meets with the fault, in the order in which they start.
            most_restarts: How often the program may be restarted at each point.

        Returns:
            The number of points.

        Raises:
            AssertionError: The program does not end well. It names the operation, and the command
                with which the same happens again.
        """
        sweep = Sweep(self, run, check, fault or self.kill, process, most_restarts, self._test)
        return sweep.every_point(most=most, seed=seed)

    def lives(
        self, directory: Path, run: Callable[[Path], object], faults: Mapping[int, Fault]
    ) -> list[Run]:
        """Start a program once, with faults by process; return how its processes ended.

        Args:
            directory: Where to run it.
            run: The program.
            faults: What goes wrong, by the number of the process.
        """
        self._started = []
        self._armed = dict(faults)
        try:
            run(directory)
            return [running.wait() for running in self._started]
        finally:
            self._armed = {}

    def new_directory(self) -> Path:
        """Return an empty directory for a run."""
        self._directories += 1
        directory = self._root / str(self._directories)
        directory.mkdir()
        return directory

    def close(self) -> None:
        """End all processes that still run."""
        for running in self._started:
            running.kill()


@pytest.fixture(scope="session")
def _chaos_servers() -> Iterator[ForkServers]:  # pyright: ignore[reportUnusedFunction] - pytest finds it
    servers = ForkServers()
    yield servers
    servers.close()


@pytest.fixture
def chaos(
    _chaos_servers: ForkServers, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Chaos]:
    """Run training scripts in processes that meet with faults; see `Chaos`."""
    found = Chaos(_chaos_servers, tmp_path_factory.mktemp("chaos"), request.node.nodeid)
    yield found
    found.close()

"""Run scripts in processes of their own, with the hook installed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orbit_ckpt.testing.chaos.command import PACKAGES, SITE, Command
from orbit_ckpt.testing.chaos.fork_server import ForkServers
from orbit_ckpt.testing.chaos.stalls import StallControl
from orbit_ckpt.testing.hook.faults import VARIABLE, Fault, Plan
from orbit_ckpt.testing.hook.operations import Operation

_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Run:
    """How a script has ended.

    Attributes:
        command: The script.
        status: Its exit status; negative: the signal that has ended it.
        stdout: What it has printed.
        stderr: What it has printed to standard error.
        operations: Its storage operations, in order.
        faults: The operations at which a fault came.
    """

    command: Command = field(repr=False)
    status: int
    stdout: str
    stderr: str = field(repr=False)
    operations: tuple[Operation, ...] = field(repr=False)
    faults: tuple[Operation, ...] = field(repr=False)

    @property
    def was_killed(self) -> bool:
        """Whether the process was ended by SIGKILL."""
        return self.status == -signal.SIGKILL

    def check(self) -> Run:
        """Return this if the script has ended well.

        Raises:
            AssertionError: It has not.
        """
        if self.status:
            raise AssertionError(f"{self.command.shell()}\nended with {self.describe()}")
        return self

    def describe(self) -> str:
        """Return its status, and the end of what it has printed."""
        found = [f"status {self.status}"]
        for name, text in (("stdout", self.stdout), ("stderr", self.stderr)):
            lines = text.rstrip().splitlines()[-15:]
            found += [f"{name}:", *(f"  {line}" for line in lines)] if lines else []
        return "\n".join(found)


class RunningScript:
    """A script in a process of its own."""

    def __init__(self, command: Command, faults: Sequence[Fault], servers: ForkServers) -> None:
        """Start it.

        Args:
            command: The script.
            faults: What it meets with.
            servers: Start the processes that fork.
        """
        self._files = tempfile.TemporaryDirectory(prefix="chaos-")
        folder = Path(self._files.name)
        self._command = command
        self._log = folder / "operations"
        self._outputs = folder / "stdout", folder / "stderr"
        for output in (*self._outputs, self._log):
            output.touch()
        self._stalls = StallControl(folder / "control")
        plan = Plan(str(command.directory), tuple(faults), str(self._log), self._stalls.address)
        variables = {**command.environment, VARIABLE: plan.encode()}
        if command.preload:
            self._process = servers.start(command, variables, self._outputs)
        else:
            self._process = _start(command, variables, self._outputs)
        self._run: Run | None = None

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit status, None while the script runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End the process at once, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait_until_stalled(self, timeout_s: float = 300) -> Operation:
        """Return the operation before which the script waits.

        Args:
            timeout_s: How long it may take to get there.

        Raises:
            TimeoutError: It does not get there.
        """
        return _shown(self._stalls.accept(timeout_s), self._command.directory)

    def release(self) -> None:
        """Let the script go on where it waits."""
        self._stalls.release()

    def wait(self, timeout_s: float = 300) -> Run:
        """Return how the script ends.

        Args:
            timeout_s: How long it may take.

        Raises:
            TimeoutError: It takes longer; it is killed.
        """
        if self._run is not None:
            return self._run
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
            late = f"{self._command.shell()}\nhas not ended within {timeout_s:g} s; its last "
            last = self._ended(-signal.SIGKILL)
            raise TimeoutError(f"{late}{last.operations[-1:]}\n{last.describe()}") from None
        self._run = self._ended(status)
        return self._run

    def _ended(self, status: int) -> Run:
        out, err = (path.read_text(errors="replace") for path in self._outputs)
        operations: list[Operation] = []
        faults: list[Operation] = []
        for line in self._log.read_text().splitlines():
            fields: dict[str, Any] = json.loads(line)
            has_fault = fields.pop("fault", None) is not None
            operation = _shown(Operation(**fields), self._command.directory)
            operations.append(operation)
            if has_fault:
                faults.append(operation)
        self._stalls.close()
        self._files.cleanup()
        return Run(self._command, status, out, err, tuple(operations), tuple(faults))


def _start(
    command: Command, variables: Mapping[str, str], outputs: tuple[Path, Path]
) -> subprocess.Popen[bytes]:
    paths = [str(SITE), str(PACKAGES), *filter(None, [variables.get("PYTHONPATH")])]
    with outputs[0].open("ab") as out, outputs[1].open("ab") as err:
        return subprocess.Popen(  # noqa: S603 - what the user gives
            [sys.executable, str(command.script), *command.arguments],
            cwd=command.directory,
            env={**variables, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )


def _shown(operation: Operation, directory: Path) -> Operation:
    """Return an operation with paths relative to the directory of its run."""

    def short(path: str) -> str:
        if path == str(directory):
            return "."
        return path.removeprefix(f"{directory}/")

    source = None if operation.source is None else short(operation.source)
    return replace(operation, path=short(operation.path), source=source)


def wait_for_all(
    scripts: Sequence[RunningScript], timeout_s: float = 300, *, grace_s: float = 0
) -> list[Run]:
    """Return how scripts that wait for each other end; once one ends badly, kill the others.

    Args:
        scripts: The scripts.
        timeout_s: How long they may take.
        grace_s: How long the others may go on.
    """
    deadline = time.monotonic() + timeout_s
    running = list(scripts)
    while running and time.monotonic() < deadline:
        ended = [script for script in running if script.poll() is not None]
        if any(script.poll() for script in ended):
            deadline = min(deadline, time.monotonic() + grace_s)
        running = [script for script in running if script not in ended]
        if running and not ended:
            time.sleep(_POLL_S)
    for script in running:
        script.kill()
    return [script.wait() for script in scripts]

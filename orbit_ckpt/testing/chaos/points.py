"""Meet a program with a fault at each of its storage operations in turn."""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orbit_ckpt.testing.chaos.scripts import Run
from orbit_ckpt.testing.hook.faults import Fault
from orbit_ckpt.testing.hook.operations import Operation

POINTS = "ORBIT_CKPT_CHAOS_POINTS"
"""The environment variable that chooses points: `7` or `7,12`."""


@dataclass(slots=True)
class Result:
    """What came of a program that met with a fault and was restarted until it ended.

    Attributes:
        directory: Where it ran.
        undisturbed: The run of the program that met with nothing.
        point: The operation at which the fault came; None if it never did.
        runs: How its processes ended, of every start.
    """

    directory: Path
    undisturbed: Run = field(repr=False)
    point: Operation | None = None
    runs: list[list[Run]] = field(default_factory=list[list[Run]])

    @property
    def run(self) -> Run:
        """How the last start ended; of several processes, the first."""
        return self.runs[-1][0]


class Starter(Protocol):
    """What the sweep needs of the fixture."""

    def start_once(
        self, run: Callable[[Path], object], directory: Path, armed: Mapping[int, Fault]
    ) -> list[Run]:
        """Run a program once, with faults by process; return how its processes ended."""
        ...

    def new_directory(self, name: str) -> Path:
        """Return an empty directory."""
        ...


@dataclass(frozen=True, slots=True)
class Sweep:
    """A program that meets with one fault after the other.

    Attributes:
        starter: Starts the program.
        run: The program.
        check: Raises if the program has not ended as it should.
        fault: Returns the fault for the n-th operation.
        process: Which of its processes meets with the fault.
        test: Name of the test, for messages.
    """

    starter: Starter
    run: Callable[[Path], object]
    check: Callable[[Result], object]
    fault: Callable[[int], Fault]
    process: int
    test: str

    def every_point(self, most: int | None, seed: int, jobs: int) -> int:
        """Run the program once for each point, or for some; return for how many.

        Raises:
            AssertionError: The program does not end well.
        """
        __tracebackhide__ = True
        undisturbed = self._undisturbed()
        points = chosen_points(len(undisturbed.operations), most, seed)
        with ThreadPoolExecutor(jobs) as threads:
            pending = [threads.submit(self._meet, point, undisturbed) for point in points]
            try:
                for future in pending:
                    future.result()
            finally:
                for future in pending:
                    future.cancel()
        return len(points)

    def _undisturbed(self) -> Run:
        __tracebackhide__ = True
        directory = self.starter.new_directory("undisturbed")
        runs = self.starter.start_once(self.run, directory, {})
        if len(runs) <= self.process:
            raise ValueError(
                f"The function started {len(runs)} scripts with chaos.run or chaos.start; "
                f"process {self.process} is to meet with faults."
            )
        for found in runs:
            _check_ended(found, "The undisturbed run failed")
        undisturbed = runs[self.process]
        if not undisturbed.operations:
            raise ValueError(
                f"{undisturbed.command.shell()} changed nothing below {directory}: let it save "
                "there, into its working directory."
            )
        result = Result(directory, undisturbed, None, [runs])
        _noted(self.check, result, "The check fails for the undisturbed run")
        shutil.rmtree(directory, ignore_errors=True)
        return undisturbed

    def _meet(self, point: int, undisturbed: Run) -> None:
        """Let the program meet with the fault at one point.

        Raises:
            AssertionError: It does not end well.
        """
        __tracebackhide__ = True
        directory = self.starter.new_directory(f"point_{point}")
        fault = self.fault(point)
        result = Result(directory, undisturbed)
        runs = self.starter.start_once(self.run, directory, {self.process: fault})
        result.point = next((o for found in runs for o in found.faults), None)
        result.runs.append(runs)
        if any(found.status for found in runs):
            result.runs.append(self.starter.start_once(self.run, directory, {}))
        where = self._describe(point, fault, result)
        for found in result.runs[-1]:
            _check_ended(found, f"The program does not resume.\n{where}")
        _noted(self.check, result, f"The check fails.\n{where}")
        shutil.rmtree(directory, ignore_errors=True)

    def _describe(self, point: int, fault: Fault, result: Result) -> str:
        undisturbed = result.undisturbed
        command = undisturbed.command
        where = result.point or undisturbed.operations[point - 1]
        lines = [
            f"Point {point} of {len(undisturbed.operations)}: {fault.action.value} at {where}",
            f"Again: {POINTS}={point} pytest {self.test!r}",
            "By hand, in an empty directory:",
            f"  {command.shell(fault)}",
            f"  {command.shell()}",
            f"What is left is in {result.directory}",
        ]
        return "\n".join(lines)


def chosen_points(count: int, most: int | None, seed: int) -> list[int]:
    """Return the points to try: all, those of the environment, or one from each of equal parts.

    Args:
        count: How many there are.
        most: How many to try at most, None for all.
        seed: Makes the choice reproducible.
    """
    given = os.environ.get(POINTS)
    if given:
        return [int(number) for number in given.split(",")]
    if most is None or count <= most:
        return list(range(1, count + 1))
    rng = random.Random(seed)  # noqa: S311 - not cryptography
    edges = [1 + count * part // most for part in range(most + 1)]
    return [rng.randrange(low, high) for low, high in itertools.pairwise(edges)]


def _check_ended(run: Run, what: str) -> None:
    __tracebackhide__ = True
    if run.status:
        raise AssertionError(f"{what}\n{run.command.shell()}\nended with {run.describe()}")


def _noted(check: Callable[[Result], object], result: Result, what: str) -> None:
    """Call the check; add a note to what it raises."""
    __tracebackhide__ = True
    try:
        check(result)
    except BaseException as error:
        error.add_note(f"{what}\nThe last start ended with {result.run.describe()}")
        raise

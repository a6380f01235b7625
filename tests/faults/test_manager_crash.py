"""A training run that is killed again and again: no durable step is lost, no half one is listed.

Each life of the run is a process, killed with SIGKILL at a random moment or right before a random
operation on the file system. `nox -s soak` kills 500 times, not 10.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.support import Saver
from tests.faults.training import Setting, kept
from tests.soak import rounds

KILLS = rounds(10, 500)
"""How often to kill."""

KILLS_PER_RUN = rounds(10, 25)

PER_SAVE = {
    "mkdir": 6,
    "open": 14,
    "write": 16,
    "fsync": 24,
    "rename": 2,
    "unlink": 14,
    "rmdir": 6,
}
"""About how often a save, with the deletion that follows it, does what."""


PER_INCREMENTAL_SAVE = {**PER_SAVE, "link": 4, "unlink": 18, "fsync": 28}


class Run:
    """A run, as seen by somebody who only reads what its processes report."""

    def __init__(self, saver: Saver, root: Path, setting: Setting) -> None:
        self._saver = saver
        self._root = root
        self._setting = setting
        self._known: set[int] = set()
        self._pinned: set[int] = set()
        self.durable = 0

    def live(self, rng: random.Random) -> None:
        """Let a process go on with the run, and kill it."""
        kill: tuple[str, int] | None = None
        at_once = rng.random() < 0.3  # while it still looks at what the last one left
        if rng.random() < 0.6:
            often = PER_INCREMENTAL_SAVE if self._setting.incremental else PER_SAVE
            operation = rng.choice(list(often))
            kill = operation, rng.randint(1, often[operation] * (1 if at_once else 5))
        # the step that was being saved is saved again, or never
        child = self._order(kill, saves=1000, skip=rng.randint(0, 1))
        if kill is None:
            if not at_once:
                self._listen(until="steps", seconds=60)
            self._listen(until=None, seconds=rng.uniform(0, 0.4))
            os.kill(child, signal.SIGKILL)
        assert self._listen(until="exit", seconds=60)["exit"] == -signal.SIGKILL

    def finish(self) -> None:
        """Let a process go on with the run for two steps."""
        self._order(None, saves=2, skip=1)
        assert self._listen(until="exit", seconds=60)["exit"] == 0

    def _order(self, kill: tuple[str, int] | None, **how_many: int) -> int:
        setting = asdict(self._setting)
        return self._saver.order(
            do="live", path=str(self._root), setting=setting, kill=kill, **how_many
        )

    def _listen(self, *, until: str | None, seconds: float) -> dict[str, Any]:
        """Take reports until one that has a key, or for some time; return the last."""
        deadline = time.monotonic() + seconds
        report: dict[str, Any] = {}
        while until is None or until not in report:
            reports = self._saver.reports_within(max(0, deadline - time.monotonic()), most=1)
            if not reports:
                assert until is None, f"no {until} within {seconds} s"
                break
            (report,) = reports
            self._take(report)
        return report

    def _take(self, report: dict[str, Any]) -> None:
        match report:
            case {"found": found, "wrong": wrong}:
                assert wrong == []
                assert kept(self._known | {*found}, self._pinned) <= {*found}
                self._known |= {*found}
            case {"durable": step}:
                self.durable += 1
                self._known.add(step)
            case {"unpin": step}:
                self._pinned.discard(step)
            case {"pin": step}:
                self._pinned.add(step)
            case {"steps": steps, "entries": entries, "pins": pins}:
                assert self._pinned <= {*pins}
                assert {*steps} == kept(self._known | {*steps}, pins)
                assert entries == sorted([*map(str, steps), "metadata"])
            case _:
                assert "error" not in report, report


def kill_often(saver: Saver, root: Path, setting: Setting, *, kills: int, seed: int) -> Run:
    rng = random.Random(seed)  # noqa: S311 - not cryptography
    run = Run(saver, root, setting)
    for _ in range(kills):
        run.live(rng)
    run.finish()
    print(f"{kills} kills, {run.durable} steps reported durable, none lost, nothing left over")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(-(-KILLS // KILLS_PER_RUN)))
def test_a_run_that_is_killed_loses_no_step_and_leaves_nothing(
    saver: Saver, seed: int, tmp_path: Path
) -> None:
    run = kill_often(saver, tmp_path / "run", Setting(), kills=KILLS_PER_RUN, seed=seed)
    assert run.durable > KILLS_PER_RUN


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(rounds(1, 20)))
def test_so_does_a_run_whose_steps_share_files(saver: Saver, seed: int, tmp_path: Path) -> None:
    setting = Setting(incremental=True, in_place=seed % 4 == 3, nbytes=1 << 16)
    run = kill_often(saver, tmp_path / "run", setting, kills=rounds(12, 25), seed=200 + seed)
    assert run.durable > rounds(12, 25)


@pytest.mark.slow
@pytest.mark.parametrize(
    "setting",
    [Setting(in_place=True), Setting(background=False, background_delete=True)],
    ids=["marker mode", "deletions in the background"],
)
def test_so_does_a_run_with_other_options(saver: Saver, setting: Setting, tmp_path: Path) -> None:
    kill_often(saver, tmp_path / "run", setting, kills=rounds(5, 100), seed=100)


@pytest.mark.slow
@pytest.mark.parametrize("in_place", [False, True], ids=["rename", "marker mode"])
def test_a_manager_that_another_process_opens_leaves_a_save_alone(
    saver: Saver, in_place: bool, tmp_path: Path
) -> None:
    setting = Setting(in_place=in_place, nbytes=1 << 10)
    stopped = True
    # in a usual run every second one, of even numbers in one mode and of odd ones in the other
    for nth in itertools.count(rounds(1 + in_place, 1), rounds(2, 1)):
        if not stopped:
            break
        root = tmp_path / str(nth)
        order: dict[str, Any] = {"path": str(root), "setting": asdict(setting), "saves": 1}
        child = saver.order(do="live", kill=["fsync", nth], signal="SIGSTOP", **order)
        stopped = "stopped" in ended(saver)
        with setting.open(root, lambda: None) as manager:
            assert set(manager.all_steps()) <= {1}
            setting.save(manager, 10)
        if stopped:
            os.kill(child, signal.SIGCONT)
            assert ended(saver) == {"exit": 0}
        with setting.open(root, lambda: None) as manager:
            steps = manager.all_steps()
            assert steps in ([1, 10], [10, 11])  # it may have looked for steps before or after
            assert setting.wrong(manager) == []
        assert sorted(os.listdir(root)) == [*map(str, steps), "metadata"]
        assert os.listdir(root / "metadata") == ["_ROOT_METADATA"]


def ended(saver: Saver) -> dict[str, Any]:
    """Return the report that says that a process has stopped or ended."""
    report: dict[str, Any] = {}
    while not {"stopped", "exit"} & report.keys():
        report = saver.report()
        assert "error" not in report, report
    return report

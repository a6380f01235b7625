"""Waiting for the checkpoints of a run, under a clock of its own."""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orbax.checkpoint import checkpoint_utils as orbax_utils

import orbit_ckpt as ocp
from orbit_ckpt._src.manager import follow
from orbit_ckpt._src.manager.step_names import StepNameFormat
from orbit_ckpt._src.storage.layout import STEP_METADATA
from orbit_ckpt.checkpoint_utils import (
    checkpoints_iterator,
    get_snapshot_dir_from_step_dir,
    wait_for_new_checkpoint,
)
from orbit_ckpt.errors import StorageError

SAVER = Path(__file__).with_name("saver.py")


class FakeClock:
    """A clock that only sleeping advances; things happen at set times."""

    def __init__(self, events: Mapping[float, Callable[[], object]] | None = None) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        self._events = dict(events or {})

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    def sleep(self, seconds: float) -> None:
        assert len(self.sleeps) < 1000, "waits for ever"
        self.sleeps.append(seconds)
        self.now += seconds
        for moment in sorted(at for at in self._events if at <= self.now):
            self._events.pop(moment)()


def make_step(directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / STEP_METADATA).write_text("{}")


def saves(root: Path, times: Mapping[float, int]) -> FakeClock:
    """Return a clock under which steps are saved at these times."""

    def save(step: int) -> Callable[[], None]:
        return lambda: make_step(root / str(step))

    return FakeClock({at: save(step) for at, step in times.items()})


def wait(root: Path, clock: FakeClock, **options: Any) -> int:
    with wait_for_new_checkpoint(root, _clock=clock, **options) as step:
        return step


def test_only_the_latest_step_is_yielded_and_none_twice(tmp_path: Path) -> None:
    for step in (1, 5, 3):
        make_step(tmp_path / str(step))
    clock = saves(tmp_path, {2: 4, 3.5: 7, 4: 8, 9: 9})
    steps = list(checkpoints_iterator(tmp_path, timeout=10, _clock=clock))
    assert steps == [5, 8, 9]


def test_the_directory_need_not_exist_yet(tmp_path: Path) -> None:
    clock = saves(tmp_path / "run", {30: 2})
    assert wait(tmp_path / "run", clock) == 2
    assert clock.now == 30


def test_all_of_the_timeout_is_waited_for(tmp_path: Path) -> None:
    clock = FakeClock()
    assert wait(tmp_path, clock, timeout=2.5) == -1
    assert clock.sleeps == [1, 1, 0.5]
    assert wait(tmp_path, saves(tmp_path, {2.4: 3}), timeout=2.5) == 3


def test_a_pause_longer_than_the_timeout_is_cut(tmp_path: Path) -> None:
    clock = FakeClock()
    assert wait(tmp_path, clock, timeout=5, seconds_to_sleep=60) == -1
    assert clock.sleeps == [5]


@pytest.mark.parametrize("timeout", [0, -1])
def test_without_time_the_directory_is_looked_at_once(timeout: float, tmp_path: Path) -> None:
    clock = FakeClock()
    make_step(tmp_path / "4")
    assert list(checkpoints_iterator(tmp_path, timeout=timeout, _clock=clock)) == [4]
    assert clock.sleeps == []


def test_the_timeout_begins_again_with_every_step(tmp_path: Path) -> None:
    clock = saves(tmp_path, {4: 1, 8: 2, 14: 3})
    assert list(checkpoints_iterator(tmp_path, timeout=5, _clock=clock)) == [1, 2]
    assert clock.now == 13


def test_without_a_timeout_the_wait_goes_on(tmp_path: Path) -> None:
    clock = saves(tmp_path, {500: 1})
    asked: list[bool] = []
    steps = checkpoints_iterator(
        tmp_path, timeout_fn=lambda: bool(asked.append(True)), _clock=clock
    )
    assert next(steps) == 1
    assert not asked


def test_timeout_fn_is_asked_until_it_says_that_the_run_is_over(tmp_path: Path) -> None:
    asked_at: list[float] = []
    clock = saves(tmp_path, {6: 1})

    def is_over() -> bool:
        asked_at.append(clock.now)
        return clock.now >= 13

    steps = checkpoints_iterator(tmp_path, timeout=4, timeout_fn=is_over, _clock=clock)
    assert list(steps) == [1]
    assert asked_at == [4, 5, 10, 11, 12, 13]


def test_a_step_saved_just_before_the_run_was_over_is_not_missed(tmp_path: Path) -> None:
    def finish() -> bool:
        if not (tmp_path / "9").exists():
            make_step(tmp_path / "9")
        return True

    steps = checkpoints_iterator(tmp_path, timeout=2, timeout_fn=finish, _clock=FakeClock())
    assert list(steps) == [9]


def test_min_interval_counts_from_when_a_step_was_yielded(tmp_path: Path) -> None:
    clock = saves(tmp_path, {1: 1, 3: 2, 15: 3, 18: 4, 40: 5})
    yielded: list[tuple[float, int]] = []
    iterator = checkpoints_iterator(tmp_path, min_interval_secs=10, timeout=3, _clock=clock)
    for step in iterator:
        yielded.append((clock.now, step))
        clock.sleep(4 if step == 1 else 12)  # the evaluation
    assert yielded == [(1, 1), (11, 2), (23, 4)]


@pytest.mark.parametrize(("until", "found"), [(None, 5), (0, 5), (5, 5), (6, 7), (8, -1)])
def test_until_step_is_the_least_step(until: int | None, found: int, tmp_path: Path) -> None:
    make_step(tmp_path / "3")
    make_step(tmp_path / "5")
    assert wait(tmp_path, saves(tmp_path, {2: 7}), until_step=until, timeout=4) == found


def test_steps_of_numpy_are_waited_for(tmp_path: Path) -> None:
    make_step(tmp_path / "5")
    step = wait(tmp_path, FakeClock(), until_step=np.int64(5), timeout=0)
    assert (step, type(step)) == (5, int)


def test_steps_that_vanish_end_nothing(tmp_path: Path) -> None:
    make_step(tmp_path / "5")
    clock = saves(tmp_path, {4: 3, 6: 6})
    steps = checkpoints_iterator(tmp_path, timeout=8, _clock=clock)
    assert next(steps) == 5
    shutil.rmtree(tmp_path / "5")
    assert list(steps) == [6]


def test_a_run_that_is_deleted_is_waited_for(tmp_path: Path) -> None:
    root = tmp_path / "run"
    make_step(root / "5")
    steps = checkpoints_iterator(root, timeout=3, _clock=saves(root, {2: 6}))
    assert next(steps) == 5
    shutil.rmtree(root)
    assert list(steps) == [6]


@pytest.mark.parametrize(
    "options",
    [
        {"step_prefix": "step", "step_format_fixed_length": 3},
        {"step_name_format": StepNameFormat("step", 3), "step_prefix": "not used"},
    ],
)
def test_names_are_those_asked_for(options: dict[str, Any], tmp_path: Path) -> None:
    for name in ("step_004", "9", "other_8"):
        make_step(tmp_path / name)
    assert wait(tmp_path, FakeClock(), timeout=0, **options) == 4
    assert list(checkpoints_iterator(tmp_path, timeout=0, **options)) == [4]


def test_an_unfinished_save_is_waited_for(tmp_path: Path) -> None:
    make_step(tmp_path / "5.orbax-checkpoint-tmp-1")
    (tmp_path / "6").mkdir()
    assert wait(tmp_path, saves(tmp_path, {2: 4}), timeout=3) == 4


def test_snapshot_remains_while_the_step_is_in_use(tmp_path: Path) -> None:
    run, snapshots = tmp_path / "run", tmp_path / "snapshots"
    steps = checkpoints_iterator(
        run,
        timeout=5,
        snapshot_dir=snapshots,
        _clock=FakeClock({1: lambda: ocp.save(run / "7", [7])}),
    )
    ocp.save(run / "5", [5])
    assert next(steps) == 5
    shutil.rmtree(run / "5")
    path = get_snapshot_dir_from_step_dir(run / "5", snapshots)
    assert ocp.load(path) == [5]
    assert next(steps) == 7
    assert [path.name for path in snapshots.iterdir()] == ["7"]
    assert list(steps) == []
    assert list(snapshots.iterdir()) == []


def test_snapshot_ends_with_the_context(tmp_path: Path) -> None:
    run, snapshots = tmp_path / "run", tmp_path / "snapshots"
    ocp.save(run / "5", [5])
    (snapshots / "5").mkdir(parents=True)  # left by a process that was killed
    with wait_for_new_checkpoint(run, snapshot_dir=snapshots) as step:
        assert ocp.load(snapshots / "5") == [5]
    assert step == 5
    assert list(snapshots.iterdir()) == []
    assert ocp.load(run / "5") == [5]


def test_snapshot_is_a_copy_where_files_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr("os.link", link)
    ocp.save(tmp_path / "run" / "5", [5])
    with wait_for_new_checkpoint(tmp_path / "run", snapshot_dir=tmp_path / "snapshots"):
        assert ocp.load(tmp_path / "snapshots" / "5") == [5]


@pytest.mark.parametrize("ignores", [True, False])
def test_step_that_is_deleted_before_its_snapshot(
    ignores: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(tmp_path / "run" / "5", [5])

    def link(source: Path, _: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "deleted", str(source))

    monkeypatch.setattr("os.link", link)
    expected = contextlib.nullcontext() if ignores else pytest.raises(FileNotFoundError)
    options: dict[str, Any] = {"snapshot_dir": tmp_path / "snapshots"}
    with (
        expected,
        wait_for_new_checkpoint(
            tmp_path / "run", ignore_snapshot_errors=ignores, **options
        ) as step,
    ):
        assert step == 5
        assert list((tmp_path / "snapshots").iterdir()) == []


def test_no_snapshot_is_made_unless_asked_for(tmp_path: Path) -> None:
    ocp.save(tmp_path / "5", [5])
    assert wait(tmp_path, FakeClock(), timeout=0, ignore_snapshot_errors=False) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["5"]


def test_option_for_immutable_files_has_no_effect(tmp_path: Path) -> None:
    assert wait(tmp_path, FakeClock(), timeout=0, set_immutable=False) == -1
    with pytest.warns(UserWarning, match="set_immutable=True does nothing here"):
        checkpoints_iterator(tmp_path, set_immutable=True)


def test_a_file_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(StorageError, match="run: looking for the latest step failed"):
        next(checkpoints_iterator(tmp_path / "run", _clock=FakeClock()))


def test_the_real_clock_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        make_step(tmp_path / "1")

    monkeypatch.setattr(follow.time, "sleep", sleep)
    assert next(checkpoints_iterator(tmp_path)) == 1
    assert slept == [1]


SCENARIOS: list[tuple[dict[float, int], dict[str, Any]]] = [
    ({}, {"timeout": 5}),
    ({3: 1}, {"timeout": 5}),
    ({2: 1, 3: 2, 3.5: 3, 20: 4}, {"timeout": 6}),
    ({2: 9, 4: 3, 6: 12}, {"timeout": 6}),
    ({2: 1, 3: 2, 11: 3}, {"timeout": 6, "min_interval_secs": 5}),
    ({1: 1, 9: 2}, {"timeout": 4, "seconds_to_sleep": 2}),
    ({1: 1, 4: 2}, {"timeout": 0}),
]


@pytest.mark.parametrize(("times", "options"), SCENARIOS)
def test_the_steps_are_those_that_orbax_yields(
    times: dict[float, int],
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = list(
        checkpoints_iterator(tmp_path / "a", _clock=saves(tmp_path / "a", times), **options)
    )
    (tmp_path / "b").mkdir()
    monkeypatch.setattr(orbax_utils, "time", saves(tmp_path / "b", times))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ours == list(orbax_utils.checkpoints_iterator(tmp_path / "b", **options))


@pytest.mark.slow
def test_steps_that_another_process_saves_are_yielded(tmp_path: Path) -> None:
    expected = [0, 5, 10, 15]
    command = [sys.executable, SAVER, tmp_path / "run", *map(str, expected)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as saver:
        assert saver.stdin
        steps = checkpoints_iterator(
            tmp_path / "run",
            step_prefix="step",
            seconds_to_sleep=0.01,
            timeout=0,
            timeout_fn=lambda: saver.poll() is not None,
        )
        seen: list[int] = []
        for step in itertools.islice(steps, len(expected)):
            tree = ocp.load(tmp_path / "run" / f"step_{step}")
            np.testing.assert_array_equal(tree["w"], np.full(3, float(step)))
            seen.append(step)
            saver.stdin.write("\n")
            saver.stdin.flush()
        assert seen == expected
        assert list(steps) == []
    assert saver.returncode == 0

"""How far saves, loads and comparisons are."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.progress import reporting
from orbit_ckpt.testing.background import held_commits

NOISE = np.random.default_rng(0).integers(0, 1 << 62, 1 << 16)
TREE = {"w": NOISE, "b": jnp.ones(8), "step": 3, "name": "x"}
Report = Callable[[int, int], object]


class Seen(list[tuple[int, int]]):
    """What a function of the caller is called with."""

    def __call__(self, done: int, total: int) -> None:
        self.append((done, total))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a directory with two checkpoints."""
    ocp.save(tmp_path / "a", TREE)
    ocp.save(tmp_path / "b", TREE | {"w": NOISE[::-1]})
    return tmp_path


OPERATIONS: dict[str, Callable[[Path, bool | Report], object]] = {
    "save": lambda path, progress: ocp.save(path / "new", TREE, progress=progress),
    "load": lambda path, progress: ocp.load(path / "a", progress=progress),
    "load like": lambda path, progress: ocp.load(path / "a", TREE, report=True, progress=progress),
    "diff": lambda path, progress: ocp.diff(path / "a", path / "b", values=True, progress=progress),
}
EACH = pytest.mark.parametrize("operate", OPERATIONS.values(), ids=OPERATIONS)


@EACH
def test_the_last_report_is_that_all_is_done(
    operate: Callable[[Path, Report], object], saved: Path
) -> None:
    seen = Seen()
    operate(saved, seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    done, total = seen[-1]
    assert done == total >= (1 << 16)


def test_a_save_reports_bytes_in_memory(tmp_path: Path) -> None:
    seen = Seen()
    ocp.save(tmp_path / "a", TREE, progress=seen)
    assert seen[-1] == ((8 << 16) + 32 + 8, (8 << 16) + 32 + 8)


def test_a_manager_reports_its_restores(tmp_path: Path) -> None:
    seen = Seen()
    with ocp.CheckpointManager(tmp_path) as run:
        run.save(1, TREE)
        run.wait_until_finished()
        run.restore(1, progress=seen)
    assert seen[-1][1] > 1 << 16


def test_progress_is_reported_while_the_operation_runs(tmp_path: Path) -> None:
    reported = threading.Event()
    with held_commits() as go_on:

        def report(*_: int) -> None:
            reported.set()

        with mock.patch("orbit_ckpt._src.runtime.commit.Commit.progress", Halfway()):
            thread = threading.Thread(
                target=ocp.save, args=(tmp_path / "a", TREE), kwargs={"progress": report}
            )
            thread.start()
            assert reported.wait(60)
            assert thread.is_alive()
            go_on.set()
            thread.join()


class Halfway:
    """A save of ten bytes, half of which are written."""

    nbytes, total_nbytes = 5, 10


@EACH
def test_a_report_that_fails_is_logged_once_and_fails_nothing(
    operate: Callable[[Path, Report], object], saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(done: int, total: int) -> None:
        raise RuntimeError(f"no screen for {done} of {total}")

    with caplog.at_level(logging.ERROR):
        operate(saved, fail)
    assert caplog.text.count("failed and is not called again") == 1


@EACH
@pytest.mark.parametrize("wrong", ["yes", 3])
def test_other_values_are_refused_before_anything_is_done(
    wrong: object, operate: Callable[[Path, object], object], saved: Path
) -> None:
    with pytest.raises(TypeError, match="progress must be True, or a function"):
        operate(saved, wrong)
    assert not (saved / "new").exists()


@EACH
def test_a_bar_is_drawn_in_terminals(
    operate: Callable[[Path, bool], object], saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("FORCE_COLOR", "1")
    operate(saved, True)
    assert any(title in screen.getvalue() for title in ("Saving", "Loading", "Comparing"))


@EACH
def test_nothing_is_drawn_into_files(
    operate: Callable[[Path, bool], object], saved: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    operate(saved, True)
    assert capfd.readouterr() == ("", "")


def test_without_rich_a_bar_is_refused_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(ImportError, match="give a function"):
        ocp.save(tmp_path / "a", TREE, progress=True)
    assert not (tmp_path / "a").exists()


def test_nothing_runs_beside_an_operation_without_progress() -> None:
    before = threading.active_count()
    with reporting(None, "Saving") as report:
        assert report is None
        assert threading.active_count() == before


def test_a_failed_operation_is_not_reported_as_done(tmp_path: Path) -> None:
    seen = Seen()
    with pytest.raises(FileNotFoundError):
        ocp.load(tmp_path / "missing", progress=seen)
    assert not seen

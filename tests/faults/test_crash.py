"""Processes that die while saving: what was there stays, or what came is complete.

The process is killed for real. `nox -s soak` does it many more times.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
)
from tests.cells import cells
from tests.faults.support import LAYOUTS, Layout, Saver, numbered_tree
from tests.soak import rounds
from tests.support import assert_same_tree

OCDBT, FILES = LAYOUTS.index(Layout()), LAYOUTS.index(Layout(use_ocdbt=False))
KILL, STOP = signal.SIGKILL.name, signal.SIGSTOP.name
EVERY_WRITE = cells(
    [pytest.param(OCDBT, id="ocdbt"), pytest.param(FILES, id="files")], lambda n: n == OCDBT
)
"""Layouts of saves that die at each of many writes, in a usual run one."""

LAST = 10_000
"""A write that no save comes to."""


def load_number(path: Path) -> int:
    """Return the number of the tree at a path, which must be complete."""
    tree = ocp.load(path)
    assert_same_tree(tree, numbered_tree(tree["number"]))
    return tree["number"]


def assert_settles(found: Sequence[int]) -> None:
    """Check that what was found later in a save is never older, but for a few operations.

    Threads share the work differently in each save, so that the rename has not always one number.
    """
    later = found[found.index(found[-1]) + 4 :]
    assert set(later) <= {found[-1]}, found


@pytest.mark.slow
@pytest.mark.parametrize("layout", EVERY_WRITE)
def test_death_before_any_write_keeps_the_old_checkpoint_or_completes_the_new(
    saver: Saver, layout: int, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    found: list[int] = []
    for nth in range(1, LAST):
        LAYOUTS[layout].save(path, numbered_tree(1), overwrite=True)
        assert os.listdir(tmp_path) == ["checkpoint"], "the dead save left something behind"
        saver.order(
            path=str(path), layout=layout, overwrite=True, number=2, nth=nth, signal="SIGKILL"
        )
        ended = saver.report()
        found.append(load_number(path))
        if ended == {"exit": 0}:
            break
        assert ended == {"exit": -signal.SIGKILL}
    assert_settles(found)
    assert set(found) == {1, 2}
    assert found.count(1) > 10


@pytest.mark.slow
@pytest.mark.parametrize("layout", EVERY_WRITE)
def test_death_before_any_write_makes_no_half_checkpoint(
    saver: Saver, layout: int, tmp_path: Path
) -> None:
    found: list[bool] = []
    for nth in range(1, LAST):
        path = tmp_path / str(nth) / "checkpoint"
        saver.order(
            path=str(path), layout=layout, overwrite=False, number=2, nth=nth, signal="SIGKILL"
        )
        ended = saver.report()
        found.append(path.exists())
        if path.exists():
            assert load_number(path) == 2
        if ended == {"exit": 0}:
            break
        assert ended == {"exit": -signal.SIGKILL}
        LAYOUTS[layout].save(path, numbered_tree(3), overwrite=path.exists())
        assert load_number(path) == 3
        assert os.listdir(path.parent) == ["checkpoint"], "the dead save left something behind"
    assert_settles(found)
    assert set(found) == {False, True}


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", cells([False, True], bool))
def test_death_in_marker_mode_leaves_what_is_refused_and_can_be_replaced(
    saver: Saver, overwrite: bool, tmp_path: Path
) -> None:
    found: list[int | None] = []
    for nth in range(1, LAST):
        path = tmp_path / str(nth) / "checkpoint"
        if overwrite:
            ocp.save(path, numbered_tree(1))
        saver.order(
            path=str(path),
            layout=OCDBT,
            in_place=True,
            overwrite=overwrite,
            number=2,
            nth=nth,
            signal=KILL,
        )
        ended = saver.report()
        try:
            found.append(load_number(path))
        except (IncompleteCheckpointError, CheckpointNotFoundError):
            found.append(None)
        if ended == {"exit": 0}:
            break
        Layout().save(path, numbered_tree(3), overwrite=found[-1] is not None, in_place=True)
        assert load_number(path) == 3
        assert os.listdir(path.parent) == ["checkpoint"]
    before: set[int | None] = {1, None} if overwrite else {None}
    assert found[-1] == 2
    assert set(found) == {*before, 2}
    assert_settles([found_number == 2 for found_number in found])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(rounds(5, 800)))
def test_a_killed_process_leaves_only_complete_checkpoints(
    saver: Saver, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)  # noqa: S311 - not cryptography
    layout = rng.choice([OCDBT, FILES])
    LAYOUTS[layout].save(tmp_path / "latest", numbered_tree(0))
    child = saver.order(path=str(tmp_path), layout=layout, number=1, do="save_forever")
    reports = saver.reports_within(rng.uniform(0.005, 0.25))
    os.kill(child, signal.SIGKILL)
    while "exit" not in (report := saver.report()):
        reports.append(report)
    assert report == {"exit": -signal.SIGKILL}

    told = max((report.get("latest", 0) for report in reports), default=0)
    assert load_number(tmp_path / "latest") in (told, told + 1)
    steps = {p.name: p for p in tmp_path.glob("step_*") if "tmp" not in p.name}
    assert {f"step_{report['step']}" for report in reports if "step" in report} <= set(steps)
    for name, path in steps.items():
        assert name == f"step_{load_number(path)}"

    for name in {"latest", *(p.name.partition(".")[0] for p in tmp_path.iterdir())}:
        LAYOUTS[layout].save(tmp_path / name, numbered_tree(7), overwrite=True)
        assert load_number(tmp_path / name) == 7
    assert not list(tmp_path.glob("*tmp*")), "the dead save left something behind"


@pytest.mark.slow
def test_a_save_leaves_the_unfinished_save_of_a_living_process_alone(
    saver: Saver, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    child = saver.order(path=str(path), layout=OCDBT, overwrite=True, number=1, nth=5, signal=STOP)
    assert saver.report() == {"stopped": True}
    (unfinished,) = tmp_path.iterdir()
    ocp.save(path, numbered_tree(2))
    assert load_number(path) == 2
    assert sorted(tmp_path.iterdir()) == [path, unfinished]
    os.kill(child, signal.SIGCONT)
    assert saver.report() == {"exit": 0}
    assert load_number(path) == 1
    assert os.listdir(tmp_path) == ["checkpoint"]


@pytest.mark.slow
def test_of_two_processes_that_save_to_a_new_path_one_gets_an_error(
    saver: Saver, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    child = saver.order(path=str(path), layout=OCDBT, overwrite=False, number=1, nth=5, signal=STOP)
    assert saver.report() == {"stopped": True}
    ocp.save(path, numbered_tree(2))
    os.kill(child, signal.SIGCONT)
    assert saver.report()["error"] == "CheckpointExistsError"
    assert saver.report() == {"exit": 1}
    assert load_number(path) == 2
    assert os.listdir(tmp_path) == ["checkpoint"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", [OCDBT, FILES], ids=["ocdbt", "files"])
def test_a_load_while_another_process_overwrites_gives_one_of_both_or_an_error(
    saver: Saver, layout: int, tmp_path: Path
) -> None:
    path = tmp_path / "latest"
    LAYOUTS[layout].save(path, numbered_tree(0))
    saver.order(path=str(tmp_path), layout=layout, number=1, do="save_forever")
    numbers: list[int] = []
    for _ in range(rounds(20, 3200)):
        try:
            numbers.append(load_number(path))
        except CheckpointError:
            continue
    assert numbers == sorted(numbers)
    assert numbers

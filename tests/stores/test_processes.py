"""Two processes of one program save into an S3 bucket together, and load from it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import COMMIT_MARKER
from orbit_ckpt._src.storage.path import resolve_path
from tests.cells import cells
from tests.multiprocess.test_faults import DURABLE, ENDED_S, OF_SECOND, Run, raised_after
from tests.multiprocess.test_processes import assert_done, run
from tests.multiprocess.trees import check_tree, make_tree

# not several groups at once
pytestmark = pytest.mark.slow

PHASES = [[phase for phase in OF_SECOND if phase != "before the decision"], ["writing"]]
"""Each phase, one after the other; a usual run takes the second only."""


def names_in(url: str) -> list[str]:
    return sorted(path.name for path in resolve_path(url).iterdir())


def test_two_processes_save_what_one_loads(s3: str) -> None:
    ocp.save(f"{s3}/run/by_one", make_tree())
    for process in run("exchange", f"{s3}/run"):
        assert_done(process)
    check_tree(ocp.load(f"{s3}/run/by_two"))
    check_tree(ocp.load(f"{s3}/run/by_two_again"))
    parts = {"ocdbt.process_0", "ocdbt.process_1", "d", "manifest.ocdbt", "commit_success.txt"}
    assert parts <= set(names_in(f"{s3}/run/by_two"))
    assert "orbit_save_in_progress" not in names_in(f"{s3}/run/by_two_again")


def test_failure_of_one_process_is_one_of_all(s3: str) -> None:
    for process in run("failures", f"{s3}/run"):
        assert_done(process)
    assert names_in(f"{s3}/run") == ["earlier", "failed_1"]


def test_killed_process_is_named_and_nothing_of_its_save_is_left(s3: str) -> None:
    survivor, victim = run("killed", f"{s3}/run")
    assert victim.returncode == -signal.SIGKILL
    assert_done(survivor)
    assert names_in(f"{s3}/run") == ["earlier"]


@pytest.fixture
def in_store(s3: str, tmp_path: Path) -> Run:
    """A run of two processes in a bucket."""
    names = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    environment = {name: os.environ[name] for name in names}
    return Run(f"{s3}/some/run", tmp_path, environment=environment)


def assert_only_steps(run: Run, steps: list[int]) -> None:
    """Check that all of a run's steps are committed, and nothing is there beside them."""
    root = resolve_path(run.root)
    with_objects = {path.name for path in root.iterdir() if path.is_dir()}
    assert {name for name in with_objects if name.isdecimal()} == set(map(str, steps))
    assert all((root / str(step) / COMMIT_MARKER).is_file() for step in steps)


@pytest.mark.matrix
def test_a_manager_of_two_processes_keeps_the_newest_steps(in_store: Run) -> None:
    for background in (False, False, True, True):
        life = in_store.begin([], background=background)
        assert life.end(ENDED_S) == [0, 0], in_store.text(life)
        in_store.check(life)
    assert in_store.durable == 4
    assert_only_steps(in_store, [3, 4])


def test_what_one_process_of_a_manager_raises_is_raised_on_both(in_store: Run) -> None:
    faults = [["writing", "raise", 1], ["committing", "raise", 0], ["in a deletion", "raise", 0]]
    life = in_store.begin(faults, background=True)
    assert life.end(ENDED_S) == [0, 0], in_store.text(life)
    for phase, _, victim in faults:
        for index in range(2):
            found = raised_after(life, index)[f"{phase} {victim}"]
            assert any("the disk is on fire" in report["text"] for report in found), found
    in_store.check(life)
    in_store.go_on()
    assert_only_steps(in_store, [in_store.durable - 1, in_store.durable])


@pytest.mark.parametrize("phases", cells(PHASES, lambda phases: len(phases) == 1), ids=len)
def test_a_run_goes_on_after_one_process_of_its_manager_was_killed(
    in_store: Run, phases: list[str]
) -> None:
    saved = 0
    for number, phase in enumerate(phases):
        life = in_store.begin([[phase, "kill", 1]], background=number % 2 == 1)
        assert life.wait_for(0, ENDED_S) == 0, (phase, in_store.text(life))
        raised = raised_after(life, 0)[f"{phase} 1"]
        assert raised, (phase, in_store.text(life))
        assert raised[0]["named"] == [1], (phase, raised)
        in_store.check(life)
        saved += 2 if phase in DURABLE else 1
        assert ocp.CheckpointManager(in_store.root).latest_step() == saved, phase
    in_store.go_on()
    assert in_store.durable == saved + 1
    assert_only_steps(in_store, [saved, saved + 1])


def test_a_run_goes_on_after_its_first_process_was_killed_in_the_commit(in_store: Run) -> None:
    life = in_store.begin([["committing", "kill", 0]], background=True)
    assert life.wait_for(1, ENDED_S) not in (None, 0), in_store.text(life)
    in_store.check(life)
    in_store.go_on()
    assert in_store.durable == 2
    assert_only_steps(in_store, [1, 2])

"""Two processes of one program save into an S3 bucket together, and load from it."""

from __future__ import annotations

import signal

import pytest

import orbit_ckpt as ocp
from orbit_ckpt.storage.path import resolve_path
from tests.multiprocess.test_processes import assert_done, run
from tests.multiprocess.trees import check_tree, make_tree

pytestmark = pytest.mark.slow


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

"""The command line on object stores."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, IN_PROGRESS
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import CheckpointNotFoundError, IncompleteCheckpointError
from tests.cli.conftest import Server, run_command
from tests.programs import run_script

pytestmark = pytest.mark.slow

Run = Callable[..., str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def cli(server: Server, tmp_path: Path) -> Run:
    """Return what runs a command and returns what it prints."""

    def run(*args: object, status: int = 0) -> str:
        names = [
            name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "TENSORSTORE_"))
        ]
        env = {name: os.environ[name] for name in names}
        found = run_command(server, tmp_path, *args, status=status, env=env)
        return found.out + found.err

    return run


def tree(step: int) -> dict[str, Any]:
    return {"w": np.arange(30_000.0).reshape(300, 100) + step, "step": step}


def at(url: str) -> StorePath:
    path = resolve_path(url)
    assert isinstance(path, StorePath)
    return path


@pytest.fixture
def run(s3: str) -> str:
    """The URL of a run of three steps, and of a save that died."""
    with ocp.CheckpointManager(f"{s3}/run") as manager:
        for step in (1, 2, 3):
            manager.save(step, tree(step), metrics={"loss": 1 / step})
        manager.wait_until_finished()
        manager.pin(1)
    (at(f"{s3}/run/4") / IN_PROGRESS).write_bytes(b"token")
    return f"{s3}/run"


def test_steps_leaves_and_checks(cli: Run, run: str) -> None:
    listed = json.loads(cli("ls", run, "--json"))
    assert [step["step"] for step in listed["steps"]] == [1, 2, 3]
    assert [step["pinned"] for step in listed["steps"]] == [True, False, False]
    assert listed["steps"][1]["metrics"] == {"loss": 0.5}
    assert listed["steps"][1]["bytes"] is None
    assert listed["unfinished"] == ["4"]
    assert "pinned" in cli("ls", run)
    assert "default" in cli("ls", f"{run}/2")
    assert "300, 100" in cli("tree", f"{run}/2")
    assert "copy it to a local directory" in cli("report", run, "-o", "page.html", status=2)
    checked = json.loads(cli("verify", run, "--json"))
    assert checked["intact"]
    assert len(checked["checkpoints"]) == 3
    data = max(at(f"{run}/2/default/d").iterdir(), key=lambda path: len(path.read_bytes()))
    data.write_bytes(data.read_bytes()[:-100])
    assert f"{run}/2" in cli("verify", run, status=1)


def test_steps_are_pruned_and_removed(cli: Run, run: str) -> None:
    assert "would be deleted" in cli("prune", run, "--keep-last", 1, "--dry-run")
    assert "1 of 3 steps deleted" in cli("prune", run, "--keep-last", 1, "--yes")
    assert ocp.CheckpointManager(run).all_steps() == [1, 3]
    assert "is pinned" in cli("rm", f"{run}/1", "--yes", status=2)
    cli("rm", f"{run}/1", "--yes", "--force")
    cli("rm", f"{run}/4", "--yes")
    assert "is a run" in cli("rm", run, "--yes", status=2)
    (at(run) / "notes" / "text").write_bytes(b"mine")
    assert "No checkpoint" in cli("rm", f"{run}/notes", "--yes", status=2)
    assert (at(run) / "notes" / "text").read_bytes() == b"mine"
    assert at(run).directories() == ["3", "notes"]


def test_a_checkpoint_goes_to_a_disk_and_to_other_stores(
    cli: Run, run: str, gs: str, tmp_path: Path
) -> None:
    cli("cp", f"{run}/2", tmp_path / "2")
    cli("cp", tmp_path / "2", f"{gs}/from_disk/2")
    cli("cp", f"{gs}/from_disk/2", f"{gs}/again/2")
    for copy in (tmp_path / "2", f"{gs}/from_disk/2", f"{gs}/again/2"):
        found = ocp.load(copy)
        np.testing.assert_array_equal(found["w"], tree(2)["w"])
        assert ocp.verify(copy).is_intact
    assert "already exists" in cli("cp", f"{run}/3", f"{gs}/again/2", status=2)
    cli("cp", f"{run}/3", f"{gs}/again/2", "--overwrite")
    assert ocp.load(f"{gs}/again/2")["step"] == 3
    assert "is a run" in cli("cp", run, tmp_path / "run", status=2)


def test_a_damaged_checkpoint_is_not_copied(cli: Run, run: str, tmp_path: Path) -> None:
    (at(run) / "2" / "default" / "_METADATA").write_bytes(b"{}")
    assert "is damaged" in cli("cp", f"{run}/2", f"{run}/5", status=2)
    assert "is damaged" in cli("cp", f"{run}/2", tmp_path / "2", status=2)
    assert "5" not in at(run).directories()
    assert not (tmp_path / "2").exists()


def test_runs_and_models_of_other_programs(cli: Run, s3: str, tmp_path: Path) -> None:
    for step in (3, 20):
        ocp.save(tmp_path / str(step), {"a": np.arange(step)})
        ocp.convert(tmp_path / str(step), tmp_path / f"checkpoint_{step}", to="flax")
        data = (tmp_path / f"checkpoint_{step}").read_bytes()
        at(f"{s3}/flax/checkpoint_{step}").write_bytes(data)
    steps = json.loads(cli("ls", f"{s3}/flax", "--json"))["steps"]
    assert [(step["step"], step["time"]) for step in steps] == [(3, None), (20, None)]
    assert "checkpoint_20" in cli("ls", f"{s3}/flax")
    assert json.loads(cli("verify", f"{s3}/flax", "--json"))["intact"]
    arguments = (f"{s3}/flax/checkpoint_3", f"{s3}/ours")
    converted = json.loads(cli("convert", *arguments, "--to", "orbit", "--json"))
    assert converted["bytes"] is None
    assert ocp.load(f"{s3}/ours")["a"].tolist() == [0, 1, 2]
    assert "exists already" in cli("convert", *arguments, "--to", "orbit", status=2)
    cli("convert", *arguments, "--to", "orbit", "--overwrite")
    refused = cli("convert", f"{s3}/ours", f"{s3}/x", "--to", "flax", status=2)
    assert "local paths only" in refused


DYING = """
import os, signal, sys
from orbit_ckpt._src.storage.client_bucket import ClientBucket
from orbit_ckpt._src.cli.app import run

original, count = ClientBucket.begin_write, int(sys.argv.pop(1))

def dying(self, *args, **kwargs):
    global count
    count -= 1
    if count < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *args, **kwargs)

ClientBucket.begin_write = dying
sys.exit(run())
"""


def test_a_copy_that_dies_is_not_there_and_is_made_again(s3: str, tmp_path: Path) -> None:
    ocp.save(tmp_path / "1", tree(1))
    # all files, of which one is the marker, and what says that it is not finished
    writes = 1 + sum(path.is_file() for path in (tmp_path / "1").rglob("*"))

    def copy(count: int) -> int:
        return run_script(DYING, count, "cp", tmp_path / "1", f"{s3}/run/1").returncode

    for count in (0, 1, 4, writes - 1):
        assert copy(count) == -signal.SIGKILL
        with pytest.raises((CheckpointNotFoundError, IncompleteCheckpointError)):
            ocp.load(f"{s3}/run/1")
        assert ocp.CheckpointManager(f"{s3}/run").all_steps() == []
    assert copy(writes) == 0
    assert ocp.load(f"{s3}/run/1")["step"] == 1
    assert COMMIT_MARKER in at(f"{s3}/run/1").keys_below()

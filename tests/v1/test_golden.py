"""Checkpoints that earlier releases of Orbax wrote, in the v1 API."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

import orbit_ckpt
import orbit_ckpt.v1 as ours
from tests.v1.both import LIBRARIES, plain

GOLDEN = Path(__file__).parent.parent / "golden"
STATES = ["default", "chunked", "files-zarr3", "ocdbt-zarr2", "sharded"]


@pytest.fixture(params=["0.11.20", "0.12.8"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(GOLDEN / f"orbax-{request.param}.tar.gz") as archive:
        wanted = [m for m in archive.getmembers() if m.name.startswith("v1-")]
        archive.extractall(tmp_path, wanted, filter="data")
    return tmp_path


@pytest.mark.interop
@pytest.mark.parametrize("name", STATES)
def test_state_is_loaded_as_by_orbax(name: str, folder: Path) -> None:
    path = folder / f"v1-{name}"
    mine = ours.load(path)
    assert plain(mine) == plain(LIBRARIES["orbax"].load(path, checkpointable_name="AUTO"))
    assert plain(ours.load(path, ours.metadata(path))) == plain(mine)


def test_checkpointables_are_loaded(folder: Path) -> None:
    path = folder / "v1-checkpointables"
    assert ours.checkpointables_metadata(path).custom_metadata == {"run": 1}
    found = ours.load_checkpointables(path)
    assert found.keys() == {"config", "pytree", "weights"}
    assert found["config"]["nested"] == {"on": True}


def test_run_is_opened(folder: Path) -> None:
    with ours.training.Checkpointer(folder / "v1-training") as run:
        assert [(step.step, step.metrics) for step in run.checkpoints] == [(7, {"loss": 0.25})]
        assert plain(ours.load(run.checkpoints[0].path)) == plain(
            orbit_ckpt.load(run.checkpoints[0].path)
        )

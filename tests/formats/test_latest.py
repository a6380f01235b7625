"""The newest step of a run of any program: `latest_step`, and what `load` reads of a run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flax import serialization

import orbit_ckpt as ocp
from orbit_ckpt.checkpoint_utils import find_latest_checkpoint
from orbit_ckpt.errors import CheckpointNotFoundError

SAMPLES = Path(__file__).parent / "samples"
STEPS = (5, 40)


def _own(run: Path) -> None:
    for step in STEPS:
        ocp.save(run / f"ckpt-{step}", {"step": step})


def _managed(run: Path) -> None:
    with ocp.CheckpointManager(run, options=ocp.CheckpointManagerOptions(step_prefix="s")) as made:
        for step in STEPS:
            made.save(step, {"step": step})


def _t5x(run: Path) -> None:
    for step in STEPS:
        ocp.save(run.parent / f"source_{step}", {"step": np.int32(step)})
        ocp.convert(run.parent / f"source_{step}", run / f"checkpoint_{step}", to="t5x")


def _flax(run: Path) -> None:
    run.mkdir()
    for step in STEPS:
        (run / f"checkpoint_{step}").write_bytes(serialization.to_bytes({"step": step}))


RUNS = [_own, _managed, _t5x, _flax]


@pytest.mark.parametrize("write", RUNS)
def test_the_newest_step_of_a_run_is_found_and_loaded(
    write: Callable[[Path], None], tmp_path: Path
) -> None:
    write(tmp_path / "run")
    assert ocp.latest_step(tmp_path / "run") == 40
    assert ocp.latest_step(os.fspath(tmp_path / "run")) == 40
    loaded = ocp.load(tmp_path / "run")
    assert loaded.get("default", loaded)["step"] == 40
    assert "step" in str(ocp.metadata(tmp_path / "run").tree)


@pytest.mark.parametrize(("sample", "step"), [("levanter/step-7", 7), ("eformer/run-10", 10)])
def test_the_step_written_last_is_the_newest_of_eformer_and_levanter(
    sample: str, step: int, tmp_path: Path
) -> None:
    at = next((SAMPLES / sample).parent.glob((SAMPLES / sample).name + "*"))
    for number in (step, 900):
        shutil.copytree(at, tmp_path / f"{at.name.rpartition('-')[0]}-{number}")
    (newest,) = tmp_path.glob(f"*-{step}")
    for path in tmp_path.glob("*-900"):
        file = path / "metadata.json"
        file.write_text(file.read_text().replace("20", "19", 1))
    assert find_latest_checkpoint(tmp_path) == newest
    assert ocp.latest_step(tmp_path) == step
    assert sorted(ocp.load(tmp_path)) == sorted(ocp.load(newest))


def test_a_run_without_steps_or_that_does_not_exist_has_no_newest(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "3.orbax-checkpoint-tmp-1").mkdir()
    assert ocp.latest_step(tmp_path / "empty") is None
    assert ocp.latest_step(tmp_path / "none") is None
    assert ocp.latest_step("memory://nothing/here") is None


def test_runs_in_object_stores_have_a_newest_step() -> None:
    for step in (*STEPS, 7):
        ocp.save(f"memory://latest/run/{step}", {"step": step})
    assert ocp.latest_step("memory://latest/run") == 40
    assert ocp.latest_step("memory://latest/run/7") == 7
    assert str(find_latest_checkpoint("memory://latest/run")) == "memory://latest/run/40"
    assert ocp.load("memory://latest/run") == {"step": 40}


def test_a_step_with_a_fraction_is_refused_with_another_way(tmp_path: Path) -> None:
    for step in ("1", "1.5"):
        (tmp_path / f"checkpoint_{step}").write_bytes(serialization.to_bytes({"step": step}))
    with pytest.raises(ValueError, match=r"step 1\.5, .*find_latest_checkpoint"):
        ocp.latest_step(tmp_path)
    assert ocp.load(tmp_path) == {"step": "1.5"}


def test_checkpoints_of_several_series_are_not_a_run_to_load(tmp_path: Path) -> None:
    for name in ("alice_1", "alice_2", "bob_7"):
        ocp.save(tmp_path / name, {"w": 1})
    with pytest.raises(CheckpointNotFoundError, match=r"alice_1, alice_2, bob_7.*give one of them"):
        ocp.load(tmp_path)

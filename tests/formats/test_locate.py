"""What `locate` says is at a path, and that everything that looks at one agrees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.cli.runs import list_run
from orbit_ckpt._src.formats.locate import Kind, locate
from orbit_ckpt.errors import CheckpointNotFoundError

TREE = {"w": np.arange(4.0)}


def old_step(directory: Path, tree: object = None) -> None:
    """Write a checkpoint of a release that left only the files of the tree."""
    ocp.save(directory, tree or TREE)
    for name in ("_CHECKPOINT_METADATA", "commit_success.txt", "orbit_manifest.json"):
        (directory / name).unlink(missing_ok=True)


def test_each_kind_is_told_from_the_others(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, TREE)
    (tmp_path / "run/2.orbax-checkpoint-tmp-1").mkdir()
    (tmp_path / "other").mkdir()
    ocp.convert(tmp_path / "run/1/default", tmp_path / "model.safetensors", to="safetensors")
    kinds = {
        "run": Kind.RUN,
        "run/1": Kind.CHECKPOINT,
        "run/1/default": Kind.ITEM,
        "run/2.orbax-checkpoint-tmp-1": Kind.UNFINISHED,
        "other": Kind.NOTHING,
        "none": Kind.NOTHING,
        "model.safetensors": Kind.FOREIGN,
    }
    assert {name: locate(tmp_path / name).kind for name in kinds} == kinds
    assert locate(tmp_path / "run/1").tree == tmp_path / "run/1/default"


def test_a_run_of_an_old_release_is_loaded_as_its_newest_step(tmp_path: Path) -> None:
    for step in (1, 2):
        old_step(tmp_path / f"run/{step}", {"w": np.full(2, step)})
    assert ocp.load(tmp_path / "run")["w"].tolist() == [2, 2]
    assert ocp.verify(tmp_path / "run").checkpoints == (tmp_path / "run/1", tmp_path / "run/2")
    assert [step.info.step for step in list_run(locate(tmp_path / "run")) or ()] == [1, 2]
    with pytest.raises(CheckpointNotFoundError, match="Give one step of a run"):
        ocp.copy(tmp_path / "run", tmp_path / "copy")


def test_checkpoints_without_numbers_are_named_by_ls_as_by_load(tmp_path: Path) -> None:
    for name in ("alice", "bob"):
        ocp.save(tmp_path / "models" / name, TREE)
    with pytest.raises(CheckpointNotFoundError) as of_load:
        ocp.load(tmp_path / "models")
    with pytest.raises(CheckpointNotFoundError) as of_ls:
        list_run(locate(tmp_path / "models"))
    assert "several checkpoints (alice, bob)" in str(of_ls.value)
    assert str(of_ls.value) in str(of_load.value)


def test_the_format_is_the_one_that_load_reads(tmp_path: Path) -> None:
    ocp.save(tmp_path / "source", TREE)
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    checkpointer.save(tmp_path / "step", ocp.args.Composite(notes=ocp.args.JsonSave({"a": 1})))
    ocp.convert(tmp_path / "source", tmp_path / "step/model.safetensors", to="safetensors")
    assert list(ocp.load(tmp_path / "step")) == ["w"]
    assert ocp.detect_format(tmp_path / "step") == "safetensors"


def test_steps_of_orbax_first_releases_are_steps_everywhere(tmp_path: Path) -> None:
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    for step in (1, 2):
        ocp.Checkpointer(handler).save(tmp_path / f"run/{step}", TREE)
        for entry in (tmp_path / f"run/{step}").iterdir():
            if entry.is_file():
                entry.unlink()
    run = tmp_path / "run"
    assert ocp.verify(run).checkpoints == (run / "1", run / "2")
    assert [step.info.step for step in list_run(locate(run)) or ()] == [1, 2]
    with ocp.CheckpointManager(run) as manager:
        assert manager.all_steps() == [1, 2]

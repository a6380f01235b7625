"""Runs that another program began: its steps are listed, restored, and never deleted unasked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax import serialization

import orbit_ckpt as ocp
from orbit_ckpt import args
from orbit_ckpt.errors import CheckpointError, CheckpointNotFoundError, StepAlreadyExistsError

SAMPLES = Path(__file__).parent.parent / "formats" / "samples"
STATE = {"target": {"w": np.arange(3.0)}, "state": {"step": np.int32(5)}}


def t5x(run: Path) -> None:
    ocp.save(run.parent / "source", STATE, overwrite=True)
    for step in (4, 5):
        ocp.convert(run.parent / "source", run / f"checkpoint_{step}", to="t5x")


def eformer(run: Path) -> None:
    for step, sample in ((4, "run-10_unstructured"), (5, "run-20_structured")):
        shutil.copytree(SAMPLES / "eformer" / sample, run / f"checkpoint_{step}")


def levanter(run: Path) -> None:
    for step in (4, 5):
        shutil.copytree(SAMPLES / "levanter" / "step-7", run / f"checkpoint_{step}")


def flax(run: Path) -> None:
    for step in (4, 5):
        (run / f"checkpoint_{step}").write_bytes(serialization.msgpack_serialize(STATE))


WRITERS = pytest.mark.parametrize("write", [t5x, eformer, levanter, flax])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def open_run(run: Path, **options: Any) -> ocp.CheckpointManager:
    names = ocp.StepNameFormat("checkpoint")
    return ocp.CheckpointManager(
        run, options=ocp.CheckpointManagerOptions(step_name_format=names, **options)
    )


@WRITERS
def test_steps_of_another_program_are_listed_and_restored(
    write: Callable[[Path], None], run: Path
) -> None:
    write(run)
    expected = ocp.load(run / "checkpoint_5")
    with open_run(run) as manager:
        assert manager.all_steps() == [4, 5]
        for found in (
            manager.restore(),
            manager.restore(5, expected),
            manager.restore(5, args=args.StandardRestore(expected)),
            manager.restore(5, args=args.PyTreeRestore(item=expected)),
        ):
            assert not _differs(found, expected)
        metadata = manager.item_metadata(5)
        assert _keys(metadata.tree) == _keys(ocp.metadata(run / "checkpoint_5").tree)


@WRITERS
def test_no_policy_deletes_the_steps_of_another_program(
    write: Callable[[Path], None], run: Path
) -> None:
    write(run)
    with open_run(run, max_to_keep=1, cleanup_tmp_directories=True) as manager:
        for step in (6, 7):
            manager.save(step, {"w": np.arange(3)})
        assert "step 4: kept by Foreign()" in str(manager.retention())
    with open_run(run) as manager:
        assert manager.all_steps() == [4, 5, 7]
        manager.restore(4)
        manager.delete(4)
        assert manager.all_steps() == [5, 7]
    assert not (run / "checkpoint_4").exists()


@WRITERS
def test_a_step_that_another_program_wrote_is_not_saved_again(
    write: Callable[[Path], None], run: Path
) -> None:
    write(run)
    with open_run(run) as manager, pytest.raises(StepAlreadyExistsError):
        manager.save(5, STATE, force=True)


def test_a_restore_that_failed_does_not_decide_how_the_next_step_is_saved(run: Path) -> None:
    t5x(run)
    (run / "checkpoint_5" / "checkpoint").write_bytes(b"\x82\xa7version\x01")
    tree = {"w": np.arange(3)}
    with open_run(run) as manager:
        with pytest.raises(CheckpointError):
            manager.restore()
        with pytest.raises(CheckpointError):
            manager.item_metadata(5)
        assert manager.save(6, tree)
        assert manager.restore(6)["w"].tolist() == [0, 1, 2]


def test_a_restore_that_failed_leaves_items_with_names_possible_too(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"w": np.arange(3)})
    shutil.rmtree(tmp_path / "run" / "1" / "default" / "d")
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        with pytest.raises(CheckpointError):
            manager.restore(1)
        manager.save(2, args=args.Composite(state=args.StandardSave({"w": np.arange(3)})))
        assert list(manager.restore(2)) == ["state"]


def test_a_damaged_step_of_another_program_is_not_deleted(run: Path) -> None:
    t5x(run)
    (run / "checkpoint_4" / "checkpoint").write_bytes(b"")
    with open_run(run, max_to_keep=1) as manager:
        manager.save(6, {"w": 1})
        manager.save(7, {"w": 1})
    assert (run / "checkpoint_4").is_dir()


def test_a_manager_of_items_restores_a_tree_as_the_one_item_that_is_asked_for(run: Path) -> None:
    t5x(run)
    options = ocp.CheckpointManagerOptions(step_name_format=ocp.StepNameFormat("checkpoint"))
    with ocp.CheckpointManager(run, options=options, item_names=("state", "extra")) as manager:
        found = manager.restore(5, args=args.Composite(state=args.StandardRestore()))
        assert found.state["target"]["w"].tolist() == [0, 1, 2]
        both = args.Composite(state=args.StandardRestore(), extra=args.JsonRestore())
        with pytest.raises(CheckpointNotFoundError, match=r"one tree and has no items.*'extra'"):
            manager.restore(5, args=both)


def test_steps_that_were_saved_without_items_are_restored(run: Path) -> None:
    for step in (1, 2):
        ocp.save(run / f"{step}", {"w": np.full(2, step)}, custom_metadata={"by": "save"})
    with ocp.CheckpointManager(run) as manager:
        assert manager.restore()["w"].tolist() == [2, 2]
        assert manager.item_metadata(1).tree["w"].shape == (2,)
        assert manager.metadata(1).custom_metadata == {"by": "save"}
        manager.save(3, {"w": np.full(2, 3)})
        assert manager.restore()["w"].tolist() == [3, 3]


def test_of_a_step_in_two_forms_the_own_one_is_used(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    t5x(run)
    ocp.save(run / "checkpoint_05", {"own": 1})
    with open_run(run) as manager:
        assert manager.all_steps() == [4, 5]
        assert manager.restore(5) == {"own": 1}
    assert "checkpoint_05 is used" in caplog.text


@pytest.mark.parametrize("write", [t5x, eformer, levanter])
def test_a_copied_step_of_another_program_is_still_never_deleted(
    run: Path, write: Callable[[Path], None]
) -> None:
    write(run)
    copies = run.parent / "copies"
    for step in (4, 5):
        ocp.copy(run / f"checkpoint_{step}", copies / f"checkpoint_{step}")
    with open_run(copies, max_to_keep=1) as manager:
        manager.save(6, {"w": 1})
        manager.save(7, {"w": 1})
        manager.wait_until_finished()
        assert manager.all_steps() == [4, 5, 7]


def _keys(tree: Any) -> Any:
    return {k: _keys(v) for k, v in tree.items()} if isinstance(tree, dict) else None


def _differs(a: object, b: object) -> bool:
    try:
        np.testing.assert_equal(a, b)
    except AssertionError:
        return True
    return False

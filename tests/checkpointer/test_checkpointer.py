"""The classes of Orbax's API: forms of arguments, metadata, custom metadata."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointNotFoundError, TreeMismatchError
from tests.support import LAYOUTS, assert_same_tree, checkpointer

TREE = {"a": np.arange(3.0), "b": [np.int32(1), "text"]}
PYTREE = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"
STANDARD = "orbax.checkpoint._src.handlers.standard_checkpoint_handler.StandardCheckpointHandler"


def test_every_form_of_save_arguments_saves_the_same(tmp_path: Path) -> None:
    saver = checkpointer()
    saver.save(tmp_path / "1", TREE)
    saver.save(tmp_path / "2", item=TREE)
    saver.save(tmp_path / "3", args=ocp.args.PyTreeSave(TREE))
    saver.save(tmp_path / "4", ocp.args.PyTreeSave(item=TREE))
    for path in tmp_path.iterdir():
        assert_same_tree(ocp.load(path), TREE)


def test_every_form_of_restore_arguments_restores_the_same(tmp_path: Path) -> None:
    loader = checkpointer()
    loader.save(tmp_path / "x", TREE)
    target = jax.tree.map(lambda _: 0, TREE)
    for restored in (
        loader.restore(tmp_path / "x"),
        loader.restore(tmp_path / "x", target),
        loader.restore(tmp_path / "x", item=target),
        loader.restore(tmp_path / "x", args=ocp.args.PyTreeRestore(target)),
        loader.restore(tmp_path / "x", ocp.args.PyTreeRestore(item=target)),
    ):
        assert_same_tree(restored, TREE)


def test_restore_arguments_choose_types(tmp_path: Path) -> None:
    with ocp.PyTreeCheckpointer() as both:
        both.save(tmp_path / "x", {"a": np.arange(3, dtype=np.float32)})
        args = {"a": ocp.RestoreArgs(restore_type=np.ndarray, dtype=np.float16)}
        assert both.restore(tmp_path / "x", restore_args=args)["a"].dtype == np.float16


def test_arguments_given_twice_or_unknown_are_refused(tmp_path: Path) -> None:
    both = checkpointer()
    both.save(tmp_path / "x", TREE)
    with pytest.raises(ValueError, match="argument 2: found with a PyTreeRestoreArgs that says"):
        both.restore(tmp_path / "x", TREE, args=ocp.args.PyTreeRestore({"w": 0}))
    with pytest.raises(ValueError, match="partial_restore: found with a PyTreeRestoreArgs"):
        both.restore(tmp_path / "x", args=ocp.args.PyTreeRestore(TREE), partial_restore=True)
    with pytest.raises(TypeError, match="expected at most item, restore_args, transforms, "):
        both.restore(tmp_path / "x", TREE, None, None, True, None, False, False, 5)
    with pytest.raises(TypeError, match="'bogus'"):
        both.save(tmp_path / "y", TREE, bogus=1)
    with pytest.raises(TypeError, match="item"):
        both.save(tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_arguments_of_another_handler_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match="PyTreeRestore"):
        checkpointer().save(tmp_path / "x", args=ocp.args.PyTreeRestore(TREE))
    with pytest.raises((TypeError, ValueError), match="PyTreeSave"):
        ocp.Checkpointer(ocp.StandardHandler()).save(tmp_path / "x", args=ocp.args.PyTreeSave(TREE))
    checkpointer().save(tmp_path / "y", TREE)
    with pytest.raises((TypeError, ValueError), match="StandardRestore"):
        checkpointer().restore(tmp_path / "y", args=ocp.args.StandardRestore(TREE))
    assert not (tmp_path / "x").exists()


def test_a_checkpointer_closes_its_handler_at_the_end_of_a_block(tmp_path: Path) -> None:
    closed: list[bool] = []

    class Handler(ocp.PyTreeHandler):
        def close(self) -> None:
            closed.append(True)

    with ocp.Checkpointer(Handler()) as both:
        both.save(tmp_path / "x", TREE)
        assert isinstance(both.handler, Handler)
        assert not closed
    assert closed == [True]


def test_the_standard_handler_is_strict_about_its_target(tmp_path: Path) -> None:
    both = ocp.Checkpointer(ocp.StandardHandler())
    both.save(tmp_path / "x", args=ocp.args.StandardSave(TREE))
    assert_same_tree(both.restore(tmp_path / "x"), TREE)
    assert_same_tree(both.restore(tmp_path / "x", args=ocp.args.StandardRestore(TREE)), TREE)
    with pytest.raises(TreeMismatchError, match=r"a: shape \(4,\) wanted, \(3,\) stored"):
        both.restore(tmp_path / "x", TREE | {"a": np.ones(4)})
    with pytest.raises(TreeMismatchError, match=r"(?s)missing in the checkpoint:\s+c"):
        both.restore(tmp_path / "x", TREE | {"c": np.ones(4)})


def test_a_checkpoint_tells_its_handler_by_orbax_names(tmp_path: Path) -> None:
    ocp.PyTreeCheckpointer().save(tmp_path / "p", TREE)
    ocp.Checkpointer(ocp.StandardHandler()).save(tmp_path / "s", TREE)
    assert ocp.PyTreeCheckpointer().metadata(tmp_path / "p").item_handlers == PYTREE
    assert ocp.PyTreeCheckpointer().metadata(tmp_path / "s").item_handlers == STANDARD


def test_metadata_tells_leaves_times_and_the_users_own(tmp_path: Path) -> None:
    before = time.time_ns()
    both = checkpointer()
    both.save(tmp_path / "x", TREE, custom_metadata={"loss": 0.5})
    step = both.metadata(tmp_path / "x")
    tree = step.item_metadata
    assert isinstance(tree, type(ocp.metadata(tmp_path / "x")))
    assert tree["a"].shape == (3,)  # pyright: ignore[reportIndexIssue] - a dict
    assert tree["a"].dtype == np.float64  # pyright: ignore[reportIndexIssue] - a dict
    assert step.init_timestamp_nsecs is not None
    assert step.commit_timestamp_nsecs is not None
    assert before < step.init_timestamp_nsecs < step.commit_timestamp_nsecs < time.time_ns()
    assert step.custom_metadata == {"loss": 0.5}


@pytest.mark.parametrize(
    "custom", [{}, {"a": [1, 2.5, None, True, {"ä/~": "ü"}], "": {}}], ids=["empty", "nested"]
)
def test_custom_metadata_round_trips(custom: dict[str, object], tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", TREE, custom_metadata=custom)
    assert ocp.metadata(tmp_path / "x").custom_metadata == custom
    assert checkpointer().metadata(tmp_path / "x").custom_metadata == custom


SCALARS = {
    "jax": jnp.float32(1),
    "half": jnp.bfloat16(1.5),
    "numpy": [np.float32(0.5), np.int64(3), (np.bool_(True), np.array(2))],
}
PLAIN = {"jax": 1.0, "half": 1.5, "numpy": [0.5, 3, [True, 2]]}


def test_scalars_of_numpy_and_jax_are_numbers_in_every_json_document(tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", TREE, custom_metadata=SCALARS)
    assert ocp.metadata(tmp_path / "a").custom_metadata == PLAIN
    trees = checkpointer()
    trees.save(tmp_path / "b", TREE, custom_metadata=SCALARS)
    assert trees.metadata(tmp_path / "b").custom_metadata == PLAIN
    trees.save(tmp_path / "c", args=ocp.args.PyTreeSave(TREE, custom_metadata=SCALARS))
    item: Any = trees.metadata(tmp_path / "c").item_metadata
    assert item.custom_metadata == PLAIN
    document = ocp.Checkpointer(ocp.JsonCheckpointHandler())
    document.save(tmp_path / "d", args=ocp.args.JsonSave(SCALARS))
    assert document.restore(tmp_path / "d") == PLAIN
    with ocp.CheckpointManager(tmp_path / "run", metadata=SCALARS) as run:
        run.save(1, TREE, metrics=SCALARS, custom_metadata=SCALARS)
        run.wait_until_finished()
        assert run.metadata().custom_metadata == PLAIN
        assert run.metrics(1) == run.metadata(1).custom_metadata == PLAIN


@pytest.mark.parametrize("value", [1, 0, np.bool_(True), np.int64(0), jnp.array(True)])
@pytest.mark.parametrize("name", ["use_ocdbt", "use_zarr3", "use_compression"])
def test_flags_may_be_zero_and_one(name: str, value: Any, tmp_path: Path) -> None:
    trees: Any = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**{name: value}))
    trees.save(tmp_path / "x", TREE)
    assert_same_tree(trees.restore(tmp_path / "x"), TREE)
    recorded = json.loads((tmp_path / "x" / "_METADATA").read_text())
    assert recorded.get(name, bool(value)) is bool(value)


@pytest.mark.parametrize("value", ["false", 2, 0.5, np.ones(2), [True]])
def test_a_flag_of_another_type_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(TypeError, match="use_zarr3 is"):
        ocp.PyTreeCheckpointHandler(use_zarr3=value)


@pytest.mark.parametrize(
    "flags",
    [
        {"use_zarr3": 1},
        {"use_ocdbt": 0},
        {"use_ocdbt": 1, "use_zarr3": 0},
        {"use_ocdbt": None, "use_zarr3": None},
    ],
)
def test_checkpoints_that_orbax_wrote_with_flags_of_zero_and_one_are_read(
    flags: dict[str, Any], tmp_path: Path
) -> None:
    theirs = orbax.Checkpointer(orbax.PyTreeCheckpointHandler(**flags))
    tree = {"a": jnp.arange(3), "b": [np.ones(2), 1, "text"], "none": {}}
    theirs.save(tmp_path / "x", tree)
    assert_same_tree(ocp.load(tmp_path / "x"), tree)
    assert ocp.verify(tmp_path / "x").is_intact


@pytest.mark.parametrize("custom", [{"x": object()}, {"x": {1, 2}}, {"x": np.ones(2)}, [1, 2]])
def test_custom_metadata_that_is_not_json_is_refused_before_anything_is_written(
    custom: dict[str, object], tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="custom_metadata"):
        ocp.save(tmp_path / "x", TREE, custom_metadata=custom)
    with pytest.raises(TypeError, match="custom_metadata"):
        checkpointer().save(tmp_path / "x", TREE, custom_metadata=custom)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("in_place", [False, True], ids=["renamed", "marked"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_path_need_not_be_utf8(layout: dict[str, Any], in_place: bool, tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"na\xefve")
    path = root / "saved"
    mode = ocp.AtomicityMode.COMMIT_FILE if in_place else ocp.AtomicityMode.AUTO
    handler = ocp.PyTreeHandler(**layout)
    saver = ocp.Checkpointer(handler, atomicity_options=ocp.AtomicityOptions(mode=mode))
    value = np.arange(5000.0)
    saver.save(path, args=ocp.args.PyTreeSave({"w": value, "text": "x"}))
    assert np.array_equal(ocp.load(path)["w"], value)
    assert ocp.verify(path)
    with ocp.CheckpointManager(root / "run") as run:
        run.save(1, {"w": value})
        run.wait_until_finished()
        assert np.array_equal(run.restore(1)["w"], value)
    ocp.convert(path, root / "checkpoint_1", to="t5x", skip="text")  # which TensorStore reads
    assert np.array_equal(ocp.load(root / "checkpoint_1")["w"], value)


def test_permissions_of_the_directory_can_be_chosen(tmp_path: Path) -> None:
    options = ocp.FileOptions(path_permission_mode=0o750)
    ocp.Checkpointer(ocp.PyTreeHandler(), file_options=options).save(tmp_path / "x", TREE)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o750


def test_load_beside_an_unfinished_save_says_so(tmp_path: Path) -> None:
    for i in range(9):
        (tmp_path / f"a{i}").mkdir()
    (tmp_path / "x.orbax-checkpoint-tmp-orbit-1").mkdir()
    with pytest.raises(CheckpointNotFoundError, match="a save of it is in progress, or did not"):
        ocp.load(tmp_path / "x")

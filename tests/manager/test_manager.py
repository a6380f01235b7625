"""The steps of a run: saved when the policies say so, kept as long, never lost."""

from __future__ import annotations

import logging
import os
import signal
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import (
    BackgroundSaveError,
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    StepAlreadyExistsError,
    StepNotFoundError,
    StorageError,
)
from orbit_ckpt.policies import (
    AnySavePolicy,
    FixedIntervalPolicy,
    LatestN,
    PreserveAll,
    TemporaryPolicy,
)
from tests.support import entries

Options = ocp.CheckpointManagerOptions


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full(4, step, np.float32), "step": step}


@pytest.mark.parametrize("background", [True, False])
def test_steps_are_saved_listed_and_restored(run: Any, background: bool) -> None:
    manager = run(enable_async_checkpointing=background, max_to_keep=2)
    for step in (0, 1, np.int32(2)):
        assert manager.save(step, tree(int(step)), metrics={"loss": jnp.float32(0.5)})
    manager.wait_until_finished()
    assert manager.all_steps() == [1, 2]
    assert manager.latest_step() == 2
    restored = manager.restore()
    assert restored["step"] == 2
    assert isinstance(restored["w"], np.ndarray)
    np.testing.assert_array_equal(manager.restore(1)["w"], tree(1)["w"])
    assert manager.metrics(2) == {"loss": 0.5}
    assert run().all_steps() == [1, 2]


def test_a_target_decides_types_and_shapes(run: Any) -> None:
    manager = run()
    manager.save(1, {"w": jnp.ones((2, 3)), "n": 1})
    assert isinstance(manager.restore(1)["w"], jax.Array)
    target = {"w": np.zeros((2, 3), np.float32), "n": 0}
    restored = manager.restore(1, target)
    assert type(restored["w"]) is np.ndarray
    with pytest.raises(CheckpointError, match="w"):
        manager.restore(1, {"w": np.zeros((2, 4), np.float32), "n": 0})


def test_a_tree_comes_back_as_it_was(run: Any) -> None:
    state = {"t": (1, [2.0, None]), "e": (), "s": "text"}
    manager = run()
    manager.save(1, state)
    manager.close()
    assert run().restore() == state


def test_several_items_have_names(run: Any) -> None:
    manager = run()
    manager.save(
        3,
        args=ocp.args.Composite(
            state=ocp.args.PyTreeSave(tree(3)), data=ocp.args.JsonSave({"position": 7})
        ),
    )
    manager.wait_until_finished()
    restored = run().restore(3)
    assert restored.data == {"position": 7}
    assert restored.state["step"] == 3
    partly = manager.restore(3, args=ocp.args.Composite(data=ocp.args.JsonRestore()))
    assert list(partly) == ["data"]
    shape = manager.item_metadata(3).state.tree["w"].shape
    assert shape == (4,)


def test_orbaxs_older_ways_to_say_it_work(run: Any) -> None:
    manager = run(checkpointers=ocp.PyTreeCheckpointer())
    manager.save(1, tree(1), save_kwargs={"save_args": None})
    assert manager.all_steps() == [1]  # a checkpointer that is not asynchronous
    assert manager.restore(1)["step"] == 1
    manager.close()
    both = {"state": ocp.PyTreeHandler(), "data": ocp.JsonHandler()}
    manager = run(item_handlers=both)
    manager.save(2, {"state": tree(2), "data": [1]})
    assert manager.restore(2, {"data": None})["data"] == [1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Nothing to save"),
        ({"items": ocp.args.PyTreeSave({"a": 1})}, "give it by name"),
        ({"args": {"a": 1}}, "must be CheckpointArgs"),
    ],
)
def test_what_is_to_be_saved_must_be_said(run: Any, given: Any, message: str) -> None:
    manager = run()
    with pytest.raises(ValueError, match=message):
        manager.save(1, **given)
    assert manager.all_steps() == []


def test_one_item_and_several_are_not_mixed(run: Any) -> None:
    single, several = run(), run(item_names=["state"])
    single.save(1, {"a": 1})
    with pytest.raises(ValueError, match="one item without a name"):
        single.save(2, args=ocp.args.Composite(state=ocp.args.PyTreeSave({"a": 1})))
    with pytest.raises(ValueError, match="several items"):
        several.save(2, args=ocp.args.PyTreeSave({"a": 1}))


def test_metrics_cannot_be_an_item_too(run: Any) -> None:
    args = ocp.args.Composite(metrics=ocp.args.JsonSave({"loss": 1}))
    with pytest.raises(ValueError, match="give one of them"):
        run().save(1, args=args, metrics={"loss": 1})


def test_other_managers_list_a_step_only_when_it_is_durable(
    run: Any, slow: threading.Event
) -> None:
    manager = run()
    manager.save(5, tree(5))
    assert manager.is_saving_in_progress()
    assert manager.latest_step() == 5
    assert run().all_steps() == []
    assert not manager.should_save(5)
    with pytest.raises(StepAlreadyExistsError, match="Step 5"):
        manager.save(5, tree(5), force=True)
    slow.set()
    assert manager.restore(manager.latest_step())["w"].tolist() == tree(5)["w"].tolist()
    assert manager.latest_step() == 5


@pytest.mark.parametrize("call", ["metadata", "metrics", "delete"])
def test_what_needs_a_durable_step_waits_for_it(run: Any, slow: threading.Event, call: str) -> None:
    manager = run()
    manager.save(5, tree(5), metrics={"loss": 1.0})
    later = threading.Timer(0.1, slow.set)
    later.start()
    found = getattr(manager, call)(5)
    later.join()
    if call == "delete":
        assert manager.all_steps() == []
    else:
        assert (found if call == "metrics" else found.metrics) == {"loss": 1.0}


def test_a_subclass_finds_the_steps_where_that_of_orbax_has_them(tmp_path: Path) -> None:
    class Manager(ocp.CheckpointManager):  # as Kauldron's
        def all_steps(self, read: bool = False) -> list[int]:  # noqa: ARG002 - as in the base
            return [info.step for info in self._checkpoints]

    with Manager(tmp_path / "run") as manager:
        manager.save(3, tree(3))
        manager.save(5, tree(5))
        manager.wait_until_finished()
        assert manager.all_steps() == [3, 5]


def test_what_is_saved_may_be_changed_at_once(run: Any, slow: threading.Event) -> None:
    manager = run()
    state = tree(1)
    manager.save(1, state)
    state["w"][:] = -1
    slow.set()
    np.testing.assert_array_equal(manager.restore()["w"], tree(1)["w"])


def test_a_step_is_saved_once_and_in_order(run: Any) -> None:
    manager = run()
    manager.save(5, tree(5))
    manager.wait_until_finished()
    assert not manager.save(5, tree(5))
    assert not manager.save(4, tree(4))
    with pytest.raises(StepAlreadyExistsError):
        manager.save(5, tree(5), force=True)
    assert manager.save(4, tree(4), force=True)


def test_a_step_that_another_process_has_saved_is_not_replaced(run: Any) -> None:
    first, second = run(), run()
    first.save(1, tree(1))
    first.wait_until_finished()
    with pytest.raises(StepAlreadyExistsError):
        second.save(1, tree(2))
    assert second.all_steps(read=True) == [1]
    assert second.restore(1)["step"] == 1


@pytest.mark.parametrize("value", [True, 1.5, "1", None])
def test_steps_are_integers(run: Any, value: Any) -> None:
    with pytest.raises(TypeError, match="step"):
        run().save(value, tree(1))


def test_a_failed_save_is_told_once_by_the_next_which_goes_on(
    run: Any, failing: set[str], tmp_path: Path
) -> None:
    manager = run()
    failing.add("1")
    manager.save(1, tree(1))
    with pytest.raises(BackgroundSaveError, match=r"step 1 .*No space left") as caught:
        manager.save(2, tree(2))
    assert caught.value.step == 1
    manager.wait_until_finished()
    assert manager.all_steps() == [2]
    assert entries(tmp_path / "run") == {"2"}
    failing.clear()
    assert manager.save(3, tree(3))


@pytest.mark.parametrize("method", ["check_for_errors", "wait_until_finished", "close"])
def test_a_failed_save_is_told_by(run: Any, failing: set[str], method: str) -> None:
    manager = run()
    failing.add("1")
    manager.save(1, tree(1))
    manager._writer._pending.wait()
    with pytest.raises(BackgroundSaveError, match="step 1"):
        getattr(manager, method)()
    getattr(manager, method)()


def test_a_failed_save_is_told_by_a_save_that_the_policies_do_not_want(
    run: Any, failing: set[str]
) -> None:
    manager = run(save_interval_steps=10)
    failing.add("10")
    manager.save(10, tree(10), force=True)
    manager._writer._pending.wait()
    with pytest.raises(BackgroundSaveError, match="step 10"):
        manager.save(11, tree(11))


def test_old_steps_stay_if_the_new_one_fails(run: Any, failing: set[str]) -> None:
    manager = run(max_to_keep=1)
    manager.save(1, tree(1))
    manager.wait_until_finished()
    failing.add("2")
    manager.save(2, tree(2))
    with pytest.raises(BackgroundSaveError):
        manager.wait_until_finished()
    assert manager.all_steps() == [1]


def test_old_steps_stay_until_the_new_one_is_durable(run: Any, slow: threading.Event) -> None:
    slow.set()
    manager = run(max_to_keep=1)
    manager.save(1, tree(1))
    manager.wait_until_finished()
    slow.clear()
    manager.save(2, tree(2))
    assert run().all_steps() == [1]
    slow.set()
    manager.wait_until_finished()
    assert run().all_steps() == [2]


@pytest.mark.parametrize(("keep_latest", "expected"), [(True, [1, 2, 5]), (False, [1, 2])])
def test_best_steps_are_kept_and_the_newest(
    run: Any, keep_latest: bool, expected: list[int]
) -> None:
    warned = pytest.warns(UserWarning, match="deletes the newest") if not keep_latest else None
    fields: dict[str, Any] = {"best_fn": lambda m: m["acc"], "max_to_keep": 2}
    if warned is None:
        manager = run(**fields)
    else:
        with warned:
            options = Options(**fields, keep_latest=False)
        manager = run(options=options)
    for step in range(1, 6):
        manager.save(step, tree(step), metrics={"acc": 1 / step})
    manager.wait_until_finished()
    assert manager.all_steps() == expected
    assert manager.best_step() == 1
    assert run(best_fn=lambda m: m["acc"], best_mode="min").best_step() == expected[-1]


def test_a_policy_that_fails_deletes_nothing_and_says_so(run: Any) -> None:
    manager = run(best_fn=lambda m: m["nope"], max_to_keep=1)
    for step in (1, 2):
        manager.save(step, tree(step), metrics={"acc": 1.0})
        manager._writer._pending.wait()
    with pytest.raises(CheckpointError, match=r"No step was deleted.*nope"):
        manager.check_for_errors()
    assert manager.all_steps() == [1, 2]


def test_metrics_can_be_used_without_being_written(run: Any, tmp_path: Path) -> None:
    manager = run(best_fn=lambda m: m["acc"], prevent_write_metrics=True)
    for step, value in enumerate([0.1, 0.9, 0.5]):
        manager.save(step, tree(step), metrics={"acc": value})
    manager.wait_until_finished()
    assert manager.best_step() == 1
    assert not (tmp_path / "run" / "1" / "metrics").exists()


def test_pinned_steps_stay(run: Any) -> None:
    manager = run(max_to_keep=1)
    manager.save(1, tree(1))
    manager.wait_until_finished()
    manager.pin(1)
    manager.save(2, tree(2))
    manager.wait_until_finished()
    again = run(max_to_keep=1)
    again.save(3, tree(3))
    again.wait_until_finished()
    assert again.all_steps() == [1, 3]
    assert again.restore(1)["step"] == 1
    again.unpin(1)
    assert again.retention().deleted == [1]


def test_temporary_steps_go_with_the_next_and_across_restarts(run: Any) -> None:
    policy = AnySavePolicy([FixedIntervalPolicy(10), TemporaryPolicy(FixedIntervalPolicy(1))])
    manager = run(save_decision_policy=policy)
    for step in (10, 11, 12):
        assert manager.save(step, tree(step))
    manager.close()
    manager = run(save_decision_policy=policy)
    assert manager.all_steps() == [10, 12]
    manager.save(13, tree(13))
    manager.wait_until_finished()
    assert manager.all_steps() == [10, 13]
    manager.save(20, tree(20))
    manager.save(21, tree(21), force=True)
    manager.wait_until_finished()
    assert manager.all_steps() == [10, 20, 21]


def test_items_of_old_steps_are_dropped(run: Any) -> None:
    manager = run(item_preservation_policies={"data": LatestN(1)})
    for step in (1, 2, 3):
        args = ocp.args.Composite(
            state=ocp.args.PyTreeSave(tree(step)), data=ocp.args.JsonSave(step)
        )
        manager.save(step, args=args)
    manager.wait_until_finished()
    assert [sorted(run().restore(step)) for step in (1, 2, 3)] == [
        ["state"],
        ["state"],
        ["data", "state"],
    ]
    assert ocp.verify(manager.directory).is_intact  # what was dropped on purpose is not missing


def test_deleted_steps_can_be_put_aside(run: Any, tmp_path: Path) -> None:
    manager = run(max_to_keep=1, todelete_subdir="old")
    for step in (1, 2, 3):
        manager.save(step, tree(step))
    manager.wait_until_finished()
    assert manager.all_steps() == [3]
    assert entries(tmp_path / "run" / "old") == {"1", "2"}
    assert ocp.load(tmp_path / "run" / "old" / "1" / "default")["step"] == 1


@pytest.mark.parametrize("background", [True, False])
def test_steps_are_deleted(run: Any, background: bool, tmp_path: Path) -> None:
    manager = run(enable_background_delete=background)
    for step in (1, 2):
        manager.save(step, tree(step))
    manager.wait_until_finished()
    manager.delete(1)
    manager.wait_until_finished()
    assert manager.all_steps() == [2]
    assert entries(tmp_path / "run") == {"2"}
    with pytest.raises(StepNotFoundError, match=r"no step 1 .*the latest are: 2"):
        manager.delete(1)


def test_a_deletion_that_fails_is_told_and_is_no_failed_save(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run(max_to_keep=1)
    manager.save(1, tree(1))
    manager.wait_until_finished()

    def refuse(self: Path, target: Path) -> Path:
        if "deleted" in str(target):
            raise PermissionError(13, "Permission denied")
        os.rename(self, target)
        return target

    monkeypatch.setattr(Path, "rename", refuse)
    manager.save(2, tree(2))
    with pytest.raises(StorageError, match=r"Deleting step 1 .*Permission denied"):
        manager.wait_until_finished()
    assert manager.all_steps() == [1, 2]
    monkeypatch.undo()
    manager.save(3, tree(3))
    manager.wait_until_finished()
    assert manager.all_steps() == [3]


def test_what_the_manager_did_not_write_stays(run: Any, tmp_path: Path) -> None:
    root = tmp_path / "run"
    (root / "7").mkdir(parents=True)
    (root / "7" / "notes.txt").write_text("mine")
    (root / "8.orbax-checkpoint-tmp").mkdir()
    manager = run(max_to_keep=1)
    for step in (1, 2):
        manager.save(step, tree(step))
    manager.wait_until_finished()
    assert manager.all_steps() == [2]
    assert entries(root) == {"2", "7", "8.orbax-checkpoint-tmp"}
    run(cleanup_tmp_directories=True)
    assert entries(root) == {"2", "7"}


def test_leftovers_of_dead_processes_go_and_saves_that_go_on_stay(
    run: Any, slow: threading.Event, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    manager = run()
    manager.save(5, tree(5))
    dead = root / "4.orbax-checkpoint-tmp-orbit-1"
    (dead / "default").mkdir(parents=True)
    half = root / "3.orbax-checkpoint-tmp-deleted-1"
    half.mkdir()
    run()
    assert len(entries(root)) == 1
    slow.set()
    manager.wait_until_finished()
    assert run().all_steps() == [5]


@pytest.mark.parametrize("damaged", [[5], [5, 4]])
def test_restore_falls_back_to_the_newest_intact_step(
    run: Any, tmp_path: Path, damaged: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    manager = run()
    for step in (3, 4, 5):
        manager.save(step, {"w": np.arange(9000.0) + step})
    manager.wait_until_finished()
    for step in damaged:
        data = max((tmp_path / "run" / str(step)).rglob("*"), key=lambda p: p.stat().st_size)
        flipped = bytearray(data.read_bytes())
        flipped[len(flipped) // 2] ^= 1
        data.write_bytes(flipped)
    with pytest.raises(CheckpointError):
        manager.restore(5)
    restored = manager.restore(fallback=True)
    intact = damaged[-1] - 1
    np.testing.assert_array_equal(restored["w"], np.arange(9000.0) + intact)
    assert sorted(manager.refused) == sorted(damaged)
    assert f"An older step, {intact}, is restored. Step 5: " in caplog.text
    assert manager.latest_step() == intact
    assert manager.save(5, {"w": np.arange(3.0)})  # in its place
    manager.wait_until_finished()
    assert manager.restore()["w"].shape == (3,)
    assert not {5} & set(manager.refused)


def test_falling_back_does_not_hide_a_wrong_target(run: Any) -> None:
    manager = run()
    manager.save(1, tree(1))
    with pytest.raises(CheckpointError, match="missing"):
        manager.restore(1, {"missing": 1}, fallback=True)
    assert manager.refused == {}


def test_falling_back_says_why_if_no_step_is_intact(run: Any, tmp_path: Path) -> None:
    manager = run()
    manager.save(1, tree(1))
    manager.wait_until_finished()
    (tmp_path / "run" / "1" / "default" / "_METADATA").write_bytes(b"{")
    with pytest.raises(StepNotFoundError, match=r"No step can be restored. Step 1: .*_METADATA"):
        manager.restore(fallback=True)


def test_an_empty_run_has_no_step(run: Any) -> None:
    manager = run()
    assert manager.latest_step() is manager.best_step() is None
    with pytest.raises(StepNotFoundError, match="No steps found in"):
        manager.restore()
    with pytest.raises(FileNotFoundError):
        manager.restore(3)


def test_step_0_is_a_step_like_others(run: Any) -> None:
    manager = run()
    manager.save(0, tree(0))
    manager.wait_until_finished()
    assert run().latest_step() == 0
    assert manager.restore()["step"] == 0


def test_another_run_can_be_restored_from(run: Any, tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "other") as other:
        other.save(9, tree(9))
    assert run().restore(directory=tmp_path / "other")["step"] == 9


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"step_prefix": "ckpt", "step_format_fixed_length": 4}, "ckpt_0007"),
        ({"step_name_format": ocp.StepNameFormat("run", separator="-")}, "run-7"),
    ],
)
def test_steps_are_named(run: Any, tmp_path: Path, fields: dict[str, Any], name: str) -> None:
    manager = run(**fields)
    manager.save(7, tree(7))
    manager.wait_until_finished()
    assert entries(tmp_path / "run") == {name}
    assert run(**fields).latest_step() == 7


@pytest.mark.parametrize(
    ("fields", "saved"),
    [
        ({"save_interval_steps": 3}, [1, 3, 6]),
        ({"save_interval_steps": 5, "save_on_steps": [2]}, [1, 2, 5]),
        ({"save_interval_steps": np.int64(5), "save_on_steps": np.array([2, 3])}, [1, 2, 3, 5]),
        ({"should_save_fn": lambda step, last: last is None or step - last >= 2}, [1, 3, 5, 7]),
    ],
)
def test_options_say_when_to_save(run: Any, fields: dict[str, Any], saved: list[int]) -> None:
    manager = run(**fields)
    for step in range(1, 8):
        wanted = manager.should_save(step)
        assert manager.save(step, tree(step)) is wanted
    manager.wait_until_finished()
    assert manager.all_steps() == saved


def test_a_run_that_is_read_only_is_not_changed(run: Any, tmp_path: Path) -> None:
    assert run(read_only=True).all_steps() == []  # opened before the training has begun
    assert not (tmp_path / "run").exists()
    writer = run()
    writer.save(1, tree(1))
    writer.wait_until_finished()
    leftover = tmp_path / "run" / "4.orbax-checkpoint-tmp-orbit-1"
    leftover.mkdir()
    reader = run(read_only=True, max_to_keep=0)
    assert not reader.should_save(2)
    assert not reader.save(2, tree(2), force=True)
    reader.delete(1)
    assert reader.all_steps() == [1]
    assert leftover.exists()


def test_metadata_of_a_run_stay_as_they_were_first(run: Any, tmp_path: Path) -> None:
    assert run(metadata={"model": "a"}).metadata().custom_metadata == {"model": "a"}
    assert run(metadata={"model": "b"}).metadata().custom_metadata == {"model": "a"}
    assert entries(tmp_path / "run" / "metadata") == {"_ROOT_METADATA"}
    with pytest.raises(TypeError, match="JSON"):
        ocp.CheckpointManager(tmp_path / "x", metadata={"model": object()})


@pytest.mark.parametrize("options", [{"read_only": True}, {"save_root_metadata": False}])
def test_metadata_that_may_not_be_written_are_those_of_the_manager(
    run: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "run").mkdir()
    given = {"model": "b"}
    manager = run(metadata=given, **options)
    given["model"] = "changed"
    assert manager.metadata().custom_metadata == {"model": "b"}
    assert entries(tmp_path / "run") == set()
    assert run().metadata().custom_metadata == {}
    run(metadata={"model": "a"})
    assert manager.metadata().custom_metadata == {"model": "a"}


def test_an_item_that_cannot_be_read_leaves_the_metadata_of_its_step(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    items = {name: ocp.args.StandardSave(tree(1)) for name in ("a", "b")}
    manager = run(item_names=("a", "b"))
    args = ocp.args.Composite(**items)
    manager.save(1, args=args, metrics={"loss": 2.0}, custom_metadata={"x": 1})
    manager.wait_until_finished()
    (tmp_path / "run" / "1" / "b" / "_METADATA").write_text("{")
    assert manager.item_metadata(1).a["w"].shape == (4,)
    assert manager.item_metadata(1).b is None
    assert manager.metadata(1).custom_metadata == {"x": 1}
    assert manager.metadata(1).metrics == {"loss": 2.0}
    assert "item 'b' cannot be read" in caplog.text


def test_metrics_that_cannot_be_read_leave_the_metadata_of_their_step(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = run()
    args = ocp.args.StandardSave(tree(1))
    manager.save(1, args=args, metrics={"loss": 2.0}, custom_metadata={"x": 1})
    manager.wait_until_finished()
    (tmp_path / "run" / "1" / "metrics" / "metrics").write_text("{")
    assert manager.item_metadata(1)["w"].shape == (4,)
    assert manager.metadata(1).custom_metadata == {"x": 1}
    assert manager.metadata(1).metrics == {}
    assert "the metrics of step 1 cannot be read" in caplog.text
    with pytest.raises(CorruptionError):
        manager.metrics(1)


def test_metadata_of_a_step(run: Any) -> None:
    manager = run()
    manager.save(1, tree(1), metrics={"loss": 2.0}, custom_metadata={"tag": "x"})
    manager.wait_until_finished()
    found = run().metadata(1)
    assert found.metrics == {"loss": 2.0}
    assert found.custom_metadata == {"tag": "x"}
    assert found.item_metadata.tree["w"].shape == (4,)
    assert found.commit_timestamp_nsecs > found.init_timestamp_nsecs


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"best_mode": "avg"}, "best_mode"),
        ({"max_to_keep": -1}, "max_to_keep must be at least 0"),
        ({"max_to_keep": 1, "preservation_policy": PreserveAll()}, "takes the place"),
        ({"todelete_full_path": "x"}, "todelete_subdir"),
    ],
)
def test_options_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Options(**fields)


@pytest.mark.parametrize("deadline", [None, timedelta(seconds=60), 60.0])
def test_a_signal_makes_the_next_save_happen_at_once(run: Any, deadline: Any) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: told.append(number))
    try:
        manager = run(save_interval_steps=100)
        manager.save(100, tree(100))
        manager.install_signal_handler(signal.SIGUSR1, deadline=deadline)
        assert not manager.should_save(101)
        signal.raise_signal(signal.SIGUSR1)
        assert told == [signal.SIGUSR1]
        assert manager.reached_preemption(101)
        assert manager.should_save(101)
        assert manager.save(101, tree(101))
        assert run().all_steps() == [100, 101]
        manager.close()
        signal.raise_signal(signal.SIGUSR1)
        assert len(told) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_save_that_misses_the_deadline_says_so(run: Any, slow: threading.Event) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    manager = run()
    try:
        manager.install_signal_handler(signal.SIGUSR1, deadline=0.01)
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(TimeoutError, match="the save is still in progress"):
            manager.save(1, tree(1))
        slow.set()
        manager.wait_until_finished()
        assert manager.all_steps() == [1]
    finally:
        manager.close()
        signal.signal(signal.SIGUSR1, before)


def test_signals_are_watched_from_the_main_thread_only(run: Any) -> None:
    manager = run()
    caught: list[Exception] = []

    def install() -> None:
        try:
            manager.install_signal_handler(signal.SIGUSR1)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_two_managers_save_side_by_side(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "a") as a, ocp.CheckpointManager(tmp_path / "b") as b:
        for step in range(5):
            a.save(step, tree(step))
            b.save(step, tree(-step))
    assert a.all_steps() == b.all_steps() == list(range(5))
    assert b.restore(4)["step"] == -4


def test_a_save_and_a_restore_are_logged(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "orbit_ckpt")
    events: list[dict[str, Any]] = []

    class Logger:
        def log_entry(self, entry: dict[str, Any]) -> None:
            events.append(entry)

    manager = run(logger=Logger())
    manager.save(1, tree(1))
    manager.restore()
    assert [(event["event_type"], event["step"]) for event in events] == [
        ("save", 1),
        ("restore", 1),
    ]
    assert len(caplog.records) == 2


def test_a_callback_is_called_when_a_step_is_durable(run: Any, tmp_path: Path) -> None:
    seen: list[set[str]] = []
    options = ocp.AsyncOptions(
        post_finalization_callback=lambda: seen.append(entries(tmp_path / "run"))
    )
    manager = run(async_options=options)
    manager.save(1, tree(1))
    manager.wait_until_finished()
    assert seen == [{"1"}]


def test_a_step_that_was_deleted_behind_our_back_is_not_found(run: Any, tmp_path: Path) -> None:
    manager = run()
    manager.save(1, tree(1))
    manager.wait_until_finished()
    (tmp_path / "run" / "1").rename(tmp_path / "gone")
    with pytest.raises(CheckpointNotFoundError):
        manager.restore(1)
    manager.reload()
    assert manager.all_steps() == []


def test_metrics_keep_their_order(run: Any) -> None:
    manager = run()
    metrics = {"b": 1, "a": {"d": jnp.float32(0.5), "c": (np.int64(2), None)}}
    manager.save(1, tree(1), metrics=metrics)
    manager.wait_until_finished()
    found = manager.metrics(1)
    assert found == {"b": 1, "a": {"d": 0.5, "c": [2, None]}}
    assert list(found) == ["b", "a"]
    assert list(found["a"]) == ["d", "c"]

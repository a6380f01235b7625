"""Exchange runs with the manager of the Orbax that is installed, in both directions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest
from orbax.checkpoint import v1 as orbax_v1

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import atomic
from orbit_ckpt.policies import FixedIntervalPolicy, TemporaryPolicy
from tests.interop.test_orbax import assert_same_values
from tests.support import entries, put

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("quiet_orbax")]

BOTH = pytest.mark.parametrize(
    ("writer", "reader"),
    [pytest.param(ocp, orbax, id="to-orbax"), pytest.param(orbax, ocp, id="from-orbax")],
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return what opens the run at `tmp_path / "run"`; all managers are closed in the end."""
    opened: list[Any] = []

    def open_run(module: Any, *, metadata: Any = None, **options: Any) -> Any:
        made = module.CheckpointManager(
            tmp_path / "run",
            options=module.CheckpointManagerOptions(**options),
            metadata=metadata,
        )
        opened.append(made)
        return made

    yield open_run
    for manager in opened:
        manager.close()


def state(step: int) -> dict[str, Any]:
    values = np.arange(48, dtype=np.float32).reshape(8, 6) + step
    return {
        "split": put(values, "x", x=8),
        "numpy": values.astype(np.float16),
        "half": jnp.asarray(values, jnp.bfloat16),
        "opt": [jnp.ones(3) * step, {"count": np.array(step, np.int32)}],
    }


def items(module: Any, step: int) -> Any:
    args = module.args
    return args.Composite(
        state=args.PyTreeSave({**state(step), "step": step, "text": "ü"}),
        standard=args.StandardSave(state(step)),
        data=args.JsonSave({"position": step, "files": ["a", None]}),
        ema=args.ArraySave(jnp.arange(4) * step),
        key=args.JaxRandomKeySave(jax.random.key(step)),
        generator=args.NumpyRandomKeySave(np.random.RandomState(step).get_state()),
    )


def wanted(module: Any) -> Any:
    """Return arguments that restore `items`."""
    args = module.args
    return args.Composite(
        state=args.PyTreeRestore(),
        standard=args.StandardRestore(),
        data=args.JsonRestore(),
        ema=args.ArrayRestore(),
        key=args.JaxRandomKeyRestore(),
        generator=args.NumpyRandomKeyRestore(),
    )


def assert_items(found: Any, step: int) -> None:
    expected = items(ocp, step)
    assert_same_values(found["state"], expected.state.item)
    assert_same_values(found["standard"], expected.standard.item)
    assert found["data"] == expected.data.item
    assert_same_values(found["ema"], expected.ema.item)
    assert_same_values(found["key"], expected.key.item)
    assert isinstance(found["generator"], tuple)
    assert_same_values(list(found["generator"]), list(expected.generator.item))


def loss(metrics: Any) -> float:
    return metrics["loss"]


def save_all(manager: Any, module: Any, *steps: int, metrics: bool = False) -> None:
    for step in steps:
        more = {"metrics": {"loss": 1 / (step + 1)}} if metrics else {}
        assert manager.save(step, args=module.args.StandardSave(state(step)), **more)
    manager.wait_until_finished()


@BOTH
def test_the_only_item_is_listed_and_restored(run: Any, writer: Any, reader: Any) -> None:
    save_all(run(writer, max_to_keep=2), writer, 0, 1, 2, 3)
    manager = run(reader)
    assert manager.all_steps() == [2, 3]
    assert manager.latest_step() == 3
    assert_same_values(manager.restore(2), state(2))
    assert_same_values(manager.restore(None), state(3))
    target = jax.tree.map(orbax.utils.to_shape_dtype_struct, state(0))
    restored = manager.restore(3, args=reader.args.StandardRestore(target))
    assert restored["split"].sharding == state(0)["split"].sharding
    assert_same_values(restored, state(3))
    restore_args = reader.checkpoint_utils.construct_restore_args(target)
    args = reader.args.PyTreeRestore(item=target, restore_args=restore_args)
    assert_same_values(run(reader).restore(3, args=args), state(3))
    assert manager.item_metadata(3).tree["split"].shape == (8, 6)
    assert manager.metrics(3) is None


@BOTH
def test_several_items_are_restored_with_and_without_arguments(
    run: Any, writer: Any, reader: Any
) -> None:
    manager = run(writer, best_fn=loss, best_mode="min")
    for step, value in ((1, 0.5), (2, 0.25), (3, 0.75)):
        more = {"metrics": {"loss": value}, "custom_metadata": {"of": step}}
        manager.save(step, args=items(writer, step), **more)
    manager.wait_until_finished()
    manager = run(reader, best_fn=loss, best_mode="min")
    assert manager.all_steps() == [1, 2, 3]
    assert manager.best_step() == 2
    found = manager.restore(2)
    assert set(found) == {*items(ocp, 2), "metrics"}
    assert_items(found, 2)
    assert found["metrics"] == manager.metrics(2) == {"loss": 0.25}
    assert_items(manager.restore(3, args=wanted(reader)), 3)
    only = reader.args.Composite(data=reader.args.JsonRestore())
    assert dict(manager.restore(1, args=only)) == {"data": {"position": 1, "files": ["a", None]}}
    metadata = manager.metadata(3)  # Orbax has to have restored the items before
    assert metadata.custom_metadata == {"of": 3}
    assert metadata.metrics["loss"] == 0.75
    assert metadata.item_metadata["state"].tree["split"].shape == (8, 6)
    assert set(metadata.item_metadata) == {*items(ocp, 2), "metrics"}


@BOTH
@pytest.mark.parametrize(
    "names",
    [
        {"step_prefix": "ckpt"},
        {"step_format_fixed_length": 5},
        {"step_prefix": "my_run", "step_format_fixed_length": 3},
    ],
)
def test_names_of_steps_are_the_same(
    run: Any, writer: Any, reader: Any, names: dict[str, Any], tmp_path: Path
) -> None:
    save_all(run(writer, **names), writer, 0, 7, 12345)
    written = entries(tmp_path / "run")
    manager = run(reader, **names)
    assert manager.all_steps() == [0, 7, 12345]
    assert_same_values(manager.restore(7), state(7))
    save_all(manager, reader, 12346)
    assert run(writer, **names).all_steps() == [0, 7, 12345, 12346]
    assert len(entries(tmp_path / "run")) == len(written) + 1


@BOTH
def test_metadata_of_a_run_are_kept(run: Any, writer: Any, reader: Any, tmp_path: Path) -> None:
    run(writer, metadata={"model": "x"})
    assert run(reader).metadata().custom_metadata == {"model": "x"}
    assert run(reader, metadata={"model": "y"}).metadata().custom_metadata == {"model": "x"}
    assert entries(tmp_path / "run" / "metadata") == {"_ROOT_METADATA"}
    assert run(reader).all_steps() == []


@BOTH
def test_a_run_is_continued_and_its_steps_deleted(
    run: Any, writer: Any, reader: Any, tmp_path: Path
) -> None:
    save_all(run(writer), writer, 1, 2, 3)
    manager = run(reader, max_to_keep=2, keep_period=2, save_interval_steps=3)
    assert not manager.should_save(3)
    assert not manager.should_save(5)
    save_all(manager, reader, 6, 9)
    assert manager.all_steps() == [2, 6, 9]
    assert entries(tmp_path / "run") == {"2", "6", "9"}
    first = run(writer)
    assert first.all_steps() == [2, 6, 9]
    assert_same_values(first.restore(9), state(9))
    manager.delete(2)
    first.reload()
    assert first.all_steps() == [6, 9]


@BOTH
def test_the_best_of_both_are_kept(run: Any, writer: Any, reader: Any) -> None:
    save_all(run(writer, best_fn=loss), writer, 1, 2, 3, metrics=True)
    manager = run(reader, best_fn=loss, best_mode="min", max_to_keep=2)
    save_all(manager, reader, 4, 5, metrics=True)
    assert manager.all_steps() == [4, 5]
    assert manager.best_step() == 5
    assert run(writer, best_fn=loss, best_mode="max").best_step() == 4


@BOTH
def test_steps_are_put_aside_instead_of_deleted(
    run: Any, writer: Any, reader: Any, tmp_path: Path
) -> None:
    save_all(run(writer, max_to_keep=1, todelete_subdir="trash"), writer, 1, 2)
    manager = run(reader, max_to_keep=1, todelete_subdir="trash")
    assert manager.all_steps() == [2]
    save_all(manager, reader, 3)
    assert entries(tmp_path / "run") == {"3", "trash"}
    assert entries(tmp_path / "run" / "trash") == {"1", "2"}
    moved = reader.CheckpointManager(tmp_path / "run" / "trash")
    assert_same_values(moved.restore(1), state(1))
    moved.close()


def test_two_managers_take_turns(run: Any) -> None:
    modules = (ocp, orbax)
    managers = [run(module, max_to_keep=3) for module in modules]
    for step in range(8):
        index = step % 2
        managers[index].reload()
        save_all(managers[index], modules[index], step)
        other = managers[1 - index]
        other.reload()
        assert other.all_steps() == list(range(max(0, step - 2), step + 1))
        assert_same_values(other.restore(step), state(step))


@BOTH
def test_an_item_may_be_saved_by_either(run: Any, writer: Any, reader: Any) -> None:
    for module, step in ((writer, 1), (reader, 2), (writer, 3)):
        manager = run(module)
        manager.save(step, args=items(module, step))
        manager.wait_until_finished()
    for module in (writer, reader):
        for step in (1, 2, 3):
            assert_items(run(module).restore(step), step)
            assert_items(run(module).restore(step, args=wanted(module)), step)


def test_orbax_does_not_mind_what_we_add(run: Any, tmp_path: Path) -> None:
    manager = run(ocp, save_decision_policy=TemporaryPolicy(FixedIntervalPolicy(1)))
    for step in (1, 2, 3):
        manager.save(step, args=items(ocp, step))
        manager.wait_until_finished()
        manager.pin(step)
    added = {"PINNED", "orbit_step.json", "orbit_manifest.json"}
    assert entries(tmp_path / "run" / "2") >= added
    reader = run(orbax)
    assert reader.all_steps() == [1, 2, 3]
    for step in (1, 2, 3):
        assert_items(reader.restore(step), step)
        assert reader.item_metadata(step)["state"].tree["split"].shape == (8, 6)
    reader = run(orbax, max_to_keep=1)
    reader.save(4, args=items(orbax, 4))
    reader.wait_until_finished()
    assert entries(tmp_path / "run") == {"4"}  # it knows no pins


def test_what_is_being_saved_is_no_step_to_orbax(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    commit = atomic.AtomicDirectory.commit

    def wait(self: atomic.AtomicDirectory) -> None:
        assert go_on.wait(60)
        commit(self)

    monkeypatch.setattr(atomic.AtomicDirectory, "commit", wait)
    manager = run(ocp)
    manager.save(1, args=ocp.args.StandardSave(state(1)))
    reader = run(orbax)
    assert entries(tmp_path / "run")
    assert reader.all_steps() == []
    assert reader.latest_step() is None
    go_on.set()
    manager.wait_until_finished()
    reader.reload()
    assert reader.all_steps() == [1]
    assert_same_values(reader.restore(1), state(1))


def test_what_orbax_is_saving_is_left_alone(run: Any, tmp_path: Path) -> None:
    save_all(run(orbax), orbax, 1)
    unfinished = tmp_path / "run" / "2.orbax-checkpoint-tmp"
    (tmp_path / "run" / "1").rename(unfinished)
    manager = run(ocp)
    assert manager.all_steps() == []
    assert unfinished.is_dir()
    save_all(manager, ocp, 3)
    assert unfinished.is_dir()
    unfinished.rename(tmp_path / "run" / "2")
    assert manager.all_steps(read=True) == [2, 3]


def v1_checkpointer(path: Path) -> Any:
    return orbax_v1.training.Checkpointer(str(path))


def test_v1_reads_and_continues_our_run(run: Any, tmp_path: Path) -> None:
    save_all(run(ocp), ocp, 1, 2, metrics=True)
    with v1_checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.latest.step == 2
        assert [found.step for found in checkpointer.checkpoints] == [1, 2]
        loaded = checkpointer.load(1, checkpointable_name="default")
        assert_same_values(loaded, state(1))
        checkpointer.save(3, state(3))
    manager = run(ocp)
    assert manager.all_steps() == [1, 2, 3]
    assert_same_values(manager.restore(2), state(2))
    assert_same_values(run(ocp).restore(3).state, state(3))


def test_v1_reads_items_of_our_run(run: Any, tmp_path: Path) -> None:
    manager = run(ocp)
    manager.save(1, args=items(ocp, 1), metrics={"loss": 0.5})
    manager.wait_until_finished()
    with v1_checkpointer(tmp_path / "run") as checkpointer:
        loaded = checkpointer.load(1)
        assert_same_values(loaded, {**state(1), "step": 1, "text": "ü"})
        assert checkpointer.metadata(1).metrics == {"loss": 0.5}


def test_a_run_of_v1_is_read_and_continued(run: Any, tmp_path: Path) -> None:
    with v1_checkpointer(tmp_path / "run") as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state(step), metrics={"loss": 1 / step})
    manager = run(ocp, best_fn=loss, best_mode="min", max_to_keep=2)
    assert manager.all_steps() == [1, 2]
    assert manager.best_step() == 2
    assert manager.metrics(1) == {"loss": 1.0}
    assert_same_values(manager.restore(2).state, state(2))
    args = ocp.args.Composite(state=ocp.args.StandardRestore(state(0)))
    assert_same_values(manager.restore(1, args=args).state, state(1))
    saved = ocp.args.Composite(state=ocp.args.StandardSave(state(3)))
    manager.save(3, args=saved, metrics={"loss": 0.1})
    manager.wait_until_finished()
    assert manager.all_steps() == [2, 3]
    with v1_checkpointer(tmp_path / "run") as checkpointer:
        assert_same_values(checkpointer.load(3), state(3))

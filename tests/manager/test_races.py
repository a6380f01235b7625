"""Orders of events in which a run could lose a step, an error or its way; it does not."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.items.arguments import ARGUMENTS, CheckpointArgs, register_with_handler
from orbit_ckpt._src.manager import garbage_collection, index
from orbit_ckpt.errors import (
    BackgroundSaveError,
    CheckpointError,
    CheckpointNotFoundError,
    StepNotFoundError,
    StorageError,
    VersionError,
)
from orbit_ckpt.policies import FixedIntervalPolicy, LatestN
from tests.programs import run_script
from tests.support import entries

Options = ocp.CheckpointManagerOptions


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full(4, step, np.float32)}


def items(step: int, **more: Any) -> Any:
    return ocp.args.Composite(
        state=ocp.args.PyTreeSave(tree(step)), data=ocp.args.JsonSave(step), **more
    )


def save_all(manager: ocp.CheckpointManager, *steps: int) -> None:
    for step in steps:
        manager.save(step, tree(step), force=True)
    manager.wait_until_finished()


def damage(step: Path) -> None:
    files = [path for path in step.rglob("*") if path.is_file()]
    file = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_falling_back_takes_a_wrong_name_of_an_item_for_what_it_is(run: Any) -> None:
    manager = run()
    for step in (1, 2):
        manager.save(step, args=items(step))
    wanted = ocp.args.Composite(stat=ocp.args.PyTreeRestore())
    with pytest.raises(StepNotFoundError, match="No item 'stat'"):
        manager.restore(args=wanted, fallback=True)
    assert manager.refused == {}
    assert manager.all_steps() == [1, 2]


def test_falling_back_passes_over_a_step_without_the_item_and_keeps_it(run: Any) -> None:
    manager = run()
    manager.save(1, args=items(1))
    manager.save(2, args=ocp.args.Composite(state=ocp.args.PyTreeSave(tree(2))))
    restored = manager.restore(args=ocp.args.Composite(data=ocp.args.JsonRestore()), fallback=True)
    assert restored.data == 1
    assert manager.all_steps() == [1, 2]


@pytest.mark.parametrize(
    "error", [OSError(24, "Too many open files"), VersionError("format version 9")]
)
def test_falling_back_does_not_take_other_troubles_for_damage(
    run: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    manager = run()
    save_all(manager, 1, 2)

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(ocp.Checkpointer, "restore", fail)
    with pytest.raises(type(error)):
        manager.restore(fallback=True)
    assert manager.all_steps() == [1, 2]


def test_falling_back_from_a_step_that_was_never_there_is_an_error(run: Any) -> None:
    manager = run()
    save_all(manager, 1)
    with pytest.raises(StepNotFoundError, match="no step 150"):
        manager.restore(150, fallback=True)


@pytest.mark.parametrize("background", [True, False])
def test_steps_are_saved_although_old_ones_cannot_be_deleted(run: Any, background: bool) -> None:
    manager = run(best_fn=lambda m: m["nope"], max_to_keep=1, enable_async_checkpointing=background)
    told: list[str] = []
    for step in range(6):
        try:
            manager.save(step, tree(step), metrics={"acc": 1.0})
        except CheckpointError as error:
            told.append(str(error))
    manager._writer._pending.wait()
    assert manager.all_steps() == list(range(6))
    assert told
    assert all("No step was deleted" in text for text in told)
    with contextlib.suppress(CheckpointError):
        manager.close()


def test_every_deletion_that_fails_is_told(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = run()
    save_all(manager, 0, 1, 2)
    manager.close()

    def fail(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(garbage_collection.StepDeleter, "tombstone", fail)
    manager = run(max_to_keep=1)
    manager.save(3, tree(3))
    with pytest.raises(StorageError, match="step 0") as caught:
        manager.wait_until_finished()
    assert "step 1" in "".join(caught.value.__notes__)
    assert "step 2" in "".join(caught.value.__notes__)


def test_an_item_that_cannot_be_dropped_is_told(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = run(item_preservation_policies={"data": LatestN(1)})
    manager.save(1, args=items(1))
    manager.wait_until_finished()

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(garbage_collection.StepDeleter, "tombstone", fail)
    manager.save(2, args=items(2))
    with pytest.raises(StorageError, match="item 'data' of step 1"):
        manager.wait_until_finished()


def test_a_failed_save_does_not_hide_a_failed_deletion(
    run: Any, failing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run(max_to_keep=1)
    save_all(manager, 1)

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(garbage_collection.StepDeleter, "tombstone", fail)
    manager.save(2, tree(2))
    manager._writer._pending.wait()
    failing.add("3")
    with pytest.raises(StorageError, match="Deleting step 1"):
        manager.save(3, tree(3))
    manager._store.errors.record("Deleting step 1 failed again", OSError(5, "x"))
    with pytest.raises(BackgroundSaveError, match="step 3") as caught:
        manager.wait_until_finished()
    assert "failed again" in "".join(caught.value.__notes__)
    manager.wait_until_finished()


@pytest.mark.parametrize("by_hand", [True, False])
def test_steps_that_others_pin_stay(run: Any, tmp_path: Path, by_hand: bool) -> None:
    manager = run(max_to_keep=1)
    save_all(manager, 1)
    if by_hand:
        (tmp_path / "run" / "1" / "PINNED").touch()
    else:
        run().pin(1)
    save_all(manager, 2, 3)
    assert manager.all_steps() == [1, 3]
    assert manager.restore(1)["w"][0] == 1


def test_a_run_of_runs_is_no_run(tmp_path: Path) -> None:
    for trial in ("1", "2"):
        with ocp.CheckpointManager(tmp_path / trial) as manager:
            save_all(manager, 100, 200)
    with ocp.CheckpointManager(tmp_path, options=Options(max_to_keep=1)) as above:
        assert above.all_steps() == []
        save_all(above, 500)
    assert ocp.CheckpointManager(tmp_path / "1").all_steps() == [100, 200]


class Vocabulary:
    """An item handler of somebody else's, that does not care for durability."""

    def save(self, directory: Path, args: Any) -> None:
        (directory / "words").mkdir()
        (directory / "words" / "vocab.txt").write_text(" ".join(args.words))

    def restore(self, directory: Path, args: Any) -> Any:
        del args
        return (directory / "words" / "vocab.txt").read_text().split()

    def finalize(self, directory: Path) -> None:
        del directory

    def close(self) -> None:
        pass


@register_with_handler(Vocabulary, for_save=True, for_restore=True)
class Words(CheckpointArgs):
    def __init__(self, *words: str) -> None:
        self.words = words


def test_files_of_others_are_on_the_disk_before_the_step_is_listed(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    manager = run(enable_async_checkpointing=False)
    manager.save(1, args=ocp.args.Composite(words=Words("a", "b")))
    assert any(path.endswith("words/vocab.txt") for path in synced)
    assert manager.restore(1, args=ocp.args.Composite(words=Words())).words == ["a", "b"]


def test_a_signal_saves_whatever_the_policies_say(run: Any) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    manager = run(save_decision_policy=FixedIntervalPolicy(1000))
    manager.install_signal_handler(signal.SIGUSR1)
    assert not manager.should_save(5)
    signal.raise_signal(signal.SIGUSR1)
    assert manager.should_save(5)
    assert manager.save(5, tree(5))
    assert not manager.should_save(5)
    manager.close()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_signals_go_back_in_whatever_order_managers_are_closed(tmp_path: Path) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: told.append(number))
    try:
        first, second = (ocp.CheckpointManager(tmp_path / name) for name in "ab")
        first.install_signal_handler(signal.SIGUSR1)
        second.install_signal_handler(signal.SIGUSR1)
        first.close()
        signal.raise_signal(signal.SIGUSR1)
        assert second.reached_preemption(1)
        assert not first.reached_preemption(1)
        second.close()
        signal.raise_signal(signal.SIGUSR1)
        assert len(told) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_failure_is_told_once_when_the_job_is_about_to_end(run: Any, failing: set[str]) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    manager = run()
    try:
        manager.install_signal_handler(signal.SIGUSR1, deadline=60)
        signal.raise_signal(signal.SIGUSR1)
        failing.add("1")
        with pytest.raises(StorageError, match="No space left"):
            manager.save(1, tree(1))
        manager.wait_until_finished()
        assert manager.save(2, tree(2))
        assert manager.all_steps() == [2]
    finally:
        manager.close()
        signal.signal(signal.SIGUSR1, before)


def test_the_deadline_holds_for_the_save_before_too(run: Any, held_commit: threading.Event) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    manager = run()
    try:
        manager.install_signal_handler(signal.SIGUSR1, deadline=0.05)
        manager.save(1, tree(1))
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(TimeoutError, match="still in progress"):
            manager.save(2, tree(2))
        held_commit.set()
        manager.wait_until_finished()
        assert manager.all_steps() == [1]
    finally:
        held_commit.set()
        manager.close()
        signal.signal(signal.SIGUSR1, before)


def test_a_training_that_has_gone_back_keeps_its_last_step(run: Any) -> None:
    manager = run(max_to_keep=2)
    save_all(manager, 10, 20, 30, 5)
    assert manager.all_steps() == [5, 20, 30]
    save_all(manager, 6)
    assert manager.all_steps() == [6, 20, 30]


def test_a_step_below_one_that_is_listed_is_not_saved_while_another_is(
    run: Any, held_commit: threading.Event
) -> None:
    held_commit.set()
    manager = run()
    save_all(manager, 30)
    held_commit.clear()
    manager.save(5, tree(5), force=True)
    assert not manager.should_save(25)


@pytest.mark.slow
def test_threads_may_share_a_manager(run: Any, failing: set[str]) -> None:
    manager = run()
    failing.update(map(str, range(0, 60, 3)))
    told: list[int | None] = []
    done = threading.Event()

    def wait() -> None:
        while not done.is_set():
            try:
                manager.wait_until_finished()
            except BackgroundSaveError as error:
                told.append(error.step)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for step in range(60):
        try:
            manager.save(step, tree(step), force=True)
        except BackgroundSaveError as error:
            told.append(error.step)
    done.set()
    for thread in threads:
        thread.join()
    try:
        manager.close()
    except BackgroundSaveError as error:
        told.append(error.step)
    assert sorted(step for step in told if step is not None) == list(range(0, 60, 3))
    assert manager.all_steps() == [step for step in range(60) if step % 3]


def test_a_step_that_is_committed_while_the_run_is_listed_is_not_forgotten(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run()
    save_all(manager, 1)
    listed, committed = threading.Event(), threading.Event()
    listing = index.list_steps

    def slow(*args: Any, **kwargs: Any) -> Any:
        found = listing(*args, **kwargs)
        listed.set()
        committed.wait(0.3)  # unless the save waits for this listing
        return found

    monkeypatch.setattr(index, "list_steps", slow)
    thread = threading.Thread(target=manager.reload)
    thread.start()
    listed.wait()
    manager.save(2, tree(2), force=True)
    manager.wait_until_finished()
    committed.set()
    thread.join()
    assert manager.all_steps() == [1, 2]


def test_two_managers_may_delete_the_same(run: Any, tmp_path: Path) -> None:
    first, second = run(max_to_keep=1), run(max_to_keep=1)
    save_all(first, 1)
    second.reload()
    save_all(first, 2)
    save_all(second, 3)
    first.delete(2)
    assert entries(tmp_path / "run") == {"3"}


@pytest.mark.parametrize("subdir", ["old", "old/steps"])
def test_a_step_that_is_gone_already_is_deleted(run: Any, tmp_path: Path, subdir: str) -> None:
    manager = run(todelete_subdir=subdir)
    save_all(manager, 1, 2, 3)
    manager.delete(1)
    assert (tmp_path / "run" / subdir / "1").is_dir()
    (tmp_path / "run" / "2").rename(tmp_path / "gone")
    manager.delete(2)
    assert manager.all_steps() == [3]


def test_a_link_to_a_step_is_deleted_and_the_step_stays(run: Any, tmp_path: Path) -> None:
    ocp.save(tmp_path / "elsewhere", tree(1))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "1").symlink_to(tmp_path / "elsewhere")
    manager = run()
    assert manager.all_steps() == [1]
    manager.delete(1)
    assert entries(tmp_path / "run") == set()
    assert ocp.load(tmp_path / "elsewhere")["w"][0] == 1


def test_with_a_marker_asked_for_a_step_without_one_is_not_listed(run: Any, tmp_path: Path) -> None:
    marker = ocp.AtomicityOptions(mode=ocp.AtomicityMode.COMMIT_FILE)
    manager = run(atomicity_options=marker)
    save_all(manager, 1, 2)
    (tmp_path / "run" / "2" / "commit_success.txt").unlink()
    manager.reload()
    assert manager.all_steps() == [1]


def test_an_error_at_the_end_does_not_hide_what_ended_the_block(
    tmp_path: Path, failing: set[str]
) -> None:
    failing.add("1")

    def train() -> None:
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(1, tree(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        train()
    assert "step 1" in "".join(caught.value.__notes__)


def test_a_save_in_the_background_does_not_hold_what_it_has_copied(
    tmp_path: Path, held_commit: threading.Event
) -> None:
    state = {"w": jnp.arange(5000.0)}
    held = weakref.ref(state["w"])
    options = ocp.CheckpointManagerOptions(async_options=ocp.AsyncOptions(snapshot="copy"))
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        manager.save(1, state)
        del state
        gc.collect()
        assert held() is None
        held_commit.set()
    assert manager.all_steps() == [1]


def test_custom_metadata_are_taken_too(tmp_path: Path, held_commit: threading.Event) -> None:
    given: dict[str, Any] = {"cfg": {"lr": 1}}
    handle = ocp.save_async(tmp_path / "x", tree(1), custom_metadata=given)
    given["cfg"]["lr"] = object()
    held_commit.set()
    handle.result()
    assert ocp.metadata(tmp_path / "x").custom_metadata == {"cfg": {"lr": 1}}


class Source:
    """Metrics from elsewhere."""

    metric = "acc"

    def __init__(self, values: dict[int, float]) -> None:
        self.known = values
        self.asked = 0

    def values(self, steps: Any) -> dict[int, float]:
        self.asked += 1
        return {step: self.known[step] for step in steps if step in self.known}


def test_metrics_from_elsewhere_rank_steps_and_are_read_only_for_that(run: Any) -> None:
    source = Source({1: 0.9, 2: 0.1, 3: 0.5})
    manager = run(metrics_source=source, max_to_keep=1, save_interval_steps=1)
    for step in (1, 2, 3, 4):
        manager.save(step, tree(step), metrics={"loss": 1.0})
    manager.wait_until_finished()
    assert manager.best_step() == 1
    assert manager.all_steps() == [1, 4]
    asked = source.asked
    for step in range(1, 5):
        manager.should_save(step)
    assert source.asked == asked


def test_a_step_that_is_being_deleted_is_not_listed(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    remove = garbage_collection.StepDeleter.remove

    def slow(self: garbage_collection.StepDeleter, aside: Path, directory: Path) -> None:
        release.wait(60)
        remove(self, aside, directory)

    monkeypatch.setattr(garbage_collection.StepDeleter, "remove", slow)
    manager = run(enable_background_delete=True)
    save_all(manager, 1, 2)
    manager.delete(2)
    assert manager.latest_step() == 1
    assert manager.save(2, tree(2))
    release.set()
    manager.wait_until_finished()
    manager.delete(1)
    manager.close()
    assert manager.all_steps() == [2]


def test_deletions_that_wait_for_others_are_done_once(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    remove = garbage_collection.StepDeleter.remove
    removed: list[Path] = []

    def slow(self: garbage_collection.StepDeleter, aside: Path, directory: Path) -> None:
        assert release.wait(60)
        removed.append(directory)
        remove(self, aside, directory)

    monkeypatch.setattr(garbage_collection.StepDeleter, "remove", slow)
    manager = run(enable_background_delete=True, max_to_keep=1)
    for step in (1, 2, 3, 4):
        manager.save(step, tree(step))
    save_next = threading.Thread(target=manager.save, args=(5, tree(5)))
    save_next.start()
    save_next.join(30)  # a save does not wait for deletions
    assert not save_next.is_alive()
    release.set()
    manager.wait_until_finished()
    assert [directory.name for directory in removed] == ["1", "2", "3", "4"]
    assert manager.all_steps() == [5]


def test_each_of_two_threads_waits_for_a_deletion(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    remove = garbage_collection.StepDeleter.remove

    def slow(self: garbage_collection.StepDeleter, aside: Path, directory: Path) -> None:
        assert release.wait(60)
        remove(self, aside, directory)

    monkeypatch.setattr(garbage_collection.StepDeleter, "remove", slow)
    manager = run(enable_background_delete=True)
    manager.save(1, tree(1))
    manager.wait_until_finished()
    manager.delete(1)
    waiting = [threading.Thread(target=manager.wait_until_finished) for _ in range(2)]
    for thread in waiting:
        thread.start()
    waiting[1].join(0.2)
    both_wait = all(thread.is_alive() for thread in waiting)
    release.set()
    for thread in waiting:
        thread.join()
    assert both_wait


def test_an_unexpected_error_of_a_deletion_is_told_once(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def fail(*_: object) -> None:
        assert release.wait(60)
        raise ValueError("no idea")

    manager = run(enable_background_delete=True)
    manager.save(1, tree(1))
    manager.wait_until_finished()
    monkeypatch.setattr(garbage_collection.StepDeleter, "remove", fail)
    manager.delete(1)
    release.set()
    with pytest.raises(CheckpointError, match=r"Deleting step 1 .* failed: no idea"):
        manager.wait_until_finished()
    manager.wait_until_finished()


def test_a_subclass_of_a_handler_does_not_take_its_place() -> None:
    class Mine(ocp.JsonHandler):
        pass

    @register_with_handler(Mine, for_save=True, for_restore=True)
    class MineArgs(CheckpointArgs):
        pass

    assert MineArgs.__name__ == "MineArgs"
    assert ARGUMENTS.handler_named(ocp.JsonHandler.typestr()) is ocp.JsonHandler


def test_a_damaged_step_without_a_document_of_its_own_is_replaced(run: Any, tmp_path: Path) -> None:
    manager = run()
    save_all(manager, 1, 2)
    for name in ("_CHECKPOINT_METADATA", "orbit_manifest.json", "commit_success.txt"):
        (tmp_path / "run" / "2" / name).unlink()
    damage(tmp_path / "run" / "2" / "default")
    manager = run()
    assert manager.restore(fallback=True)["w"][0] == 1
    save_all(manager, 2)
    assert manager.restore(2)["w"][0] == 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Options(save_interval_steps=-3), ValueError, "save_interval_steps"),
        (lambda: Options(keep_period=0), ValueError, "keep_period"),
        (lambda: Options(save_on_steps=5), TypeError, "save_on_steps"),  # pyright: ignore[reportArgumentType] - a mistake
    ],
)
def test_options_that_are_mistakes_are_named(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_arguments_that_are_mistakes_are_named(run: Any) -> None:
    with pytest.raises(TypeError, match="item_names"):
        run(item_names="state")
    manager = run()
    with pytest.raises(ValueError, match="Two things to save"):
        manager.save(1, tree(1), args=ocp.args.PyTreeSave(tree(1)))
    save_all(manager, 1)
    reader = run(read_only=True)
    for method in (reader.pin, reader.unpin):
        with pytest.raises(ValueError, match="read-only"):
            method(1)
    assert manager.metrics(jnp.int32(1)) is None
    with pytest.raises(CheckpointNotFoundError):
        manager.metrics(7)


def test_a_callback_may_restore_and_wait_for_its_own_save(tmp_path: Path) -> None:
    found: list[Any] = []

    def look() -> None:
        found.append(manager.restore()["w"].tolist())
        manager.wait_until_finished()
        found.append(manager.is_saving_in_progress())

    options = ocp.AsyncOptions(timeout_secs=2, post_finalization_callback=look)
    with ocp.CheckpointManager(tmp_path, options=Options(async_options=options)) as manager:
        for step in (1, 2):
            manager.save(step, tree(step))
    assert found == [[1.0] * 4, True, [2.0] * 4, True]


def test_a_policy_that_misses_a_metric_says_what_went_wrong(tmp_path: Path) -> None:
    options = Options(max_to_keep=1, best_fn=lambda metrics: metrics["loss"])
    manager = ocp.CheckpointManager(tmp_path, options=options)
    for step in (1, 2):
        manager.save(step, tree(step), metrics={"other": 1})
    with pytest.raises(CheckpointError, match="policy failed: KeyError: 'loss'"):
        manager.close()
    assert entries(tmp_path) == {"1", "2"}


def test_after_close_a_manager_answers_and_restores_but_changes_nothing(run: Any) -> None:
    manager = run()
    save_all(manager, 1)
    for _ in range(2):
        manager.close()
    assert manager.all_steps(read=True) == [1]
    assert manager.restore(1)["w"].tolist() == tree(1)["w"].tolist()
    manager.wait_until_finished()
    manager.check_for_errors()
    changes: list[Callable[[], object]] = [
        lambda: manager.save(2, tree(2)),
        lambda: manager.save(2, tree(2), force=True),
        lambda: manager.should_save(2),
        lambda: manager.delete(1),
        lambda: manager.pin(1),
        lambda: manager.unpin(1),
        lambda: manager.install_signal_handler(signal.SIGUSR1),
    ]
    for change in changes:
        with pytest.raises(CheckpointError, match=r"after close\(\).*Open the run again\."):
            change()
    assert manager.all_steps(read=True) == [1]


@pytest.mark.slow
def test_a_job_of_one_process_saves_when_the_service_of_jax_is_told_of_its_end(
    tmp_path: Path,
) -> None:
    script = f"""
import os, signal, socket, jax, numpy, orbit_ckpt as ocp
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{{free.getsockname()[1]}}"
jax.distributed.initialize(address, 1, 0)
options = ocp.CheckpointManagerOptions(save_interval_steps=10**9)
with ocp.CheckpointManager({str(tmp_path)!r}, options=options) as manager:
    manager.save(0, {{"a": numpy.ones(3)}})
    os.kill(os.getpid(), signal.SIGTERM)
    step = 1
    while not manager.save(step, {{"a": numpy.ones(3)}}):  # the notice takes a while
        step += 1
    assert manager.reached_preemption(step)
assert manager.all_steps() == [0, step]
"""
    run_script(script).check_returncode()

"""A manager on several processes, which are threads here: one decides, the others follow."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.checkpointer.transaction import SaveSession
from orbit_ckpt._src.manager import coordinator
from orbit_ckpt._src.runtime.process import Process, ProcessGroup
from orbit_ckpt._src.runtime.rendezvous import KeyValueGroup
from orbit_ckpt._src.storage.atomic import AtomicDirectory
from orbit_ckpt._src.storage.local_directory import LocalDirectory
from orbit_ckpt.errors import (
    BackgroundSaveError,
    CheckpointError,
    CorruptionError,
    ProcessFailedError,
    ProcessTimeoutError,
    StepAlreadyExistsError,
    StepNotFoundError,
    StorageError,
)
from orbit_ckpt.policies import TimeIntervalPolicy
from orbit_ckpt.testing.fakes import MemoryKeyValueStore, fake_processes

COUNT = 3
LONG, SHORT = 30.0, 0.1

Manager = ocp.CheckpointManager


class Run:
    """A run of several processes."""

    def __init__(self, root: Path, groups: Sequence[ProcessGroup]) -> None:
        self.root = root
        self.groups = groups
        self.managers: list[Manager] = []

    def each(self, do: Callable[[int], Any]) -> list[Any]:
        """Return what every process returns or raises."""

        def main(index: int) -> Any:
            try:
                return do(index)
            except Exception as error:  # noqa: BLE001 - looked at by the test
                return error

        with ThreadPoolExecutor(len(self.groups)) as pool:
            return list(pool.map(main, range(len(self.groups))))

    def open(self, own: dict[int, dict[str, Any]] | None = None, **options: Any) -> list[Any]:
        """Open it with options of all, and own options of some."""

        def open_one(index: int) -> Manager:
            processes = ocp.MultiprocessingOptions(timeout_secs=LONG, group=self.groups[index])
            given = {**options, **(own or {}).get(index, {}), "multiprocessing_options": processes}
            return Manager(self.root, options=ocp.CheckpointManagerOptions(**given))

        self.managers = self.each(open_one)
        return self.managers

    def call(self, do: Callable[[Manager], Any]) -> list[Any]:
        """Return what a call returns or raises on every process."""
        return self.each(lambda index: do(self.managers[index]))

    def save(self, step: int, **given: Any) -> list[Any]:
        return self.call(lambda manager: manager.save(step, tree(step), **given))

    def finish(self) -> list[Any]:
        return self.call(lambda manager: manager.wait_until_finished())


def hurry(manager: Manager) -> None:
    """Let a process wait for the others for a short time only, now that all have come so far."""
    manager._coordinator._rendezvous._timeout_s = SHORT  # pyright: ignore[reportAttributeAccessIssue] - not of all operations


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full(3, step), "name": f"step {step}"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", fake_processes(COUNT))


def same(values: Sequence[Any], expected: Any) -> bool:
    return list(values) == [expected] * COUNT


def raised(values: Sequence[Any], kind: type[Exception], text: str) -> bool:
    return all(isinstance(value, kind) and text in str(value) for value in values)


@pytest.mark.parametrize("background", [True, False])
def test_all_processes_save_list_and_restore_the_same(run: Run, background: bool) -> None:
    run.open(max_to_keep=2, enable_async_checkpointing=background)
    for step in range(4):
        assert same(run.save(step, metrics={"loss": float("nan")}), True)
    assert same(run.finish(), None)
    assert same(run.call(lambda manager: manager.all_steps()), [2, 3])
    assert same(run.call(lambda manager: manager.latest_step()), 3)
    restored = run.call(lambda manager: manager.restore())
    assert [value["name"] for value in restored] == ["step 3"] * COUNT
    assert same(run.call(lambda manager: manager.close()), None)
    assert sorted(os.listdir(run.root)) == ["2", "3"]
    run.open()
    assert same(run.call(lambda manager: manager.all_steps()), [2, 3])


def test_all_processes_add_an_item_and_refuse_it_together(run: Run) -> None:
    run.open()
    items = ocp.args.Composite(model=ocp.args.StandardSave(tree(1)))
    assert same(run.call(lambda manager: manager.save(1, args=items)), True)
    assert same(run.call(lambda manager: manager.save_item(1, "tx", tree(2))), None)
    assert same(run.call(lambda manager: manager.steps_with_item("tx")), [1])
    restored = run.call(lambda manager: manager.restore(1)["tx"]["name"])
    assert same(restored, "step 2")

    def differ(index: int) -> None:
        name = "bad/name" if index == 1 else "ema"
        run.managers[index].save_item(1, name, tree(3))

    assert all(isinstance(error, Exception) for error in run.each(differ))
    assert same(run.call(lambda manager: manager.steps_with_item("ema")), [])
    exists = run.call(lambda manager: manager.save_item(1, "tx", tree(3)))
    assert all("already exists" in str(error) for error in exists)
    assert ocp.verify(run.root).is_intact


def test_skewed_clocks_do_not_disagree(run: Run) -> None:
    ahead = threading.local()

    def skewed() -> dt.datetime:
        return dt.datetime.now(dt.UTC) + getattr(ahead, "by", dt.timedelta())

    run.open(save_decision_policy=TimeIntervalPolicy(dt.timedelta(hours=1)), clock=skewed)

    def save(index: int) -> tuple[bool, bool]:
        ahead.by = dt.timedelta(hours=2 if index else 0)
        manager = run.managers[index]
        return manager.should_save(1), manager.save(1, tree(1))

    assert same(run.each(save), (False, False))

    def save_ahead(index: int) -> tuple[bool, bool]:
        ahead.by = dt.timedelta(hours=0 if index else 2)
        manager = run.managers[index]
        return manager.should_save(1), manager.save(1, tree(1))

    assert same(run.each(save_ahead), (True, True))
    assert same(run.finish(), None)


def test_policies_and_options_of_the_primary_process_hold(run: Run) -> None:
    run.open(own={0: {"save_interval_steps": 3}}, max_to_keep=1)
    decided = [run.save(step) for step in range(4)]
    assert decided == [[True] * COUNT, [False] * COUNT, [False] * COUNT, [True] * COUNT]
    run.finish()
    assert same(run.call(lambda manager: manager.all_steps()), [3])


def test_skewed_listings_do_not_disagree(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run.open()
    run.save(1, metrics={"loss": 1.0})
    run.save(2, metrics={"loss": 2.0})
    run.finish()
    primary = threading.get_ident()
    scan = os.scandir

    def lagging(path: Any) -> Any:  # what was written lately is not to be seen but for one process
        if threading.get_ident() != primary and Path(path) == run.root:
            return scan(tmp_path / "empty")
        return scan(path)

    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(os, "scandir", lagging)

    def listed(index: int) -> Any:
        nonlocal primary
        if index == 0:
            primary = threading.get_ident()
        manager = run.managers[index]
        manager.reload()
        return manager.all_steps(), manager.latest_step(), manager.restore()["name"]

    assert same(run.each(listed), ([1, 2], 2, "step 2"))


def test_best_step_is_the_primarys(run: Run) -> None:
    class Source:
        def __init__(self, index: int) -> None:
            self.index = index

        metric = "score"

        def values(self, steps: Any, /) -> dict[int, float]:
            return {step: float(step if self.index else -step) for step in steps}

    run.open(own={index: {"metrics_source": Source(index)} for index in range(COUNT)})
    for step in (1, 2):
        run.save(step)
    run.finish()
    assert same(run.call(lambda manager: manager.best_step()), 1)


def test_what_changes_in_the_background_is_listed_where_all_meet(run: Run) -> None:
    run.open()
    run.save(1)
    for manager in run.managers:
        manager._writer.wait()
    assert same(run.call(lambda manager: manager.latest_step()), 1)
    assert same(run.call(lambda manager: manager.steps_with_item("default")), [])
    assert same(run.call(lambda manager: manager.check_for_errors()), None)
    assert same(run.call(lambda manager: manager.steps_with_item("default")), [1])
    assert same(run.call(lambda manager: manager.latest_step()), 1)


def test_asking_for_steps_on_one_process_waits_for_nobody(run: Run) -> None:
    run.open()
    run.save(1)
    run.finish()
    assert run.managers[2].all_steps() == [1]
    assert run.managers[0].metadata(1).item_metadata is not None
    assert same(run.save(2), True)
    for manager in run.managers:  # the others have not heard of the end of this save
        assert manager.metadata(2).item_metadata is not None
    run.finish()


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("call", ["check_for_errors", "wait_until_finished", "save", "close"])
def test_a_failed_background_save_is_raised_on_all_by_the_same_call(
    run: Run, call: str, guilty: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.open()
    run.save(1)
    run.finish()
    burning(monkeypatch, guilty)
    run.save(2)
    for manager in run.managers:
        manager._writer.wait()
    monkeypatch.undo()
    raised_by: dict[str, Callable[[Manager], Any]] = {
        "save": lambda manager: manager.save(3, tree(3)),
    }
    errors = run.call(raised_by.get(call, lambda manager: getattr(manager, call)()))
    assert raised(errors, BackgroundSaveError, "the disk is on fire")
    assert all(f"process {guilty} failed" in str(e) for i, e in enumerate(errors) if i != guilty)
    if call != "close":
        assert same(run.finish(), None)
        expected = [1, 3] if call == "save" else [1]
        assert same(run.call(lambda manager: manager.all_steps()), expected)


def burning(monkeypatch: pytest.MonkeyPatch, guilty: int) -> None:
    """Let one process fail as it writes."""
    write = SaveSession.write

    async def fail(session: SaveSession, commit: Any) -> None:
        if session.process.index == guilty:
            raise ValueError("the disk is on fire")
        await write(session, commit)

    monkeypatch.setattr(SaveSession, "write", fail)


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize("background", [True, False])
def test_what_one_process_cannot_save_fails_on_all_at_once(
    run: Run, background: bool, guilty: int
) -> None:
    run.open(enable_async_checkpointing=background)
    items = [None if index == guilty else tree(1) for index in range(COUNT)]
    errors = run.each(lambda index: run.managers[index].save(1, items[index]))
    assert isinstance(errors[guilty], ValueError)
    assert "Nothing to save" in str(errors[guilty])
    later = run.finish()
    for index in {*range(COUNT)} - {guilty}:
        raised_there = [e for e in (errors[index], later[index]) if isinstance(e, Exception)]
        assert raised_there
        for error in raised_there:
            assert f"process {guilty} failed" in str(error)
            assert "Nothing to save" in str(error)
    assert same(run.save(2), True)  # all are at the same meeting again
    assert same(run.finish(), None)


def test_a_second_attempt_is_not_taken_for_the_first_by_those_that_are_slow(
    tmp_path: Path,
) -> None:
    store = MemoryKeyValueStore()
    groups = [KeyValueGroup(store, Process(index, COUNT)) for index in range(COUNT)]
    run = Run(tmp_path / "run", groups)
    run.open()

    def save_twice(index: int) -> list[Any]:
        if index != 0:
            store.wait_for_key(lambda key: key.endswith("outcome/created"))
        answers: list[Any] = []
        for items in (None if index == 0 else tree(1), tree(10)):
            try:
                answers.append(run.managers[index].save(1, items))
            except (ValueError, ProcessFailedError) as error:
                answers.append(str(error))
        return answers

    for first, second in run.each(save_twice):
        assert "Nothing to save" in str(first)
        assert second is True
    assert same(run.finish(), None)


def test_a_step_that_exists_is_refused_on_all(run: Run) -> None:
    run.open()
    run.save(1)
    run.finish()
    errors = run.save(1, force=True)
    assert raised(errors, StepAlreadyExistsError, "Step 1 of")


def test_deletions_are_the_primarys_and_their_errors_are_everybodys(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.open(max_to_keep=1)
    run.save(1)
    run.finish()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalDirectory, "delete_hidden", refuse)
    run.save(2)
    errors = run.finish()
    assert raised(errors, StorageError, "Deleting step 1")
    assert same(run.call(lambda manager: manager.all_steps()), [2])
    monkeypatch.undo()
    assert same(run.call(lambda manager: manager.delete(2)), None)
    assert same(run.call(lambda manager: manager.all_steps()), [])
    assert raised(run.call(lambda manager: manager.delete(2)), StepNotFoundError, "no step 2")


def test_a_restore_keeps_no_error_of_a_deletion_to_itself(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(LocalDirectory, "delete_hidden", refuse)
    run.open(max_to_keep=1)
    run.save(1)
    run.save(2)
    assert same(run.call(lambda manager: manager.restore(2)["name"]), "step 2")
    assert raised(run.finish(), StorageError, "Deleting step 1")


def test_a_pin_holds_for_all(run: Run) -> None:
    run.open(max_to_keep=1)
    run.save(1)
    run.finish()
    assert same(run.call(lambda manager: manager.pin(1)), None)
    run.save(2)
    run.finish()
    assert same(run.call(lambda manager: manager.all_steps()), [1, 2])
    run.call(lambda manager: manager.unpin(1))
    run.save(3)
    run.finish()
    assert same(run.call(lambda manager: manager.all_steps()), [3])


def damaged_for(
    monkeypatch: pytest.MonkeyPatch, guilty: int, step: int, *, shares_reads: bool = False
) -> None:
    """Let one process find the data of a step damaged; the others may wait for what it reads."""
    restore = ocp.Checkpointer.restore
    local = threading.local()

    def damaged(self: Any, path: Path, **given: Any) -> Any:
        if path.name == str(step) and getattr(local, "index", None) == guilty:
            raise CorruptionError(f"{path}: chunk 0 is damaged")
        if path.name == str(step) and shares_reads:
            raise ProcessFailedError(f"process {guilty} could not read", process=guilty)
        return restore(self, path, **given)

    monkeypatch.setattr(ocp.Checkpointer, "restore", damaged)
    monkeypatch.setattr(Run, "local", local, raising=False)


@pytest.mark.parametrize("shares_reads", [False, True])
@pytest.mark.parametrize("guilty", [0, 2])
def test_all_go_back_to_the_step_that_all_can_read(
    run: Run, guilty: int, shares_reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.open()
    for step in (1, 2, 3):
        run.save(step)
    run.finish()
    damaged_for(monkeypatch, guilty, 3, shares_reads=shares_reads)

    def restore(index: int, **given: Any) -> Any:
        run.local.index = index  # pyright: ignore[reportAttributeAccessIssue] - set above
        return run.managers[index].restore(**given)["name"]

    errors = run.each(restore)
    assert isinstance(errors[guilty], CorruptionError)
    others = [error for index, error in enumerate(errors) if index != guilty]
    assert raised([*others, others[0]], ProcessFailedError, f"failed on process {guilty}")
    assert same(run.each(lambda index: restore(index, fallback=True)), "step 2")
    assert same(run.call(lambda manager: list(manager.refused)), [3])
    assert same(run.call(lambda manager: manager.latest_step()), 2)
    run.call(lambda manager: manager.pin(3))
    run.call(lambda manager: manager.unpin(3))
    assert same(run.call(lambda manager: manager.all_steps()), [1, 2])  # it is still damaged
    monkeypatch.undo()
    assert same(run.save(3), True)  # replaces the damaged one
    assert same(run.finish(), None)
    assert same(run.call(lambda manager: manager.all_steps()), [1, 2, 3])


def test_a_target_that_fits_nowhere_is_an_error_on_all(run: Run) -> None:
    run.open()
    run.save(1)
    run.save(2)
    run.finish()
    targets = [{"w": np.zeros(3), "name": ""}, {"other": 1}, {"w": np.zeros(3), "name": ""}]
    errors = run.each(
        lambda index: run.managers[index].restore(items=targets[index], fallback=True)
    )
    assert isinstance(errors[1], CheckpointError)
    assert raised([errors[0]] * COUNT, ProcessFailedError, "Restoring step 2 failed on process 1")
    assert not any(run.call(lambda manager: dict(manager.refused)))


def test_a_run_without_steps_and_another_directory(run: Run, tmp_path: Path) -> None:
    run.open()
    errors = run.call(lambda manager: manager.restore())
    assert raised(errors, StepNotFoundError, "No steps found")
    other = Run(tmp_path / "other", run.groups)
    other.open()
    other.save(7)
    other.finish()
    restored = run.call(lambda manager: manager.restore(directory=other.root)["name"])
    assert same(restored, "step 7")


def test_a_signal_to_one_process_is_one_to_all(run: Run) -> None:
    run.open(save_interval_steps=100)
    run.save(0)
    run.managers[2]._writer.watch._received_at = 0.0  # what a signal would do
    assert len({*run.call(lambda manager: manager.reached_preemption(1))}) == 1
    assert same(run.call(lambda manager: manager.reached_preemption(1)), True)
    assert same(run.call(lambda manager: manager.should_save(1)), True)
    assert same(run.save(1), True)
    assert same(run.call(lambda manager: manager.all_steps()), [0, 1])  # without waiting


def test_the_time_until_one_process_ends_runs_out_for_all(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(coordinator, "time", SimpleNamespace(monotonic=lambda: now))
    run.open()
    watch = run.managers[2]._writer.watch
    watch._received_at, watch._deadline_s = 0.0, 30.0  # what a signal would do
    run.call(lambda manager: manager.should_save(1))
    told = run.call(lambda manager: manager._writer.decide(2, "2").seconds)
    now += 20.0
    later = run.call(lambda manager: manager._writer.decide(3, "3").seconds)
    assert told[0] is not None
    assert same(told, told[0])
    assert same(later, told[0] - 20.0)


def test_a_policy_that_fails_on_the_primary_fails_on_all(run: Run) -> None:
    def fail(step: int, last: int | None) -> bool:
        raise ValueError(f"no answer for {step} after {last}")

    run.open(should_save_fn=fail)
    errors = run.save(5)
    assert isinstance(errors[0], ValueError)
    assert raised([errors[1], errors[2], errors[2]], ProcessFailedError, "no answer for 5")
    assert "process 0 failed while calling save(5)" in str(errors[1])


def test_processes_that_call_different_methods_are_told_so(run: Run) -> None:
    run.open()
    calls: list[Callable[[Manager], Any]] = [
        lambda manager: manager.should_save(1),
        lambda manager: manager.should_save(1),
        lambda manager: manager.should_save(2),
    ]
    answers = run.each(lambda index: calls[index](run.managers[index]))
    assert answers[:2] == [True, True]
    text = "process 2 calls should_save(2) where process 0 calls should_save(1)"
    assert text in str(answers[2])


def test_a_process_that_does_not_come_is_named(tmp_path: Path) -> None:
    store = MemoryKeyValueStore()
    groups = [KeyValueGroup(store, Process(index, COUNT)) for index in range(COUNT)]
    run = Run(tmp_path / "run", groups)
    run.open()
    hurry(run.managers[0])

    def ask(index: int) -> Any:
        if index == 0:
            store.wait_for_key(lambda key: "arrived/rounds" in key and key.endswith("/2"))
        return run.managers[index].wait_until_finished() if index != 1 else None

    errors = run.each(ask)
    for index in (0, 2):
        assert isinstance(errors[index], ProcessTimeoutError)
        assert errors[index].missing == {1: "calling CheckpointManager()"}


def test_leaving_with_an_error_lets_the_others_know(run: Run) -> None:
    run.open()

    def train(index: int) -> None:
        with run.managers[index] as manager:
            if index == 1:
                raise ZeroDivisionError("in the model")
            manager.wait_until_finished()

    errors = run.each(train)
    assert isinstance(errors[1], ZeroDivisionError)
    assert raised([errors[0], errors[2], errors[2]], ProcessFailedError, "process 1 failed")
    assert "ZeroDivisionError: in the model" in str(errors[0])


def test_after_close_processes_ask_and_restore_but_change_nothing(run: Run) -> None:
    run.open()
    assert same(run.save(1), True)
    for _ in range(2):
        assert same(run.call(lambda m: m.close()), None)
    assert same(run.call(lambda m: m.all_steps()), [1])
    assert same(run.call(lambda m: m.restore()["name"]), "step 1")
    assert same(run.call(lambda m: m.check_for_errors()), None)
    for call in (lambda m: m.save(2, tree(2)), lambda m: m.delete(1), lambda m: m.pin(1)):
        assert raised(run.call(call), CheckpointError, "after close()")
    assert same(run.call(lambda m: m.all_steps()), [1])


def test_closing_waits_for_a_save_though_another_process_has_left(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    commit = AtomicDirectory.commit

    def wait(self: AtomicDirectory) -> None:
        assert go_on.wait(LONG)
        commit(self)

    monkeypatch.setattr(AtomicDirectory, "commit", wait)
    run.open()
    assert same(run.save(1), True)

    run.managers[1]._coordinator.leave(KeyError("mine"))

    def close(index: int) -> Any:
        if index == 0:
            threading.Timer(0.1, go_on.set).start()
        if index != 1:
            with pytest.raises(ProcessFailedError, match="KeyError: 'mine'"):
                run.managers[index].close()
        return (run.root / "1").exists()

    assert run.each(close)[::2] == [True, True]


def test_a_run_that_one_process_cannot_open_is_opened_by_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    errors = run.open()
    assert isinstance(errors[0], StorageError)
    assert raised([errors[1], errors[2], errors[2]], ProcessFailedError, "process 0 failed while")


def test_little_is_left_in_the_store(tmp_path: Path) -> None:
    store = MemoryKeyValueStore()
    groups = [KeyValueGroup(store, Process(index, 2)) for index in range(2)]
    run = Run(tmp_path / "run", groups)
    run.open(save_interval_steps=1000)
    for _ in range(3):
        run.call(lambda manager: [manager.should_save(step) for step in range(100)])
        assert len(store.keys) < 150
    run.call(lambda manager: manager.close())
    assert store.keys == set()


def test_another_process_than_the_first_may_be_primary(tmp_path: Path) -> None:
    store = MemoryKeyValueStore()
    groups = [
        KeyValueGroup(store, Process(index, COUNT, primary=2), names=[1, 3, 5])
        for index in range(COUNT)
    ]
    run = Run(tmp_path / "run", groups)
    run.open()

    def save(index: int) -> bool:
        return run.managers[index].save(1, {"index": index})

    assert same(run.each(save), True)
    run.finish()
    assert ocp.load(run.root / "1") == {"index": 2}
    for manager in run.managers[:2]:
        hurry(manager)
    errors = run.each(lambda index: run.managers[index].reload() if index != 2 else None)
    assert raised(errors[:2] * 2, ProcessTimeoutError, "process 5 (last: calling wait_until")


def test_no_process_waits_for_the_writes_of_another(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    commit = AtomicDirectory.commit

    def wait(self: AtomicDirectory) -> None:
        assert release.wait(LONG)
        commit(self)

    monkeypatch.setattr(AtomicDirectory, "commit", wait)
    run.open()
    assert same(run.save(1), True)
    assert same(run.call(lambda manager: manager.should_save(2)), True)
    assert same(run.call(lambda manager: manager.check_for_errors()), None)
    release.set()
    assert same(run.finish(), None)

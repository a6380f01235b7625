"""What happens at the same moment: saves, deletions, pins and listings of threads and processes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.manager import index
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.storage.atomic import AtomicDirectory
from orbit_ckpt.errors import BackgroundSaveError, StepNotFoundError, StorageError
from orbit_ckpt.policies import FixedIntervalPolicy, LatestN

Act = Callable[[], object]


def save(manager: ocp.CheckpointManager, *steps: int, force: bool = False) -> None:
    for step in steps:
        manager.save(step, {"step": step}, force=force)
        manager.wait_until_finished()


def before_removal(monkeypatch: pytest.MonkeyPatch, act: Act) -> None:
    """Do something, once, before a directory that was renamed is removed."""
    remove = shutil.rmtree
    acts = [act]

    def act_and_remove(path: Any, *args: Any, **kwargs: Any) -> None:
        if "-deleted-" in str(path) and acts:
            acts.pop()()
        remove(path, *args, **kwargs)

    monkeypatch.setattr(shutil, "rmtree", act_and_remove)


def test_a_step_that_is_being_deleted_is_not_listed(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run(max_to_keep=1)
    save(manager, 1)
    seen: list[list[int]] = []
    before_removal(monkeypatch, lambda: seen.append(manager.all_steps()))
    save(manager, 2)
    assert seen == [[2]]


def test_a_deletion_that_another_process_helps_with_is_no_error(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run(max_to_keep=1)
    save(manager, 1)

    def remove_half() -> None:
        (half,) = (tmp_path / "run").glob("*-deleted-*")
        shutil.rmtree(half)

    before_removal(monkeypatch, remove_half)
    save(manager, 2)
    assert os.listdir(tmp_path / "run") == ["2"]


def test_what_could_not_be_removed_is_removed_with_the_next_step(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run(max_to_keep=1)
    save(manager, 1)

    def refuse() -> None:
        raise PermissionError(13, "Permission denied")

    before_removal(monkeypatch, refuse)
    with pytest.raises(StorageError, match=r"Deleting step 1 .*Permission denied"):
        save(manager, 2)
    assert manager.all_steps() == [2]
    assert len(os.listdir(tmp_path / "run")) == 2
    save(manager, 3)
    assert os.listdir(tmp_path / "run") == ["3"]


def test_an_item_that_could_not_be_dropped_is_told_with_its_step(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run(max_to_keep=2, item_preservation_policies={"default": LatestN(1)})
    save(manager, 1, 2)

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "default":
            raise PermissionError(13, "Permission denied")
        os.rename(self, target)
        return target

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(StorageError, match=r"Deleting item 'default' of step 2 .*Permission"):
        save(manager, 3)
    assert manager.all_steps() == [2, 3]  # step 1 was deleted all the same


def test_a_failed_deletion_does_not_keep_the_next_step_from_being_saved(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run(max_to_keep=1)
    save(manager, 1)

    def refuse() -> None:
        raise PermissionError(13, "Permission denied")

    before_removal(monkeypatch, refuse)
    manager.save(2, {"step": 2})
    with pytest.raises(StorageError, match="Deleting step 1"):
        manager.save(3, {"step": 3})
    manager.wait_until_finished()
    assert manager.all_steps() == [3]


def test_closing_tells_of_a_failed_deletion_besides_a_failed_save(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run(enable_background_delete=True)
    save(manager, 1)
    release = threading.Event()

    def wait_and_refuse() -> None:
        assert release.wait(60)
        raise PermissionError(13, "Permission denied")

    def fail(_: AtomicDirectory) -> None:
        raise OSError(28, "No space left on device")

    before_removal(monkeypatch, wait_and_refuse)
    monkeypatch.setattr(AtomicDirectory, "commit", fail)
    manager.delete(1)
    manager.save(2, {"step": 2})
    release.set()
    with pytest.raises(BackgroundSaveError, match="step 2") as caught:
        manager.close()
    assert "Deleting step 1" in "".join(caught.value.__notes__)


def test_a_step_that_another_process_has_pinned_stays(run: Any) -> None:
    manager = run(max_to_keep=1, item_preservation_policies={"default": LatestN(1)})
    save(manager, 1)
    run().pin(1)
    save(manager, 2)
    assert manager.all_steps() == [1, 2]
    assert manager.restore(1) == {"step": 1}


def test_a_step_that_is_pinned_while_a_policy_decides_stays_or_is_not_found(run: Any) -> None:
    outcome: list[bool] = []

    def pin() -> None:
        try:
            manager.pin(1)
        except StepNotFoundError:
            outcome.append(False)
        else:
            outcome.append(True)

    thread = threading.Thread(target=pin)

    class Policy:
        def should_preserve(self, checkpoints: Any, *, context: object) -> list[bool]:
            del context
            if len(checkpoints) > 1:
                thread.start()
                thread.join(0.2)  # it either ends or waits for us
            return [False] * len(checkpoints)

    manager = run(preservation_policy=Policy())
    save(manager, 1, 2)
    thread.join()
    assert outcome == [1 in manager.all_steps()]


def test_a_step_that_becomes_durable_while_the_directory_is_read_is_listed(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(run(), 1, 2)
    steps = StepIndex(tmp_path / "run", ocp.StepNameFormat())
    read = index.list_steps
    thread = threading.Thread(target=steps.add, args=(2, tmp_path / "run" / "2"))

    def read_before(*args: Any, **given: Any) -> Any:
        found = [record for record in read(*args, **given) if record.step != 2]
        thread.start()
        thread.join(0.2)  # it either ends or waits for us
        return found

    monkeypatch.setattr(index, "list_steps", read_before)
    steps.reload()
    thread.join()
    assert steps.steps() == [1, 2]


def test_a_step_that_becomes_durable_while_policies_are_asked_is_not_saved_again(
    run: Any, slow: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = run()
    manager.save(1, {"step": 1})
    read = StepIndex.infos

    def read_before(self: StepIndex, **given: Any) -> Any:
        found = read(self, **given)
        if not slow.is_set():
            slow.set()
            manager._writer._pending.wait()
        return found

    monkeypatch.setattr(StepIndex, "infos", read_before)
    assert not manager.should_save(1)


def test_policies_see_steps_in_order_whatever_is_being_saved(
    run: Any, slow: threading.Event
) -> None:
    slow.set()
    manager = run(save_decision_policy=FixedIntervalPolicy(1))
    save(manager, 5)
    slow.clear()
    manager.save(4, {"step": 4}, force=True)
    assert not manager.should_save(5)
    assert not manager.save(5, {"step": 5})
    assert manager.should_save(6)


def test_a_step_whose_replacement_died_is_listed_at_once(run: Any, tmp_path: Path) -> None:
    save(run(), 5)
    (tmp_path / "run" / "5").rename(tmp_path / "run" / "5.orbax-checkpoint-tmp-orbit-1-replaced")
    assert run().all_steps() == [5]


def test_an_empty_directory_that_a_dead_save_has_left_goes(run: Any, tmp_path: Path) -> None:
    for name in ("5", "mine"):
        (tmp_path / "run" / name).mkdir(parents=True)
    run()
    assert os.listdir(tmp_path / "run") == ["mine"]

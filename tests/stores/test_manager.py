"""Runs of steps in object stores."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import directories
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, IN_PROGRESS, STEP_METADATA
from orbit_ckpt._src.storage.objects import remove_checkpoint
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    StepNotFoundError,
    StorageError,
)
from orbit_ckpt.policies import LatestN
from orbit_ckpt.step import checkpoint_steps, find_step_path, is_path_finalized
from orbit_ckpt.testing.chaos.proxy import Failure, Proxy
from tests.programs import run_script

Options = ocp.CheckpointManagerOptions


def tree(step: int) -> dict[str, Any]:
    return {"w": np.full(4000, step, np.float32), "step": step}


def at(url: str) -> StorePath:
    path = resolve_path(url)
    assert isinstance(path, StorePath)
    return path


def steps_with_objects(url: str) -> list[str]:
    return [name for name in at(url).directories() if name.isdigit()]


@pytest.mark.parametrize("in_background", [False, True])
def test_a_run_keeps_its_last_steps(store: str, in_background: bool) -> None:
    options = Options(max_to_keep=2, enable_background_delete=in_background)
    with ocp.CheckpointManager(f"{store}/run", options=options, metadata={"lr": 1}) as run:
        assert run.all_steps() == []
        for step in range(5):
            assert run.save(step, tree(step))
        run.wait_until_finished()
        assert run.all_steps() == [3, 4]
        assert run.restore()["step"] == 4
    assert steps_with_objects(f"{store}/run") == ["3", "4"]
    again = ocp.CheckpointManager(f"{store}/run", options=options)
    assert again.all_steps() == [3, 4]
    assert again.restore(3)["step"] == 3
    assert again.metadata().custom_metadata == {"lr": 1}
    assert again.item_metadata(4)["w"].shape == (4000,)
    assert not again.save(4, tree(4))
    assert again.save(5, tree(5))
    again.close()
    assert checkpoint_steps(f"{store}/run") == [4, 5]


def test_the_best_steps_are_kept(store: str) -> None:
    options = Options(max_to_keep=2, best_fn=lambda m: m["score"], keep_latest=True)
    for begun in (0, 3):  # another manager reads the metrics
        with ocp.CheckpointManager(store, options=options) as run:
            for step in range(begun, begun + 3):
                run.save(step, tree(step), metrics={"score": -step})
            run.wait_until_finished()
            assert run.best_step() == 0
    assert run.metrics(0) == {"score": 0}
    assert {0, 5} <= set(run.all_steps())
    assert len(run.all_steps()) <= 3


def test_steps_are_pinned_and_deleted(store: str) -> None:
    with ocp.CheckpointManager(store, options=Options(max_to_keep=1)) as run:
        run.save(0, tree(0))
        run.wait_until_finished()
        run.pin(0)
        for step in (1, 2):
            run.save(step, tree(step))
        run.wait_until_finished()
        assert run.all_steps() == [0, 2]
        run.delete(0)
        assert run.all_steps(read=True) == [2]
        with pytest.raises(StepNotFoundError):
            run.restore(0)
    assert steps_with_objects(store) == ["2"]


def test_items_of_several_kinds(store: str) -> None:
    with ocp.CheckpointManager(store) as run:
        args = ocp.args.Composite(
            state=ocp.args.StandardSave(tree(7)), about=ocp.args.JsonSave({"x": 1})
        )
        run.save(7, args=args)
        run.wait_until_finished()
        found = run.restore(7)
        assert found.about == {"x": 1}
        assert found.state["step"] == 7
        assert sorted(run.item_metadata(7)) == ["about", "state"]


def test_an_older_step_is_restored_if_the_newest_is_damaged(store: str) -> None:
    with ocp.CheckpointManager(store) as run:
        for step in (1, 2):
            run.save(step, tree(step))
        run.wait_until_finished()
        (at(store) / "2" / "default" / "_METADATA").unlink()
        assert run.restore(fallback=True)["step"] == 1
        assert list(run.refused) == [2]
        assert run.save(2, tree(20))
        run.wait_until_finished()
        assert run.restore()["step"] == 20


def test_steps_that_are_not_committed_are_not_there(store: str) -> None:
    with ocp.CheckpointManager(store) as run:
        for step in (1, 2, 3):
            run.save(step, tree(step))
    (at(store) / "3" / COMMIT_MARKER).unlink()
    run = ocp.CheckpointManager(store, options=Options(read_only=True))
    assert run.all_steps() == [1, 2]
    assert run.restore()["step"] == 2
    assert find_step_path(store, Options().step_names(), step=2) == at(store) / "2"
    assert not is_path_finalized(f"{store}/3")


def test_a_deletion_that_died_is_ended_by_the_next_manager(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise StorageError("dead")

    with ocp.CheckpointManager(store) as run:
        for step in (1, 2):
            run.save(step, tree(step))
        run.wait_until_finished()
        with monkeypatch.context() as patch:
            patch.setattr(directories, "remove_checkpoint", die)
            with pytest.raises(StorageError, match="Deleting step 1"):
                run.delete(1)
        assert run.all_steps() == [2]
        assert steps_with_objects(store) == ["1", "2"]
    read_only = ocp.CheckpointManager(store, options=Options(read_only=True))
    assert read_only.all_steps() == [2]
    assert steps_with_objects(store) == ["1", "2"]
    ocp.CheckpointManager(store)
    assert steps_with_objects(store) == ["2"]


@pytest.mark.parametrize("everything", [False, True])
def test_unfinished_saves_are_removed_only_if_told_to(store: str, everything: bool) -> None:
    ocp.save(f"{store}/1", tree(1))
    (at(store) / "2" / IN_PROGRESS).write_bytes(b"token of a save that may go on")
    (at(store) / "2" / STEP_METADATA).write_bytes(b"{}")
    run = ocp.CheckpointManager(store, options=Options(cleanup_tmp_directories=everything))
    assert run.all_steps() == [1]
    assert steps_with_objects(store) == (["1"] if everything else ["1", "2"])


def test_a_step_is_saved_again_once_its_deletion_has_ended(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def slowly(path: StorePath) -> None:
        begun.set()
        assert may_go_on.wait(60)
        remove_checkpoint(path)

    monkeypatch.setattr(directories, "remove_checkpoint", slowly)
    with ocp.CheckpointManager(store, options=Options(enable_background_delete=True)) as run:
        run.save(1, tree(1))
        run.wait_until_finished()
        run.delete(1)
        assert begun.wait(60)
        assert run.all_steps() == []
        saving = threading.Thread(target=run.save, args=(1, tree(10)))
        saving.start()
        saving.join(0.2)
        assert saving.is_alive()
        may_go_on.set()
        saving.join()
        run.wait_until_finished()
        assert run.restore(1)["step"] == 10
    assert ocp.CheckpointManager(store).all_steps() == [1]


def test_a_failed_deletion_does_not_remove_what_is_saved_there_later(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no")

    with ocp.CheckpointManager(store) as run:
        run.save(1, tree(1))
        run.wait_until_finished()
        with monkeypatch.context() as patch:
            patch.setattr(directories, "remove_checkpoint", fail)
            with pytest.raises(StorageError, match="Deleting step 1"):
                run.delete(1)
        for step in (1, 2):
            run.save(step, tree(step))
        run.wait_until_finished()
        assert run.all_steps() == [1, 2]
        assert run.restore(1)["step"] == 1


def test_a_run_is_followed(store: str) -> None:
    url = f"{store}/run"
    with ocp.checkpoint_utils.wait_for_new_checkpoint(url, timeout=0) as step:
        assert step == -1
    ocp.save(f"{url}/3", tree(3))
    with ocp.checkpoint_utils.wait_for_new_checkpoint(url, timeout=0) as step:
        assert step == 3
    assert list(ocp.checkpoint_utils.checkpoints_iterator(url, timeout=0)) == [3]


def test_what_a_store_cannot_do_is_refused(store: str) -> None:
    with pytest.raises(ValueError, match="no rename"):
        ocp.CheckpointManager(store, options=Options(todelete_subdir="old"))
    options = Options(item_preservation_policies={"state": LatestN(1)})
    with pytest.raises(ValueError, match="only whole steps"):
        ocp.CheckpointManager(store, options=options)


def test_lazy_arrays_are_not_overwritten_before_they_are_read(store: str) -> None:
    ocp.save(f"{store}/1", tree(1))
    lazy = ocp.load(f"{store}/1", lazy=True)
    with pytest.raises(CheckpointExistsError, match="cannot be overwritten in a store"):
        ocp.save(f"{store}/1", lazy, overwrite=True)
    assert ocp.load(f"{store}/1")["step"] == 1


def test_a_throttled_run_goes_on(s3: str, proxy: Proxy) -> None:
    seen: set[tuple[str, str]] = set()

    def fails(method: str, path: str, _: int) -> Failure | None:
        is_first = (method, path) not in seen
        seen.add((method, path))
        return "503" if is_first else None

    proxy.fails = fails
    with ocp.CheckpointManager(s3, options=Options(max_to_keep=2)) as run:
        for step in range(4):
            run.save(step, tree(step))
        run.wait_until_finished()
        assert run.all_steps() == [2, 3]
    again = ocp.CheckpointManager(s3)
    assert again.all_steps() == [2, 3]
    assert again.restore()["step"] == 3


def test_a_store_that_fails_is_told_and_the_run_goes_on(s3: str, proxy: Proxy) -> None:
    with ocp.CheckpointManager(s3, options=Options(max_to_keep=1)) as run:
        run.save(1, tree(1))
        run.wait_until_finished()
        proxy.fails = lambda method, path, _: "503" if method == "PUT" and "/2/" in path else None
        with pytest.raises(StorageError, match="overloaded"):
            run.save(2, tree(2))
        assert run.all_steps(read=True) == [1]
        proxy.fails = lambda method, path, _: (
            "503" if method == "DELETE" and "/1/" in path else None
        )
        run.save(3, tree(3))
        with pytest.raises(StorageError, match="Deleting step 1"):
            run.wait_until_finished()
        proxy.fails = lambda *_: None
        run.save(4, tree(4))
        run.wait_until_finished()
        assert 4 in run.all_steps()
        assert run.restore()["step"] == 4
    assert ocp.CheckpointManager(s3).latest_step() == 4


def test_metrics_that_the_store_does_not_tell_are_no_reason_to_delete_the_best(
    s3: str, proxy: Proxy
) -> None:
    with ocp.CheckpointManager(s3) as run:
        run.save(1, tree(1), metrics={"score": 9})
    proxy.fails = lambda _, path, __: "503" if "metrics/metrics" in path else None
    with pytest.raises(StorageError, match="overloaded"):
        ocp.CheckpointManager(s3)


def test_many_steps_are_listed_with_few_requests_each(s3: str, proxy: Proxy) -> None:
    with ocp.CheckpointManager(s3) as run:
        for step in range(10):
            run.save(step, tree(step))
    proxy.requests.clear()
    ocp.CheckpointManager(s3, options=Options(read_only=True))
    assert len(proxy.requests) < 60, proxy.requests


DYING = """
import os, signal, sys
import orbit_ckpt as ocp
from orbit_ckpt._src.storage.client_bucket import ClientBucket
from tests.stores.test_manager import tree

url, name, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
original, count = getattr(ClientBucket, name), 0

def dying(self, key, *args, **kwargs):
    global count
    count += "1/" in key if name == "delete_below" else "3/" in key
    if count >= nth:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, key, *args, **kwargs)

run = ocp.CheckpointManager(url, options=ocp.CheckpointManagerOptions(max_to_keep=2))
for step in (1, 2):
    run.save(step, tree(step))
run.wait_until_finished()
setattr(ClientBucket, name, dying)
run.save(3, tree(3))
run.wait_until_finished()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "nth", "steps"),
    [("begin_write", 1, [1, 2]), ("begin_write", 5, [1, 2]), ("delete_below", 1, [2, 3])],
)
def test_a_run_goes_on_after_its_process_was_killed(
    s3: str, where: str, nth: int, steps: list[int]
) -> None:
    url = f"{s3}/run"
    assert run_script(DYING, url, where, nth).returncode == -signal.SIGKILL
    with ocp.CheckpointManager(url, options=Options(max_to_keep=2)) as run:
        assert run.all_steps() == steps
        assert run.restore()["step"] == steps[-1]
        if steps[-1] != 3:
            with pytest.raises(CheckpointNotFoundError):
                run.restore(3)
        for step in {3, 4} - set(steps):
            run.save(step, tree(step))
        run.wait_until_finished()
        assert run.all_steps() == [3, 4]
        assert run.restore()["step"] == 4
    assert steps_with_objects(url) == ["3", "4"]

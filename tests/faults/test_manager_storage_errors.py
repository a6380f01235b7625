"""Storage that refuses one operation of a manager: the step or the deletion is told, nothing lost.

Every operation of a save, and of the deletions that follow it, is refused in turn with one of
several errors, under `nox -s soak` with each. Of a save, a usual run refuses every third operation,
with the usual options; `nox -s matrix` refuses each, and every third with other options.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import BackgroundSaveError, StorageError
from orbit_ckpt.policies import LatestN
from orbit_ckpt.testing.write_faults import Refusal, before_every_write
from tests.cells import cells
from tests.soak import SOAK
from tests.support import assert_same_tree

CODES = [errno.ENOSPC, errno.EIO, errno.EACCES]

EACH = range(1, 10_000)

OPERATIONS = {"mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir"}

OPTIONS: dict[str, dict[str, Any]] = {
    "async": {},
    "async, every third": {},
    "sync": {"enable_async_checkpointing": False},
    "background delete": {"enable_background_delete": True},
    "marker mode": {"atomicity_options": ocp.AtomicityOptions(mode=ocp.AtomicityMode.COMMIT_FILE)},
}


def state(step: int) -> dict[str, Any]:
    return {"w": np.full(3000, step, np.float32), "step": step}


def open_run(root: Path, **options: Any) -> ocp.CheckpointManager:
    fields = {"max_to_keep": 2, "item_preservation_policies": {"data": LatestN(1)}, **options}
    names = ["state", "data"]
    return ocp.CheckpointManager(
        root, None, ocp.CheckpointManagerOptions(**fields), item_names=names
    )


def save(manager: ocp.CheckpointManager, step: int) -> None:
    """Save a step and wait for it, so that what fails is told."""
    items = ocp.args.Composite(
        state=ocp.args.StandardSave(state(step)), data=ocp.args.JsonSave({"position": step})
    )
    manager.save(step, args=items, metrics={"loss": step})
    manager.wait_until_finished()


def assert_intact(manager: ocp.CheckpointManager, steps: list[int]) -> None:
    assert manager.all_steps() == steps
    for step in steps:
        items = manager.restore(step)
        assert_same_tree(items.state, state(step))
        assert items.metrics == {"loss": step}
        assert step != steps[-1] or items.data == {"position": step}


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "run"
    with open_run(root) as manager:
        save(manager, 1)
        save(manager, 2)
    return root


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk; `os.fsync` is refused as it would be otherwise."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


Told = BackgroundSaveError | StorageError


def attempts(usual: range = EACH) -> Iterator[Refusal]:
    """Refuse one operation after the other, in a usual run those of a range; in the end none."""
    for code in CODES if SOAK else [None]:
        for nth in EACH if SOAK else usual:
            refusal = Refusal(nth, code or CODES[nth // 3 % len(CODES)])
            yield refusal
            if not refusal.happened:
                print(f"at most {nth - 1} operations were refused, one at a time")
                break


def attempt(refusal: Refusal, call: Callable[[], object]) -> Told | None:
    """Do something, an operation of which is refused; return what it raises."""
    with before_every_write(refusal, deletions=True, data=True):
        try:
            call()
        except (BackgroundSaveError, StorageError) as error:
            return error
    return None


@pytest.fixture
def copy_of_run(two_steps: Path, tmp_path: Path) -> Callable[[], Path]:
    """Make a copy of a run of two steps."""
    numbers = itertools.count()
    return lambda: shutil.copytree(two_steps, tmp_path / str(next(numbers)))


@pytest.mark.slow
@pytest.mark.parametrize("name", cells(OPTIONS, lambda name: name == "async, every third"))
def test_a_refused_operation_is_told_and_loses_no_step(
    copy_of_run: Callable[[], Path], name: str
) -> None:
    options, number = OPTIONS[name], [*OPTIONS].index(name)
    seen: set[str] = set()
    for refusal in attempts(EACH[number - 1 :: 3] if number else EACH):
        manager = open_run(copy_of_run(), **options)
        error = attempt(refusal, lambda run=manager: save(run, 3))
        seen.update(refusal.seen)
        if refusal.happened:
            check_what_is_left(manager, error, refusal)
        else:
            assert error is None
            assert_intact(manager, [2, 3])
        save(manager, 4)
        assert_intact(manager, manager.all_steps())
        assert manager.all_steps()[-1] == 4
        save(manager, 5)
        assert_intact(manager, [4, 5])
        assert sorted(os.listdir(manager.directory)) == ["4", "5"]
        manager.close()
    assert seen == OPERATIONS


def check_what_is_left(
    manager: ocp.CheckpointManager, error: Told | None, refusal: Refusal
) -> None:
    """Check that an error tells of the refusal, and that everything that it does not is there."""
    assert error is not None, f"{refusal.seen[refusal.nth - 1]} failed and nobody was told"
    assert os.strerror(refusal.code) in str(error)
    left = set(os.listdir(manager.directory))
    if "Deleting" in str(error):
        assert re.search(r"Deleting (step 1|item 'data' of step 2) ", str(error))
        assert_intact(manager, sorted({*manager.all_steps(), 2, 3}))
        unexplained = {name for name in left - {"1", "2", "3"} if "-deleted-" not in name}
    else:
        assert isinstance(error, StorageError) or error.step == 3
        assert f"{manager.directory / '3'}" in str(error)
        assert_intact(manager, [1, 2])
        unexplained = left - {"1", "2"}
    assert not unexplained


@pytest.mark.parametrize(
    ("doing", "kept"), [("pin", [1, 2]), ("unpin", [2]), ("delete", [2])], ids=str
)
def test_a_refused_operation_of_another_method_is_told_and_it_can_be_called_again(
    copy_of_run: Callable[[], Path], doing: str, kept: list[int]
) -> None:
    for refusal in attempts():
        manager = open_run(copy_of_run(), max_to_keep=1)
        if doing == "unpin":
            manager.pin(1)
        method = getattr(manager, doing)
        error = attempt(refusal, lambda method=method: method(1))
        assert (error is not None) == refusal.happened
        assert error is None or f"{manager.directory / '1'}" in str(error)
        assert_intact(manager, sorted({*manager.all_steps(), 2}))
        if 1 in manager.all_steps():
            method(1)
        manager.close()
        again = open_run(manager.directory, max_to_keep=1)
        assert again.retention().kept == kept
        assert sorted(os.listdir(manager.directory)) == [str(step) for step in again.all_steps()]


def test_a_refused_operation_while_a_run_is_opened_is_told_and_it_can_be_opened_again(
    tmp_path: Path,
) -> None:
    for refusal in attempts():
        root = tmp_path / f"{refusal.nth} {refusal.code}" / "run"

        def open_it(root: Path = root) -> ocp.CheckpointManager:
            return ocp.CheckpointManager(root, metadata={"model": "a"})

        error = attempt(refusal, open_it)
        # what is left when only tidying up is refused goes with the next opening
        tidying = refusal.seen[refusal.nth - 1 : refusal.nth] == ["rmdir"]
        assert (error is not None) == (refusal.happened and not tidying)
        assert error is None or str(root) in str(error)
        assert open_it().metadata().custom_metadata == {"model": "a"}
        assert os.listdir(root) == ["metadata"]
        assert os.listdir(root / "metadata") == ["_ROOT_METADATA"]

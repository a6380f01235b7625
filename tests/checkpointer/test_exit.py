"""Saves while the interpreter ends: after the main thread, and where no thread can be started."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.support import assert_same_tree, checkpointer

TREE = {
    "numpy": np.arange(3_000_000, dtype=np.float32),
    "jax": jnp.arange(10),
    "small": [np.full(3, i) for i in range(20)],
    "text": "x",
}


def save_in_a_coroutine(path: str) -> None:
    async def train() -> None:
        ocp.save(path, TREE)

    asyncio.run(train())


def save_lazily(path: str) -> None:
    ocp.save(f"{path}-first", TREE)
    ocp.save(path, ocp.load(f"{path}-first", lazy=True))


def save_with(saver: ocp.Checkpointer, path: str) -> None:
    with saver:
        saver.save(path, TREE)


SAVERS: dict[str, Callable[[str], object]] = {
    "save": lambda path: ocp.save(path, TREE),
    "save_async": lambda path: ocp.save_async(path, TREE),
    "in a coroutine": save_in_a_coroutine,
    "lazy": save_lazily,
    "zarr2": lambda path: save_with(checkpointer(use_zarr3=False), path),
    "files": lambda path: save_with(checkpointer(use_ocdbt=False), path),
    "StandardCheckpointer": lambda path: save_with(ocp.StandardCheckpointer(), path),
    "AsyncCheckpointer": lambda path: save_with(ocp.AsyncCheckpointer(ocp.PyTreeHandler()), path),
}


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("place", ["disk", "store"])
@pytest.mark.parametrize("save", SAVERS.values(), ids=SAVERS)
def test_without_threads_checkpoints_are_saved_loaded_and_verified(
    save: Callable[[str], object], place: str, tmp_path: Path
) -> None:
    path = f"{tmp_path}/x" if place == "disk" else f"memory://exit{tmp_path}/x"
    save(path)
    assert_same_tree(ocp.load(path), TREE)
    assert ocp.verify(path).is_intact


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize("background", [False, True])
def test_without_threads_a_manager_saves_and_deletes(background: bool, tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_background_delete=background)
    manager = ocp.CheckpointManager(tmp_path, options=options)
    for step in range(4):
        assert manager.save(step, TREE)
    assert manager.all_steps() == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]
    assert_same_tree(manager.restore(3), TREE)
    manager.close()


@pytest.mark.usefixtures("no_threads")
def test_without_threads_what_a_save_fails_with_is_raised(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for save in (ocp.save, ocp.save_async):
        with pytest.raises(ocp.errors.StorageError):
            save(tmp_path / "file" / "x", TREE)


LATE = """
import atexit, pathlib, sys, threading
import numpy as np

root = pathlib.Path(sys.argv[1])

def last_checkpoint():
    import orbit_ckpt as ocp  # the first time after the main thread has ended, if `early` is false
    tree = {"a": np.arange(3_000_000), "b": 1}
    ocp.save(root / "save", tree)
    ocp.save_async(root / "save_async", tree)
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(root / "standard", tree)
    manager = ocp.CheckpointManager(root / "run")
    manager.save(1, tree)
    if "fail" in sys.argv:
        ocp._src.storage.batch_write.DatabaseWriter = None
        ocp.save_async(root / "failed", tree)

def after_main():
    threading.main_thread().join()
    last_checkpoint()

if "early" in sys.argv:
    import orbit_ckpt
    orbit_ckpt.save(root / "first", 1)
if "atexit" in sys.argv:
    atexit.register(last_checkpoint)
else:
    threading.Thread(target=after_main).start()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("when", "use"), [("atexit", "early"), ("thread", "first used then")])
def test_saves_after_the_main_thread_has_ended_are_durable(
    when: str, use: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", LATE, str(tmp_path), when, use]
    ended = subprocess.run(command, check=True, timeout=120, capture_output=True, text=True)
    assert "Error" not in ended.stderr
    for name in ("save", "save_async", "standard", "run/1/default"):
        assert ocp.load(tmp_path / name)["a"][-1] == 2_999_999


@pytest.mark.slow
def test_a_save_that_fails_after_the_main_thread_has_ended_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LATE, str(tmp_path), "thread", "fail"]
    ended = subprocess.run(command, check=False, timeout=120, capture_output=True, text=True)
    assert "Traceback" in ended.stderr
    assert f"Saving {tmp_path}/failed in the background failed" in ended.stderr
    assert not (tmp_path / "failed").exists()

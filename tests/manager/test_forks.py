"""Children that are forked while a save is in progress."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointError
from tests.forks import in_child
from tests.soak import rounds

FORKS = rounds(3, 100)

# Python and JAX advise against forking
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")

TREE = {"a": np.arange(100_000)}


@pytest.fixture
def saving(held_commit: threading.Event, tmp_path: Path) -> Iterator[ocp.CheckpointManager]:
    """Return a manager with step 0 durable and a save of step 1 that ends with the test."""
    options = ocp.CheckpointManagerOptions(max_to_keep=3, enable_background_delete=True)
    manager = ocp.CheckpointManager(tmp_path / "run", options=options)
    held_commit.set()
    manager.save(0, TREE)
    manager.wait_until_finished()
    held_commit.clear()
    manager.save(1, TREE)
    yield manager
    assert manager.is_saving_in_progress()
    held_commit.set()
    manager.wait_until_finished()
    assert manager.all_steps() == [0, 1]
    assert ocp.verify(tmp_path / "run" / "1").is_intact
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["0", "1"]
    manager.close()


@pytest.mark.usefixtures("saving")
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_processes_started_during_a_save_end(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    for _ in range(FORKS):
        process = context.Process(target=abs, args=(1,))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        process.close()


@pytest.mark.usefixtures("saving")
def test_a_pool_started_during_a_save_works_and_ends() -> None:
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        assert pool.map(abs, range(-8, 0)) == [*range(8, 0, -1)]
    pool = context.Pool(2)
    pool.close()
    pool.join()


def test_a_child_reads_the_run_and_closes_its_manager(saving: ocp.CheckpointManager) -> None:
    def look() -> tuple[Any, ...]:
        restored = saving.restore()["a"]
        seen = saving.all_steps(), saving.is_saving_in_progress(), gc.isenabled()
        saving.check_for_errors()
        saving.close()
        return *seen, restored.sum()

    assert in_child(look) == ([0], False, True, TREE["a"].sum())


def test_a_child_is_told_that_only_its_parent_can_wait_for_a_save(
    saving: ocp.CheckpointManager,
) -> None:
    with pytest.raises(CheckpointError, match=rf"run/1 is being saved by process {os.getpid()}"):
        in_child(saving.wait_until_finished)


def test_a_child_that_leaves_the_block_of_a_manager_does_nothing(
    saving: ocp.CheckpointManager,
) -> None:
    def leave() -> str:
        try:
            with saving:
                sys.exit("the end")
        except SystemExit as error:
            gc.collect()
            return f"{error} {getattr(error, '__notes__', '')}"

    assert in_child(leave) == "the end "


def test_a_child_saves_steps_of_its_own(
    saving: ocp.CheckpointManager, held_commit: threading.Event, tmp_path: Path
) -> None:
    def save() -> list[int]:
        held_commit.set()
        other = ocp.CheckpointManager(tmp_path / "other")
        other.save(5, TREE)
        other.close()
        return other.all_steps()

    assert in_child(save) == [5]
    assert ocp.verify(tmp_path / "other" / "5").is_intact
    assert saving.is_saving_in_progress()


HANDLES: dict[str, Callable[[ocp.SaveHandle], object]] = {
    "result": lambda handle: handle.result(),
    "await": lambda handle: asyncio.run(asyncio.wait_for(_awaited(handle), 30)),
}


async def _awaited(handle: ocp.SaveHandle) -> None:
    await handle


@pytest.mark.parametrize("ask", HANDLES.values(), ids=HANDLES)
def test_a_handle_says_in_a_child_whose_save_it_is(
    ask: Callable[[ocp.SaveHandle], object], held_commit: threading.Event, tmp_path: Path
) -> None:
    handle = ocp.save_async(tmp_path / "x", TREE)
    with pytest.raises(CheckpointError, match="x is being saved by process"):
        in_child(lambda: ask(handle))
    assert in_child(handle.done)
    held_commit.set()
    handle.result()
    assert in_child(handle.result) is None


def test_a_checkpointer_can_be_used_in_a_child(
    held_commit: threading.Event, tmp_path: Path
) -> None:
    saver = ocp.StandardCheckpointer()
    saver.save(tmp_path / "parent", TREE)

    def use() -> Any:
        held_commit.set()
        with pytest.raises(CheckpointError, match="parent is being saved by process"):
            saver.wait_until_finished()
        saver.save(tmp_path / "child", TREE)
        saver.wait_until_finished()
        restored = saver.restore(tmp_path / "child")["a"]
        saver.close()
        return restored.sum()

    assert in_child(use) == TREE["a"].sum()
    assert [path.name for path in tmp_path.glob("[!p]*")] == ["child"]
    held_commit.set()
    saver.close()
    assert ocp.verify(tmp_path / "parent").is_intact


@pytest.mark.slow
def test_a_child_does_not_hold_the_lock_of_a_save_whose_process_has_died(tmp_path: Path) -> None:
    path = tmp_path / "x"
    script = f"""
import os, sys, threading, orbit_ckpt as ocp
from orbit_ckpt._src.runtime.commit import Commit
async def wait(self):
    threading.Event().wait()
Commit.run = wait
options = ocp.AtomicityOptions(mode=ocp.AtomicityMode.COMMIT_FILE)
saver = ocp.AsyncCheckpointer(ocp.PyTreeHandler(), atomicity_options=options)
saver.save({str(path)!r}, {{"a": 1}})
if os.fork() == 0:
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os._exit(1)
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert process.wait() == 1
        options = ocp.AtomicityOptions(mode=ocp.AtomicityMode.COMMIT_FILE)
        again = ocp.Checkpointer(ocp.PyTreeHandler(), atomicity_options=options)
        again.save(path, {"a": 2})
    assert ocp.load(path) == {"a": 2}


@pytest.mark.slow
def test_a_child_that_exits_during_a_save_ends(tmp_path: Path) -> None:
    script = f"""
import asyncio, os, sys, threading, numpy, orbit_ckpt as ocp
from orbit_ckpt._src.runtime.commit import Commit
go_on, run = threading.Event(), Commit.run
async def wait(self):
    await asyncio.to_thread(go_on.wait)
    await run(self)
Commit.run = wait
with ocp.CheckpointManager({str(tmp_path / "run")!r}) as manager:
    manager.save(1, {{"a": numpy.ones(100_000)}})
    for _ in range({max(1, FORKS // 5)}):
        child = os.fork()
        if child == 0:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    go_on.set()
"""
    command = [sys.executable, "-W", "ignore", "-c", script]
    subprocess.run(command, check=True, timeout=120)
    assert ocp.verify(tmp_path / "run" / "1").is_intact


def test_a_child_is_ended_by_a_signal_that_its_parent_watches(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.install_signal_handler(signal.SIGTERM)
        context = multiprocessing.get_context("fork")
        child = context.Process(target=signal.raise_signal, args=(signal.SIGTERM,))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)
        assert manager.reached_preemption(1)
    assert signal.getsignal(signal.SIGTERM) == before

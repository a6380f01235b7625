"""Saves in the background: what is written, when it appears, and who is told of errors."""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.checkpointer.transaction import SaveSession
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.storage import staging
from orbit_ckpt._src.storage.batch_write import BatchWriter
from orbit_ckpt._src.type_handlers import array
from orbit_ckpt._src.type_handlers.numpy import NumpyHandler
from orbit_ckpt.args import CheckpointArgs, register_with_handler
from orbit_ckpt.errors import (
    BackgroundSaveError,
    CheckpointExistsError,
    StorageError,
    UnsupportedLeafError,
)
from tests.support import assert_same_tree, put

VALUES = np.arange(4096, dtype=np.float32).reshape(64, 64)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold back everything that a save does in the background until the event is set."""
    event = threading.Event()
    run = Commit.run

    async def wait(self: Commit) -> None:
        await asyncio.to_thread(event.wait)
        await run(self)

    monkeypatch.setattr(Commit, "run", wait)
    yield event
    event.set()


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[OSError]:
    """Make the next commits fail with these errors, in order."""
    errors: list[OSError] = []
    commit = BatchWriter.commit

    async def fail(self: BatchWriter) -> None:
        if errors:
            raise errors.pop(0)
        await commit(self)

    monkeypatch.setattr(BatchWriter, "commit", fail)
    return errors


def delete(tree: dict[str, Any]) -> None:
    for leaf in tree.values():
        if isinstance(leaf, jax.Array):
            leaf.delete()


def donate(tree: dict[str, Any]) -> None:
    forget = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    for leaf in tree.values():
        if isinstance(leaf, jax.Array):
            forget(leaf).block_until_ready()


def overwrite(tree: dict[str, Any]) -> None:
    for leaf in tree.values():
        if isinstance(leaf, np.ndarray):
            leaf[...] = -1


@pytest.mark.parametrize("destroy", [delete, donate, overwrite])
def test_what_happens_to_leaves_afterwards_is_not_written(
    destroy: Callable[[dict[str, Any]], None], gate: threading.Event, tmp_path: Path
) -> None:
    base = VALUES.copy()
    tree = {
        "jax": jnp.asarray(VALUES) + 0,
        "small": jnp.arange(3),
        "sharded": put(VALUES, "x", x=8),
        "replicated": put(VALUES, x=8),
        "keys": jax.random.split(jax.random.key(0), 4),
        "numpy": VALUES.copy(),
        "view": base[::2, 1:],
        "transposed": base.T,
        "shared": jax.device_put(base),
    }
    keys = np.array(jax.random.key_data(tree["keys"]))
    kept = {name: np.array(leaf) for name, leaf in tree.items() if name != "keys"}
    handle = ocp.save_async(tmp_path / "x", tree)
    destroy({name: leaf for name, leaf in tree.items() if name != "keys"})
    base[...] = -1
    tree["keys"].delete()
    gate.set()
    handle.result()
    restored = ocp.load(tmp_path / "x")
    assert np.array_equal(jax.random.key_data(restored.pop("keys")), keys)
    assert_same_tree(jax.tree.map(np.asarray, restored), kept)


def test_containers_may_be_changed_too(gate: threading.Event, tmp_path: Path) -> None:
    tree: dict[str, Any] = {"list": [1, (2, {})], "dict": {"b": {"c": np.ones(3)}}, "empty": []}
    expected = copy.deepcopy(tree)
    handle = ocp.save_async(tmp_path / "x", tree)
    tree["list"].append(3)
    tree["dict"]["b"]["d"] = 1
    tree["dict"]["x"] = 2
    tree["empty"].append({})
    gate.set()
    handle.result()
    assert_same_tree(ocp.load(tmp_path / "x"), expected)


def test_handlers_that_must_write_at_once_do(gate: threading.Event, tmp_path: Path) -> None:
    class Boxed:
        def __init__(self, value: np.ndarray) -> None:
            self.value = value

    class BoxHandler:
        def __init__(self) -> None:
            self._arrays = NumpyHandler()

        def typestr(self) -> str:
            return "boxed"

        async def serialize(self, values: Any, infos: Any, args: Any = None) -> Any:
            return await self._arrays.serialize([box.value for box in values], infos, args)

        async def deserialize(self, infos: Any, args: Any = None) -> Any:
            return [Boxed(np.asarray(v)) for v in await self._arrays.deserialize(infos, args)]

        async def metadata(self, infos: Any) -> Any:
            return await self._arrays.metadata(infos)

        def finalize(self, directory: Path) -> None:
            del directory

    registry = ocp.type_handlers.create_type_handler_registry(
        (Boxed, BoxHandler()), (np.ndarray, NumpyHandler())
    )
    handler = ocp.PyTreeHandler(type_handler_registry=registry)
    box, plain = Boxed(np.ones(3)), np.ones(3)
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "x", {"box": box, "plain": plain})
        box.value[:] = plain[:] = -1
        gate.set()
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "x")
    assert restored["box"].value.tolist() == restored["plain"].tolist() == [1, 1, 1]


def test_a_checkpoint_appears_when_its_save_has_ended(
    gate: threading.Event, tmp_path: Path
) -> None:
    handle = ocp.save_async(tmp_path / "x", {"a": VALUES})
    assert not handle.done()
    assert not (tmp_path / "x").exists()
    assert handle.path == tmp_path / "x"
    with pytest.raises(TimeoutError, match=r"x: the save is still in progress after 0\.01 seconds"):
        handle.result(0.01)
    gate.set()
    handle.result()
    assert handle.done()
    assert handle.exception() is None
    assert (handle.progress.leaves, handle.progress.nbytes) == (1, VALUES.nbytes)
    assert_same_tree(ocp.load(tmp_path / "x"), {"a": VALUES})


def test_what_is_wrong_with_a_request_is_raised_at_once(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"a": 1})
    with pytest.raises(CheckpointExistsError):
        ocp.save_async(tmp_path / "x", {"a": 1})
    with pytest.raises(UnsupportedLeafError):
        ocp.save_async(tmp_path / "y", {"a": object()})
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_an_error_in_the_background_leaves_nothing_behind(
    broken: list[OSError], tmp_path: Path
) -> None:
    broken.append(OSError(28, "No space left on device"))
    handle = ocp.save_async(tmp_path / "x", {"a": VALUES})
    with pytest.raises(StorageError, match="No space left"):
        handle.result()
    assert isinstance(handle.exception(), StorageError)
    assert "failed" in repr(handle)
    assert not list(tmp_path.iterdir())


TELLERS: dict[str, Callable[[ocp.AsyncCheckpointer, Path], object]] = {
    "check_for_errors": lambda checkpointer, _: checkpointer.check_for_errors(),
    "wait_until_finished": lambda checkpointer, _: checkpointer.wait_until_finished(),
    "close": lambda checkpointer, _: checkpointer.close(),
    "restore": lambda checkpointer, path: checkpointer.restore(path),
    "save": lambda checkpointer, path: checkpointer.save(path, {"a": 2}),
}


@pytest.mark.parametrize("tell", TELLERS.values(), ids=TELLERS)
def test_an_error_is_told_once_and_names_its_checkpoint(
    tell: Callable[[ocp.AsyncCheckpointer, Path], object],
    broken: list[OSError],
    tmp_path: Path,
) -> None:
    broken.append(OSError(5, "Input/output error"))
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeHandler())
    checkpointer.save(tmp_path / "step_1", {"a": 1})
    while checkpointer.is_saving_in_progress():
        pass
    with pytest.raises(BackgroundSaveError, match=r"step_1.*Input/output error") as caught:
        tell(checkpointer, tmp_path / "step_2")
    assert isinstance(caught.value.__cause__, StorageError)
    checkpointer.check_for_errors()
    checkpointer.close()


def test_a_save_after_a_failed_one_is_carried_out(broken: list[OSError], tmp_path: Path) -> None:
    broken.append(OSError(5, "Input/output error"))
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) as checkpointer:
        checkpointer.save(tmp_path / "1", {"a": 1})
        with pytest.raises(BackgroundSaveError, match="/1 "):
            checkpointer.save(tmp_path / "2", {"a": 2})
    assert ocp.load(tmp_path / "2") == {"a": 2}


def test_a_save_that_no_thread_can_be_had_for_is_done_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    begun: list[threading.Thread] = []

    def refuse(self: threading.Thread) -> None:
        if self.name == "orbit_ckpt":
            begun.append(self)
            if len(begun) == 2:  # the first one stages
                raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert ocp.save_async(tmp_path / "x", {"a": VALUES}).done()
    assert_same_tree(ocp.load(tmp_path / "x"), {"a": VALUES})


def test_a_save_waits_for_the_one_before(gate: threading.Event, tmp_path: Path) -> None:
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeHandler(), timeout_secs=0.01)
    checkpointer.save(tmp_path / "1", {"a": 1})
    with pytest.raises(TimeoutError, match=r"1: the save is still in progress after 0\.01 seconds"):
        checkpointer.save(tmp_path / "2", {"a": 2})
    gate.set()
    while checkpointer.is_saving_in_progress():
        pass
    checkpointer.close()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_savers_do_not_disturb_one_another(tmp_path: Path) -> None:
    trees = [{"a": np.full((100, 100), i), "b": jnp.full(10, i)} for i in range(6)]
    handles = [ocp.save_async(tmp_path / str(i), tree) for i, tree in enumerate(trees)]
    with ocp.StandardCheckpointer() as one, ocp.StandardCheckpointer() as other:
        one.save(tmp_path / "one", trees[1])
        other.save(tmp_path / "other", trees[2])
    for handle in handles:
        handle.result()
    names = [*map(str, range(6)), "one", "other"]
    for name, tree in zip(names, [*trees, trees[1], trees[2]], strict=True):
        assert_same_tree(ocp.load(tmp_path / name), tree)


def test_a_handle_can_be_awaited_in_a_running_loop(tmp_path: Path) -> None:
    async def train() -> None:
        await ocp.save_async(tmp_path / "x", {"a": VALUES})
        with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) as checkpointer:
            checkpointer.save(tmp_path / "y", {"a": VALUES})

    asyncio.run(train())
    assert_same_tree(ocp.load(tmp_path / "x"), ocp.load(tmp_path / "y"))


def test_saves_from_other_threads(tmp_path: Path) -> None:
    def save(name: str) -> None:
        ocp.save_async(tmp_path / name, {"a": VALUES}).result()

    threads = [threading.Thread(target=save, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(ocp.load(tmp_path / str(i))["a"], VALUES) for i in range(4))


def test_the_interpreter_does_not_end_before_a_save(tmp_path: Path) -> None:
    path = str(tmp_path / "x")
    script = f"import orbit_ckpt, numpy; orbit_ckpt.save_async({path!r}, numpy.ones(2_000_000))"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    assert ocp.load(tmp_path / "x").sum() == 2_000_000


def test_a_save_that_fails_at_the_end_says_so(tmp_path: Path) -> None:
    script = (
        "import orbit_ckpt._src.storage.batch_write, pathlib, numpy\n"
        f"path = pathlib.Path({str(tmp_path)!r}, 'x')\n"
        "orbit_ckpt._src.storage.batch_write.DatabaseWriter = None\n"
        "orbit_ckpt.save_async(path, numpy.ones(3))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=120, capture_output=True, text=True
    )
    assert f"Saving {tmp_path}/x in the background failed" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_the_callback_comes_once_the_checkpoint_is_there(tmp_path: Path) -> None:
    seen: list[bool] = []
    options = ocp.AsyncOptions(
        post_finalization_callback=lambda: seen.append((tmp_path / "x").exists())
    )
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler(), async_options=options) as checkpointer:
        checkpointer.save(tmp_path / "x", {"a": 1})
    assert seen == [True]


class TextHandler(ocp.CheckpointHandler):
    """An item handler as a third party writes one."""

    def save(self, directory: Path, args: Text) -> None:
        (directory / "text").write_text(args.item)

    def restore(self, directory: Path, args: Text) -> str:
        return (directory / "text").read_text() + args.item

    def finalize(self, directory: Path) -> None:
        (directory / "final").touch()

    def close(self) -> None:
        pass


class FutureHandler(TextHandler):
    """The same with Orbax's asynchronous interface."""

    async def async_save(self, directory: Path, args: Text) -> list[Future[None]]:
        done: Future[None] = Future()

        def write() -> None:
            self.save(directory, args)
            done.set_result(None)

        threading.Timer(0.05, write).start()
        return [done]


@register_with_handler(FutureHandler, for_save=True, for_restore=True)
@register_with_handler(TextHandler, for_save=True, for_restore=True)
@dataclass
class Text(CheckpointArgs):
    """Arguments of both."""

    item: str = ""


@pytest.mark.parametrize("handler", [TextHandler(), FutureHandler()])
def test_handlers_without_our_interface_are_finalized_before_the_commit(
    handler: TextHandler, tmp_path: Path
) -> None:
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        checkpointer.save(tmp_path / "x", "text")
    assert (tmp_path / "x" / "final").exists()
    assert ocp.Checkpointer(handler).restore(tmp_path / "x", Text("!")) == "text!"


def test_who_stops_to_wait_does_not_cancel_the_save(gate: threading.Event, tmp_path: Path) -> None:
    handle = ocp.save_async(tmp_path / "x", {"a": VALUES})

    async def wait() -> None:
        await asyncio.wait_for(handle, 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    gate.set()
    handle.result()
    assert_same_tree(ocp.load(tmp_path / "x"), {"a": VALUES})


def test_a_callback_that_fails_does_not_make_a_durable_save_a_failed_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ocp.AsyncOptions(post_finalization_callback=lambda: 1 // 0)
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler(), async_options=options) as checkpointer:
        checkpointer.save(tmp_path / "x", {"a": 1})
    assert ocp.load(tmp_path / "x") == {"a": 1}
    assert "is saved, but <function" in caplog.text


def test_an_error_is_told_even_if_the_next_save_cannot_begin(
    broken: list[OSError], tmp_path: Path
) -> None:
    ocp.save(tmp_path / "taken", 1)
    broken.append(OSError(5, "Input/output error"))
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeHandler())
    checkpointer.save(tmp_path / "1", {"a": 1})
    with pytest.raises(CheckpointExistsError) as caught:
        checkpointer.save(tmp_path / "taken", {"a": 2})
    assert any("/1 failed in the background" in note for note in caught.value.__notes__)


def test_an_error_is_told_even_if_the_next_save_is_interrupted(
    broken: list[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken.append(OSError(5, "Input/output error"))
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeHandler())
    checkpointer.save(tmp_path / "1", {"a": 1})

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ocp.PyTreeHandler, "stage", interrupt)
    with pytest.raises(KeyboardInterrupt) as caught:
        checkpointer.save(tmp_path / "2", {"a": 2})
    assert any("/1 failed in the background" in note for note in caught.value.__notes__)


def test_copies_from_devices_keep_their_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held: list[int] = []
    copy = staging.copy_to_host

    def spy(shards: Any, *args: Any) -> Any:
        held.append(sum(shard.nbytes for shard in shards))
        return copy(shards, *args)

    monkeypatch.setattr(staging, "copy_to_host", spy)
    monkeypatch.setattr(staging, "is_on_host", lambda _: False)
    monkeypatch.setattr(array, "is_on_host", lambda _: False)
    tree = [jnp.full(256, i, jnp.float32) for i in range(7)]
    memory = ocp.MemoryOptions(transfer_concurrent_bytes=2100)
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler(memory_options=memory)) as checkpointer:
        checkpointer.save(tmp_path / "x", tree)
    assert sorted(held) == [1024, 2048, 2048, 2048]
    assert_same_tree(ocp.load(tmp_path / "x"), tree)


# Cancellation


def test_cancelled_save_leaves_nothing_and_raises_nothing(
    gate: threading.Event, tmp_path: Path
) -> None:
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) as checkpointer:
        checkpointer.save(tmp_path / "x", {"w": VALUES})
        checkpointer.cancel()
        gate.set()
        checkpointer.wait_until_finished()
        checkpointer.check_for_errors()
        assert list(tmp_path.iterdir()) == []
        checkpointer.save(tmp_path / "x", {"w": VALUES + 1})
    assert_same_tree(ocp.load(tmp_path / "x"), {"w": VALUES + 1})


def test_save_after_a_cancelled_one_waits_for_its_end(
    gate: threading.Event, tmp_path: Path
) -> None:
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeHandler())
    checkpointer.save(tmp_path / "x", {"w": VALUES})
    checkpointer.cancel()
    gate.set()
    checkpointer.save(tmp_path / "x", {"w": VALUES + 1})
    checkpointer.close()
    assert_same_tree(ocp.load(tmp_path / "x"), {"w": VALUES + 1})


def test_save_that_is_complete_is_not_cancelled(tmp_path: Path) -> None:
    with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) as checkpointer:
        checkpointer.cancel()
        checkpointer.save(tmp_path / "x", {"w": VALUES})
        checkpointer.wait_until_finished()
        checkpointer.cancel()
        checkpointer.check_for_errors()
    assert_same_tree(ocp.load(tmp_path / "x"), {"w": VALUES})


def test_save_is_not_cancelled_once_it_is_being_committed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results: list[bool] = []
    commit = SaveSession.commit

    def cancel(self: SaveSession, *args: Any) -> None:
        results.append(handle.cancel())
        commit(self, *args)

    monkeypatch.setattr(SaveSession, "commit", cancel)
    started = threading.Event()
    stage = Commit.run

    async def wait(self: Commit) -> None:
        await asyncio.to_thread(started.wait)  # until `handle` is set
        await stage(self)

    monkeypatch.setattr(Commit, "run", wait)
    handle = ocp.save_async(tmp_path / "x", {"w": VALUES})
    started.set()
    handle.result()
    assert results == [False]
    assert not handle.cancelled()
    assert_same_tree(ocp.load(tmp_path / "x"), {"w": VALUES})


def test_handle_of_a_cancelled_save_says_so(gate: threading.Event, tmp_path: Path) -> None:
    handle = ocp.save_async(tmp_path / "x", {"w": VALUES})
    assert handle.cancel()
    assert handle.cancelled()
    gate.set()
    with pytest.raises(ocp.errors.CheckpointError, match="was cancelled; nothing was left"):
        handle.result()
    assert not handle.cancel()
    assert list(tmp_path.iterdir()) == []


def test_save_is_cancelled_while_its_threads_write(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    writing, proceed = threading.Event(), threading.Event()
    commit = BatchWriter.commit

    async def slow(self: BatchWriter) -> None:
        def hold() -> None:
            writing.set()
            proceed.wait()

        await asyncio.gather(asyncio.to_thread(hold), commit(self))

    monkeypatch.setattr(BatchWriter, "commit", slow)
    handle = ocp.save_async(tmp_path / "x", [VALUES + i for i in range(20)])
    writing.wait()
    assert handle.cancel()
    proceed.set()
    assert isinstance(handle.exception(), ocp.errors.CheckpointError)
    assert list(tmp_path.iterdir()) == []

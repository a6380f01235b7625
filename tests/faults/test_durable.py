"""What is reported to be saved is on the disk: every file, and every name that leads to it.

All operations are recorded. A file counts as durable once it was synced after its last change, a
name once the directory that it is in was synced after the name was made. Nothing that is renamed
to where a reader looks may be less than durable before.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import atomic
from orbit_ckpt._src.storage.durable import sync_directory
from tests.faults.support import LAYOUTS, Layout

Inode = tuple[int, int]


class Disk:
    """What of the files below a directory would outlast a loss of power."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.is_on = True
        self.problems: list[str] = []
        self.synced = 0
        self._unsynced_names: dict[Inode, str] = {}
        self._files: dict[Inode, tuple[int, int]] = {}

    def made(self, path: str) -> None:
        """Note that a name was made, or is about to be."""
        directory = os.path.dirname(path)
        self._unsynced_names[_inode(os.stat(directory))] = path

    def sync(self, descriptor: int) -> None:
        """Note that a file or directory was synced."""
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._unsynced_names.pop(_inode(status), None)
        else:
            self._files[_inode(status)] = (status.st_size, status.st_mtime_ns)
        self.synced += 1

    def forget(self, path: str) -> None:
        """Note that a directory is removed, whose number another one may get."""
        self._unsynced_names.pop(_inode(os.lstat(path)), None)

    def check(self, path: str) -> None:
        """Take down what is not durable of a file or directory that is about to be renamed."""
        if not os.path.isdir(path):
            self._check_file(path)
            return
        for directory, _, names in os.walk(path):
            unsynced = self._unsynced_names.get(_inode(os.stat(directory)))
            if unsynced is not None:
                self.problems.append(f"the name {unsynced} is not synced")
            for name in names:
                self._check_file(os.path.join(directory, name))

    def _check_file(self, path: str) -> None:
        status = os.lstat(path)
        if self._files.get(_inode(status)) != (status.st_size, status.st_mtime_ns):
            self.problems.append(f"the contents of {path} are not synced")

    def assert_durable(self) -> None:
        """Assert that all there is below the directory is durable, and was whenever it appeared."""
        self.check(self.root)
        assert not self.problems, "\n".join(dict.fromkeys(self.problems))
        assert self.synced


_watching: list[Disk] = []


def _inode(status: os.stat_result) -> Inode:
    return status.st_dev, status.st_ino


def _path(path: object, descriptor: object = -1) -> str:
    """Return an absolute path; of a relative one in the directory that is open, if there is one."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    if isinstance(descriptor, int) and descriptor >= 0 and not os.path.isabs(text):
        return os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), text)
    return os.path.abspath(text) if text else ""


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if not _watching or event not in _EVENTS:
        return
    disk = _watching[-1]
    paths = _EVENTS[event](args)
    if not disk.is_on or not any(path.startswith(f"{disk.root}/") for path in paths):
        return
    disk.is_on = False  # what the check itself does is not recorded
    try:
        if event in {"os.rename", "os.link"}:
            disk.check(paths[0])
            disk.made(paths[1])
        elif event == "os.rmdir":
            disk.forget(paths[0])
        elif not os.path.lexists(paths[0]) and (event == "os.mkdir" or args[2] & os.O_CREAT):
            disk.made(paths[0])
    finally:
        disk.is_on = True


_EVENTS: dict[str, Callable[[tuple[Any, ...]], list[str]]] = {
    "open": lambda args: [_path(args[0])],
    "os.mkdir": lambda args: [_path(args[0], args[2])],
    "os.rmdir": lambda args: [_path(args[0], args[1])],
    "os.rename": lambda args: [_path(args[0], args[2]), _path(args[1], args[3])],
    "os.link": lambda args: [_path(args[0], args[2]), _path(args[1], args[3])],
}

sys.addaudithook(_audit)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The directory `disk` of the test, of which all operations are recorded."""
    (tmp_path / "disk").mkdir()
    found = Disk(tmp_path / "disk")
    fsync, exchange = os.fsync, atomic._rename_exchange  # pyright: ignore[reportPrivateUsage] - no event tells of it

    def recorded_fsync(descriptor: int) -> None:
        fsync(descriptor)
        found.sync(descriptor)

    def recorded_exchange(a: Path, b: Path) -> bool:
        found.check(str(a))
        is_done = exchange(a, b)
        if is_done:
            found.made(str(b))
        return is_done

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(atomic, "_rename_exchange", recorded_exchange)
    _watching.append(found)
    yield found
    _watching.remove(found)


def tree(seed: int = 0) -> dict[str, object]:
    values = np.random.default_rng(seed).standard_normal((30, 50))
    return {"w": values, "x": jnp.asarray(values, jnp.float32), "name": "a", "step": seed}


@pytest.mark.parametrize("in_place", [False, True], ids=["renamed", "in_place"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_save_is_durable(disk: Disk, layout: Layout, in_place: bool) -> None:
    path = Path(disk.root) / "made" / "with" / "it"
    layout.save(path, tree(), in_place=in_place)
    disk.assert_durable()
    layout.save(path, tree(1), in_place=in_place, overwrite=True)
    disk.assert_durable()


def test_a_replacement_without_an_exchange_is_durable(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atomic, "_rename_exchange", lambda *_: False)
    for seed in range(2):
        ocp.save(Path(disk.root) / "c", tree(seed), overwrite=True)
        disk.assert_durable()


def test_a_save_in_the_background_is_durable(disk: Disk) -> None:
    ocp.save_async(Path(disk.root) / "c", tree()).result()
    disk.assert_durable()


@pytest.mark.parametrize("mode", [ocp.AtomicityMode.AUTO, ocp.AtomicityMode.COMMIT_FILE])
def test_the_steps_of_a_run_are_durable(disk: Disk, mode: ocp.AtomicityMode) -> None:
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2, atomicity_options=ocp.AtomicityOptions(mode=mode)
    )
    with ocp.CheckpointManager(Path(disk.root) / "run", options=options) as manager:
        for step in range(4):
            items = ocp.args.Composite(
                params=ocp.args.StandardSave(tree(step)), config=ocp.args.JsonSave({"a": step})
            )
            manager.save(step, args=items, metrics={"loss": step})
            manager.wait_until_finished()
            disk.assert_durable()
        manager.delete(3)
        disk.assert_durable()


def test_an_item_that_is_saved_anew_is_durable_with_its_record(disk: Disk) -> None:
    step = Path(disk.root) / "1"
    items = ocp.args.Composite(p=ocp.args.StandardSave(tree()))
    ocp.Checkpointer(ocp.CompositeCheckpointHandler()).save(step, args=items)
    ocp.save(step / "p", tree(1), overwrite=True)
    disk.assert_durable()


def test_a_copy_is_durable(disk: Disk, tmp_path: Path) -> None:
    Layout(use_ocdbt=False).save(tmp_path / "source", tree())
    for overwrite in (False, True):
        path = Path(disk.root) / "new" / "copy"
        ocp.copy(tmp_path / "source", path, overwrite=overwrite)
        disk.assert_durable()


@pytest.mark.parametrize(
    ("name", "to", "shard"),
    [
        ("c", "orbit", None),
        ("m.safetensors", "safetensors", None),
        ("shards", "safetensors", 8000),
        ("m.msgpack", "flax", None),
        ("checkpoint_1", "t5x", None),
    ],
)
def test_a_conversion_is_durable(
    disk: Disk, tmp_path: Path, name: str, to: Any, shard: int | None
) -> None:
    ocp.save(tmp_path / "source", {"w": np.arange(3000.0), "b": np.arange(3000.0)})
    path = Path(disk.root) / "new" / name
    ocp.convert(tmp_path / "source", path, to=to, max_shard_bytes=shard)
    disk.assert_durable()


def test_what_is_not_synced_is_noticed(disk: Disk) -> None:
    (Path(disk.root) / "directory").mkdir()
    with pytest.raises(AssertionError, match=r"the name .*directory is not synced"):
        disk.assert_durable()
    disk.problems.clear()
    sync_directory(Path(disk.root))
    disk.assert_durable()
    (Path(disk.root) / "directory" / "file").write_bytes(b"x")
    sync_directory(Path(disk.root) / "directory")
    with pytest.raises(AssertionError, match=r"the contents of .*file are not synced"):
        disk.assert_durable()

"""What other systems than Linux lack is done without."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays import memory
from orbit_ckpt._src.storage import partial, system
from tests.support import LAYOUTS, assert_same_tree, checkpointer

LARGE = np.arange(1 << 19, dtype=np.float64)
TREE = {"w": jnp.arange(12.0).reshape(3, 4), "large": LARGE, "text": "a", "step": 1}
OTHER = {**TREE, "step": 2}


def lacks_functions(*names: str) -> Callable[[pytest.MonkeyPatch], None]:
    def take_away(monkeypatch: pytest.MonkeyPatch) -> None:
        for name in names:
            monkeypatch.delattr(os, name, raising=False)

    return take_away


def lacks_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "fcntl", None)


def lacks_libc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "_libc_function", lambda _name: None)


def lacks_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)


def lacks_private_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MAP_FLAGS", None)


def lacks_descriptors_of_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECTORY", raising=False)
    own_open = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return own_open(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(shutil, "_use_fd_functions", False)  # as it is on such a system


def lacks_meminfo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: None)


LACKING = {
    "preadv": lacks_functions("preadv"),
    "pread": lacks_functions("preadv", "pread"),
    "writev": lacks_functions("writev"),
    "flock": lacks_locks,
    "renameat2": lacks_libc,
    "huge pages": lacks_huge_pages,
    "private maps": lacks_private_maps,
    "descriptors of directories": lacks_descriptors_of_directories,
    "meminfo": lacks_meminfo,
    "link": lacks_functions("link"),
}


def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    for take_away in LACKING.values():
        take_away(monkeypatch)


@pytest.mark.parametrize("lacking", [*LACKING, "everything"])
def test_a_system_may_lack(lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LACKING.get(lacking, everything)(monkeypatch)
    path = tmp_path / "x"
    ocp.save(path, TREE)
    ocp.save(path, OTHER, overwrite=True)
    assert_same_tree(ocp.load(path), OTHER)
    assert ocp.verify(path).is_intact
    with ocp.CheckpointManager(
        tmp_path / "run", options=ocp.CheckpointManagerOptions(max_to_keep=2)
    ) as run:
        for step in range(3):
            run.save(step, {**TREE, "step": step}, metrics={"loss": step})
        run.wait_until_finished()
        run.delete(1)
        assert run.all_steps() == [2]
        assert_same_tree(run.restore(2), {**TREE, "step": 2})
    assert {entry.name for entry in tmp_path.iterdir()} == {"x", "run"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_written_and_read_without_what_other_systems_lack(
    layout: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(monkeypatch)
    trees = checkpointer(**layout)
    trees.save(tmp_path / "x", TREE)
    assert_same_tree(trees.restore(tmp_path / "x"), TREE)
    assert ocp.verify(tmp_path / "x").is_intact


@pytest.mark.parametrize("to", ["safetensors", "flax"])
def test_other_formats_are_written_and_read_without_what_other_systems_lack(
    to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything(monkeypatch)
    arrays = {"w": np.arange(6.0, dtype=np.float32), "large": LARGE}
    ocp.save(tmp_path / "x", arrays)
    ocp.convert(tmp_path / "x", tmp_path / "y", to=to)
    found = ocp.load(tmp_path / "y")
    assert all(np.array_equal(found[name], value) for name, value in arrays.items())


def test_a_save_that_died_is_not_taken_for_one_in_progress_where_there_are_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert partial.try_lock(tmp_path, needs_lock=True) is not None
    lacks_locks(monkeypatch)
    assert partial.try_lock(tmp_path, needs_lock=True) is None
    assert partial.try_lock(tmp_path) is not None


def test_memory_is_aligned_without_private_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks_private_maps(monkeypatch)
    array = memory.aligned_empty((1 << 22,), np.dtype(np.uint8))
    assert array.ctypes.data % 64 == 0


def test_threads_may_share_a_descriptor_without_positioned_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(bytes(range(256)))
    lacks_functions("preadv", "pread")(monkeypatch)
    descriptor = system.open_to_read(tmp_path / "f")
    try:
        buffers = [memoryview(bytearray(2)), memoryview(bytearray(2))]
        assert system.read_into(descriptor, buffers, 10) == 2
        assert bytes(buffers[0]) == b"\x0a\x0b"
        assert system.read_at(descriptor, 3, 254) == b"\xfe\xff"
        assert system.read_into(descriptor, buffers, 256) == 0
    finally:
        system.close(descriptor)


WINDOWS_LIKE = textwrap.dedent(
    """
    import importlib, mmap, os, pkgutil, shutil, signal, sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name in {"fcntl", "resource", "termios", "pwd", "grp", "pty", "tty", "syslog"}:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    import jax, numpy as np, tensorstore, asyncio  # which have Windows versions of their own
    import etils.epath, logging.handlers, subprocess, multiprocessing, rich.console, typer

    for name in ("fcntl", "resource", "termios", "pwd", "grp"):
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Blocker())
    for name in ("preadv", "pread", "writev", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC", "link",
                 "register_at_fork", "fork", "sendfile", "copy_file_range",
                 "posix_fallocate", "fchmod", "geteuid", "getuid", "statvfs"):
        if hasattr(os, name):
            delattr(os, name)
    for name in ("MAP_ANONYMOUS", "MAP_PRIVATE", "MADV_HUGEPAGE"):
        if hasattr(mmap, name):
            delattr(mmap, name)
    for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGALRM", "pthread_sigmask"):
        if hasattr(signal, name):
            delattr(signal, name)

    shutil._use_fd_functions = False

    import orbit_ckpt as ocp
    for module in pkgutil.walk_packages(ocp.__path__, "orbit_ckpt."):
        if "__main__" not in module.name and not module.name.startswith("orbit_ckpt.testing"):
            importlib.import_module(module.name)

    root = sys.argv[1]
    tree = {"w": jax.numpy.arange(6.0), "large": np.arange(1 << 19), "name": "a"}
    ocp.save(f"{root}/x", tree)
    ocp.save(f"{root}/x", tree, overwrite=True)
    assert np.array_equal(ocp.load(f"{root}/x")["large"], tree["large"])
    assert ocp.verify(f"{root}/x").is_intact
    with ocp.CheckpointManager(f"{root}/run") as run:
        run.save(1, tree)
        run.wait_until_finished()
        assert run.restore(1)["name"] == "a"
        run.delete(1)
    print("done")
    """
)


@pytest.mark.slow
def test_every_module_is_imported_and_works_without_what_windows_lacks(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WINDOWS_LIKE, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.stdout == "done\n", ran.stderr

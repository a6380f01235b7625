"""Atomic directories by themselves, and the order in which a save becomes durable."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import atomic
from orbit_ckpt._src.storage.atomic import (
    AtomicDirectory,
    AtomicityMode,
    is_in_progress,
    remove_abandoned,
)
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, is_temporary_name
from orbit_ckpt._src.storage.path import describe_directory, resolve_path
from orbit_ckpt.errors import CheckpointExistsError, StorageError
from orbit_ckpt.testing.write_faults import before_every_write


@pytest.mark.parametrize("mode", AtomicityMode)
def test_nothing_exists_before_the_commit(mode: AtomicityMode, tmp_path: Path) -> None:
    final = tmp_path / "final"
    with AtomicDirectory(final, mode=mode) as directory:
        (directory.path / "file").write_text("x")
        assert is_in_progress(final) or not final.exists()
        assert is_temporary_name(directory.path.name) or is_in_progress(directory.path)
        directory.commit()
    assert not is_in_progress(final)
    assert sorted(os.listdir(final)) == [COMMIT_MARKER, "file"]
    assert str(final) in (final / COMMIT_MARKER).read_text()
    assert os.listdir(tmp_path) == ["final"]


@pytest.mark.parametrize("mode", AtomicityMode)
def test_leaving_without_a_commit_leaves_nothing(mode: AtomicityMode, tmp_path: Path) -> None:
    with AtomicDirectory(tmp_path / "final", mode=mode) as directory:
        (directory.path / "below").mkdir()
    assert not any(tmp_path.iterdir())


def test_a_live_directory_of_another_save_is_left_alone(tmp_path: Path) -> None:
    final = tmp_path / "final"
    with AtomicDirectory(final) as live:
        with AtomicDirectory(final, overwrite=True) as other:
            other.commit()
        assert live.path.is_dir()
        with pytest.raises(CheckpointExistsError):
            live.commit()
    assert os.listdir(tmp_path) == ["final"]


def test_directories_named_like_another_destination_are_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "final2.orbax-checkpoint-tmp-1"
    mine.mkdir()
    (tmp_path / "final.orbax-checkpoint-tmp-1").write_text("a file")
    with AtomicDirectory(tmp_path / "final") as directory:
        directory.commit()
    assert mine.exists()
    assert (tmp_path / "final.orbax-checkpoint-tmp-1").read_text() == "a file"


def test_a_failed_start_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(atomic, "try_lock", fail)
    with pytest.raises(StorageError, match="Too many open files"):
        AtomicDirectory(tmp_path / "final").__enter__()
    assert not any(tmp_path.iterdir())


def test_files_are_never_overwritten(tmp_path: Path) -> None:
    write_file(tmp_path / "file", b"1")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", b"2")
    assert (tmp_path / "file").read_bytes() == b"1"


def test_everything_a_save_makes_is_on_the_disk_before_it_is_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record_sync(descriptor: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def record_rename(source: str, target: str) -> None:
        events.append(f"rename to {target}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", record_rename)
    path = tmp_path / "new" / "run" / "checkpoint"
    ocp.save(path, {"a": np.ones((4, 3)), "text": "x"})

    at = events.index(f"rename to {path}")
    before = {event.partition("/checkpoint.")[2].partition("/")[2] for event in events[:at]}
    # TensorStore syncs the files that it writes itself
    written = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    ours = {name for name in written if not name.startswith(("d/", "manifest.ocdbt"))}
    assert ours <= before
    assert {"", "d"} <= before
    # an entry is durable once the directory that it is in has been synced
    assert {str(tmp_path), str(tmp_path / "new"), str(tmp_path / "new" / "run")} <= set(events)
    assert str(tmp_path / "new" / "run") in events[at:]


def test_a_directory_above_a_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    ocp.save(tmp_path / "run" / "7", {"a": 1})
    with pytest.raises(CheckpointExistsError, match="is no checkpoint"):
        ocp.save(tmp_path / "run", {"a": 2}, overwrite=True)
    assert ocp.load(tmp_path / "run" / "7") == {"a": 1}


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve_path("a/../b/") == tmp_path / "b"
    assert resolve_path("~/x") == Path("/home/someone/x")
    assert resolve_path(f"file://{tmp_path}/x") == tmp_path / "x"


def test_directories_are_described_by_what_is_in_them(tmp_path: Path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for i in range(20):
        (many / f"{i:02}").touch()
    described = describe_directory(many)
    assert described.startswith("it is a directory with 00, 01, 02")
    assert described.endswith(" and 12 more")
    assert describe_directory(tmp_path / "no" / "where") == "nothing is there"


def in_place(path: Path, *, overwrite: bool = False) -> AtomicDirectory:
    return AtomicDirectory(path, overwrite=overwrite, mode=AtomicityMode.COMMIT_FILE)


@pytest.fixture
def before_lock(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What others do right before a directory is locked; taken from the end, once each."""
    actions: list[Callable[[], None]] = []
    lock = atomic.try_lock

    def act_and_lock(path: Path, *, needs_lock: bool = False) -> int | None:
        if actions:
            actions.pop()()
        return lock(path, needs_lock=needs_lock)

    monkeypatch.setattr(atomic, "try_lock", act_and_lock)
    return actions


def test_a_save_that_ends_while_leftovers_are_removed_stays(
    before_lock: list[Callable[[], None]], tmp_path: Path
) -> None:
    with in_place(tmp_path / "final") as live:
        before_lock.append(live.commit)
        remove_abandoned(tmp_path, lambda _: False)
    assert os.listdir(tmp_path / "final") == [COMMIT_MARKER]


def test_a_save_that_ends_while_another_begins_stays(
    before_lock: list[Callable[[], None]], tmp_path: Path
) -> None:
    with in_place(tmp_path / "final") as live:
        before_lock.append(live.commit)
        with pytest.raises(CheckpointExistsError), in_place(tmp_path / "final"):
            pass
    assert os.listdir(tmp_path / "final") == [COMMIT_MARKER]


def test_nobody_begins_to_save_where_a_failed_save_is_being_removed(tmp_path: Path) -> None:
    tried: list[str] = []

    def try_to_save(operation: str) -> None:
        tried.append(operation)
        if tried == ["unlink"]:
            with pytest.raises(CheckpointExistsError, match="another process"):
                in_place(tmp_path / "final").__enter__()

    watched = before_every_write(try_to_save, deletions=True)
    with watched, in_place(tmp_path / "final") as failed:
        (failed.path / "file").write_text("x")
        tried.clear()
    assert tried[0] == "unlink"
    assert not any(tmp_path.iterdir())


def test_a_commit_that_fails_last_is_no_checkpoint_while_it_is_removed(tmp_path: Path) -> None:
    final = tmp_path / "final"
    seen: list[bool] = []

    def fail_last(operation: str) -> None:
        if operation == "fsync" and not is_in_progress(final) and not seen:
            seen.append(True)
            raise OSError(errno.EIO, "the disk broke")
        if operation == "unlink" and seen:
            seen.append(is_in_progress(final))

    def save() -> None:
        with before_every_write(fail_last, deletions=True), in_place(final) as directory:
            (directory.path / "file").write_text("x")
            directory.commit()

    with pytest.raises(OSError, match="the disk broke"):
        save()
    assert len(seen) > 2
    assert all(seen)
    assert not any(tmp_path.iterdir())


def test_a_forked_process_does_not_keep_the_lock(tmp_path: Path) -> None:
    with in_place(tmp_path / "final") as directory:
        assert directory._lock is not None
        inherited = os.dup(directory._lock)
        directory.commit()
    with in_place(tmp_path / "final", overwrite=True) as directory:
        directory.commit()
    os.close(inherited)

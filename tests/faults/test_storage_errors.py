"""Storage that refuses: a clear error, the earlier checkpoint as it was, nothing left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import CheckpointError, StorageError, UnsupportedLeafError
from orbit_ckpt.testing.write_faults import Refusal, before_every_write
from tests.cells import cells
from tests.faults.support import (
    LAYOUTS,
    Layout,
    Saver,
    files_below,
    numbered_tree,
)
from tests.support import assert_same_tree

OCDBT, FILES = Layout(use_compression=False), Layout(use_ocdbt=False, use_compression=False)
CODES = cells([errno.ENOSPC, errno.EIO], lambda code: code == errno.ENOSPC)
OLD, NEW = numbered_tree(1), numbered_tree(2)


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("layout", [OCDBT, FILES], ids=str)
def test_a_refused_write_of_a_new_checkpoint_leaves_nothing(
    layout: Layout, code: int, tmp_path: Path
) -> None:
    nth = 0
    while True:
        nth += 1
        path = tmp_path / str(nth) / "checkpoint"
        refusal = Refusal(nth, code)
        with before_every_write(refusal):
            if not _refused(layout, path, NEW, refusal):
                break
        assert list(path.parent.glob("*")) == []
        layout.save(path, NEW)
        assert_same_tree(ocp.load(path), NEW)
        assert [p.name for p in path.parent.iterdir()] == ["checkpoint"]
    assert {"fsync", "mkdir", "rename", "open"} <= set(refusal.seen)


@pytest.mark.slow
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("layout", [OCDBT, FILES], ids=str)
def test_a_refused_write_keeps_the_earlier_checkpoint(
    layout: Layout, code: int, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    nth = 0
    while True:
        nth += 1
        layout.save(path, OLD, overwrite=True)
        before = files_below(path)
        refusal = Refusal(nth, code)
        with before_every_write(refusal):
            if not _refused(layout, path, NEW, refusal):
                break
        assert files_below(path) == before
        assert os.listdir(tmp_path) == ["checkpoint"]
    assert {"fsync", "mkdir", "exchange", "open"} <= set(refusal.seen)
    assert_same_tree(ocp.load(path), NEW)


def _refused(layout: Layout, path: Path, tree: object, refusal: Refusal) -> bool:
    """Save; return whether a write was refused, which must have raised a `StorageError`."""
    try:
        layout.save(path, tree, overwrite=path.exists())
    except StorageError as error:
        message = str(error)
    else:
        assert not refusal.happened, f"{refusal.seen[-1]} failed and save did not notice"
        return False
    assert refusal.happened
    assert str(path) in message
    assert os.strerror(refusal.code) in message
    return True


@pytest.mark.slow
@pytest.mark.parametrize("layout", [OCDBT, FILES], ids=str)
def test_a_full_disk_keeps_the_earlier_checkpoint(
    saver: Saver, layout: Layout, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    layout.save(path, OLD)
    before = files_below(path)
    largest = max(map(len, before.values()))
    for limit in (0, 1, 100, 500, 1000, 3000, largest // 2):
        saver.order(
            path=str(path),
            layout=LAYOUTS.index(layout),
            number=2,
            overwrite=True,
            limits={"RLIMIT_FSIZE": limit},
        )
        report = saver.report()
        assert report.get("error") == "StorageError", report
        assert str(path) in str(report["text"])
        assert saver.report() == {"exit": 1}
        assert files_below(path) == before
        assert os.listdir(tmp_path) == ["checkpoint"]
    layout.save(path, NEW, overwrite=True)
    assert_same_tree(ocp.load(path), NEW)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [OCDBT, FILES], ids=str)
def test_too_few_open_files_keep_the_earlier_checkpoint(
    saver: Saver, layout: Layout, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    layout.save(path, OLD)
    before = files_below(path)
    refused = 0
    for limit in range(1, 200):
        saver.order(
            path=str(path),
            layout=LAYOUTS.index(layout),
            number=2,
            overwrite=True,
            limits={"RLIMIT_NOFILE": limit},
        )
        report = saver.report()
        if report == {"exit": 0}:
            break
        assert report.get("error") == "StorageError", report
        assert saver.report() == {"exit": 1}
        assert files_below(path) == before
        refused += 1
    assert refused > 2
    assert_same_tree(ocp.load(path), NEW)
    # without a file descriptor left a directory cannot be removed; the next save did
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_a_path_below_a_file_cannot_be_saved_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file" / "checkpoint", tmp_path / "file" / "deeper" / "checkpoint"):
        with pytest.raises(
            StorageError, match=f"{path}: creating a directory.*is a writable directory"
        ):
            ocp.save(path, NEW)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_directory_that_takes_no_entries_cannot_be_saved_to() -> None:
    with pytest.raises(StorageError, match="/proc/checkpoint: creating a directory"):
        ocp.save("/proc/checkpoint", NEW)


def test_a_name_that_is_too_long_cannot_be_saved_to(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="File name too long"):
        ocp.save(tmp_path / ("x" * 250), NEW)
    assert not any(tmp_path.iterdir())


def test_overwriting_a_file_is_refused_and_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match="file"):
        ocp.save(tmp_path / "file", NEW, overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("layout", [OCDBT, FILES], ids=str)
def test_a_read_error_is_a_checkpoint_error(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    layout.save(path, NEW)

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(CheckpointError, match=os.strerror(errno.EIO)):
        ocp.load(path)


def test_a_failed_save_of_a_leaf_leaves_nothing(tmp_path: Path) -> None:
    deleted = jnp.ones(3)
    deleted.delete()
    with pytest.raises(UnsupportedLeafError, match="deleted"):
        ocp.save(tmp_path / "checkpoint", {"a": np.ones(5000), "b": deleted})
    assert not any(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing_and_is_not_hidden(tmp_path: Path) -> None:
    def interrupt(operation: str) -> None:
        if operation == "fsync":
            raise KeyboardInterrupt

    with before_every_write(interrupt), pytest.raises(KeyboardInterrupt):
        ocp.save(tmp_path / "checkpoint", NEW)
    assert not any(tmp_path.iterdir())

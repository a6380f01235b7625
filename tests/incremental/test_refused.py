"""Incremental saves on storage that refuses an operation, or loses what is not synced."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import StorageError
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.testing.write_faults import Refusal, before_every_write
from tests.faults.support import files_below
from tests.faults.test_durable import Disk, disk
from tests.incremental.test_incremental import new_bytes, noise

assert disk


def first() -> dict[str, np.ndarray]:
    return {"frozen": noise(64, 512), "rest": noise(16, 512), "trained": noise(64, 512)}


def second(tree: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**tree, "trained": noise(64, 512), "more": noise(8, 512)}


@pytest.fixture
def base(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Save a step that has one data file to share, one to copy from and one to drop."""
    path = tmp_path / "base"
    tree: dict[str, np.ndarray] = {}
    for name, added in {
        "share": {"frozen": noise(64, 512)},
        "copy": {"rest": noise(16, 512), "trained": noise(64, 512)},
        "drop": {"more": noise(8, 512)},
    }.items():
        tree |= added
        before, path = path, tmp_path / name
        ocp.save(path, tree, base=before)
    return path, tree


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EXDEV], ids=errno.errorcode.get)
def test_a_refused_operation_harms_neither_the_base_nor_the_save(
    code: int, base: tuple[Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    path, tree = base
    changed = second(tree)
    before = files_below(path)
    refused: set[str] = set()
    new = tmp_path
    for nth in range(1, 10_000):
        new = tmp_path / str(nth) / "new"
        refusal = Refusal(nth, code)
        error = _save(new, changed, path, refusal)
        assert files_below(path) == before
        if not refusal.happened:
            break
        kind = refusal.seen[nth - 1]
        refused.add(kind)
        if error is None:
            assert kind == "link", f"{kind} failed and nobody was told"
            expect_same(ocp.load(new), changed)
        else:
            assert os.strerror(code) in str(error)
            assert not any(new.parent.glob("*"))
        ocp.save(new, changed, base=path, overwrite=error is None)
        assert [entry.name for entry in new.parent.iterdir()] == ["new"]
        shutil.rmtree(new.parent)
    assert {"mkdir", "open", "write", "link", "unlink", "fsync", "rename"} == refused
    assert new_bytes(new, path) < new_bytes(new) - 64 * 512 * 2  # the base was used


def _save(new: Path, tree: Any, base: Path, refusal: Refusal) -> StorageError | None:
    with before_every_write(refusal, deletions=True, data=True):
        try:
            ocp.save(new, tree, base=base)
        except StorageError as error:
            return error
    return None


@pytest.mark.parametrize("synced", [True, False], ids=["own base", "base that cp -r made"])
def test_a_step_that_shares_files_is_durable(disk: Disk, synced: bool) -> None:
    root, tree = Path(disk.root), first()
    ocp.save(root / "0", tree, base=root / "none")
    if not synced:
        shutil.copytree(root / "0", root / "copy")
        shutil.rmtree(root / "0")
        (root / "copy").rename(root / "0")
        disk.problems.clear()  # the copy itself is not durable
    for step in range(1, 4):
        tree = second(tree)
        ocp.save(root / str(step), tree, base=root / str(step - 1))
        if not synced:
            disk.problems.clear()  # about what is linked, before it is synced
        disk.check(str(root / str(step)))
        assert not disk.problems

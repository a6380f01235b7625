"""Checkpoints that workers of an executor copy are those that one process copies."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.checkpointer import file_copies
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt.errors import CheckpointExistsError, CorruptionError
from tests.faults.support import LAYOUTS, Layout, every_kind_of_leaf, files_below
from tests.support import damage_chunk


@pytest.fixture(autouse=True)
def many_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_copies, "UNIT_BYTES", 5000)


@pytest.mark.parametrize("layout", [LAYOUTS[0], LAYOUTS[-2], LAYOUTS[-1]], ids=str)
def test_files_are_copied_byte_by_byte(layout: Layout, pool: Executor, tmp_path: Path) -> None:
    layout.save(tmp_path / "a", every_kind_of_leaf())
    seen: list[tuple[int, int]] = []
    nbytes = ocp.copy(
        tmp_path / "a",
        tmp_path / "b",
        executor=pool,
        progress=lambda *done: seen.append(done),
    )
    found, expected = files_below(tmp_path / "b"), files_below(tmp_path / "a")
    found.pop("commit_success.txt", None)  # names the path
    expected.pop("commit_success.txt", None)
    assert found == expected
    assert nbytes == sum(map(len, found.values()))
    assert seen[-1] == (2 * nbytes, 2 * nbytes)
    with pytest.raises(CheckpointExistsError):
        ocp.copy(tmp_path / "a", tmp_path / "b", executor=pool)


def test_a_damaged_checkpoint_is_not_copied(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": np.arange(9000.0)})
    damage_chunk(tmp_path / "a", "w/c/0")
    with pytest.raises(CorruptionError, match="w/c/0"):
        ocp.copy(tmp_path / "a", tmp_path / "b", executor=pool)
    assert not (tmp_path / "b").exists()


def test_a_copy_that_is_changed_before_it_is_compared_fails(
    pool: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(tmp_path / "a", {"w": np.arange(9000.0)})
    copied: Any = type(file_copies.directory_of(tmp_path))

    def spoil(self: Any) -> None:
        damage_chunk(self.path, "w/c/0")

    monkeypatch.setattr(copied, "sync_files", spoil)
    with pytest.raises(CorruptionError, match="does not have the bytes that were read"):
        ocp.copy(tmp_path / "a", tmp_path / "b", executor=pool)
    assert not (tmp_path / "b").exists()


def test_a_copy_in_memory_is_made_here(pool: Executor, tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": np.arange(9000.0)})
    ocp.copy(tmp_path / "a", resolve_path("memory://copies/b"), executor=pool)
    assert np.array_equal(ocp.load("memory://copies/b")["w"], np.arange(9000.0))

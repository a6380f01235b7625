"""Bases that are damaged, vanish or are of another kind: the save is complete all the same."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import base_database
from orbit_ckpt.testing.background import held_commits
from orbit_ckpt.testing.comparison import expect_same
from tests.incremental.test_incremental import new_bytes, noise
from tests.support import damage_chunk


def large_file(path: Path) -> Path:
    """Return the data file of a checkpoint that holds its arrays."""
    return max((path / "d").iterdir(), key=lambda file: file.stat().st_size)


def damage(file: Path) -> None:
    """Flip a bit in every kilobyte of a file."""
    data = bytearray(file.read_bytes())
    data[:: 1 << 10] = bytes(byte ^ 1 for byte in data[:: 1 << 10])
    file.write_bytes(data)


def leaves(count: int = 3) -> dict[str, np.ndarray]:
    return {f"w{i}": noise(128, 256) for i in range(count)}


@pytest.fixture
def base(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Save three arrays incrementally."""
    path, state = tmp_path / "base", leaves()
    ocp.save(path, state, base=tmp_path / "none")
    return path, state


Saved = tuple[Path, dict[str, np.ndarray]]

SPOILT: dict[str, Callable[[Path], object]] = {
    "a file is shorter": lambda path: os.truncate(large_file(path), 1000),
    "a file is longer": lambda path: os.truncate(large_file(path), 1 << 20),
    "a file is missing": lambda path: large_file(path).unlink(),
    "its digests are damaged": lambda path: damage(path / "orbit_digests"),
    "its digests are missing": lambda path: (path / "orbit_digests").unlink(),
    "its index is damaged": lambda path: damage(path / "manifest.ocdbt"),
    "its manifest is damaged": lambda path: damage(path / "orbit_manifest.json"),
    "its manifest is missing": lambda path: (path / "orbit_manifest.json").unlink(),
    "it is empty": lambda path: (shutil.rmtree(path), path.mkdir()),
    "it is a file": lambda path: (shutil.rmtree(path), path.write_text("x")),
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_base_that_is_spoilt_is_not_needed(kind: str, base: Saved, tmp_path: Path) -> None:
    path, state = base
    SPOILT[kind](path)
    ocp.save(tmp_path / "new", state, base=path)
    assert ocp.verify(tmp_path / "new").is_intact
    expect_same(ocp.load(tmp_path / "new"), state)


def test_a_base_deleted_before_a_background_save_runs_is_not_needed(
    base: Saved, tmp_path: Path
) -> None:
    path, state = base
    with held_commits():
        handle = ocp.save_async(tmp_path / "new", state, base=path)
        shutil.rmtree(path)
    handle.result()
    expect_same(ocp.load(tmp_path / "new"), state)


@pytest.mark.parametrize("has_digests", [False, True])
def test_a_base_deleted_once_it_is_linked_is_not_needed(
    has_digests: bool, base: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = base
    if not has_digests:  # its chunks have to be read
        ocp.save(path, state, overwrite=True)
    link_into = base_database.BaseDatabase.link_into

    def and_delete(self: base_database.BaseDatabase, root: Path) -> None:
        link_into(self, root)
        shutil.rmtree(path)

    monkeypatch.setattr(base_database.BaseDatabase, "link_into", and_delete)
    monkeypatch.setattr(base_database, "_MIN_LIVE", 2)  # all is copied
    changed = {**state, "w1": noise(128, 256), "w2": noise(128, 256)}
    ocp.save(tmp_path / "new", changed, base=path)
    expect_same(ocp.load(tmp_path / "new"), changed)


def test_a_base_that_cannot_be_read_is_not_needed(
    base: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, state = base
    preadv = os.preadv
    inode = large_file(path).stat().st_ino

    def fail(descriptor: int, *rest: Any) -> int:
        if os.fstat(descriptor).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(descriptor, *rest)

    monkeypatch.setattr(base_database, "_MIN_LIVE", 2)
    changed = {**state, "w1": noise(128, 256), "w2": noise(128, 256)}
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", fail)
        ocp.save(tmp_path / "a", changed, base=path)
        (path / "orbit_digests").unlink()
        ocp.save(tmp_path / "b", changed, base=path)
    expect_same(ocp.load(tmp_path / "a"), changed)
    expect_same(ocp.load(tmp_path / "b"), changed)


@pytest.mark.parametrize("save", ["save", "save_async", "manager"])
def test_all_is_written_if_what_is_to_be_copied_is_damaged(
    save: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_database, "_MIN_LIVE", 2)  # all is copied
    frozen = {"a": jnp.asarray(noise(128, 256)) + 1, "b": jnp.asarray(noise(8, 8)) + 1}
    jax.block_until_ready(frozen)

    def state(seed: int) -> dict[str, Any]:
        return {**frozen, "w": jnp.asarray(noise(256, 256)) + seed, "n": noise(256, 256)}

    root = tmp_path / "run"
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(root, options=options) as run:
        run.save(0, args=ocp.args.StandardSave(state(0)))
        run.wait_until_finished()
        step = next(root.glob("0/*/manifest.ocdbt")).parent
        damage_chunk(step, "a/c/0/0")
        changed = state(1)
        if save == "manager":
            run.save(1, args=ocp.args.StandardSave(changed))
            run.wait_until_finished()
            expect_same(run.restore(1), changed)
        elif save == "save":
            ocp.save(root / "x", changed, base=step)
        else:
            ocp.save_async(root / "x", changed, base=step).result()
    if save != "manager":
        expect_same(ocp.load(root / "x"), changed)
        assert ocp.verify(root / "x").is_intact
        assert new_bytes(root / "x", step) < 1.2 * sum(x.nbytes for x in changed.values())


def test_what_has_been_copied_once_is_shared_from_then_on(tmp_path: Path) -> None:
    frozen, written = noise(128, 256), []
    for step in range(5):
        state = {"frozen": frozen, "trained": noise(512, 256)}  # always most of the first file
        ocp.save(tmp_path / f"{step}", state, base=tmp_path / f"{step - 1}")
        written.append(new_bytes(tmp_path / f"{step}", tmp_path / f"{step - 1}"))
    assert max(written[2:]) < 512 * 256 * 4 + 20_000
    assert written[1] > max(written[2:]) + 100_000


def test_a_base_behind_a_link_is_one(base: Saved, tmp_path: Path) -> None:
    path, state = base
    (tmp_path / "link").symlink_to(path)
    ocp.save(tmp_path / "new", state, base=tmp_path / "link")
    assert new_bytes(tmp_path / "new", path) < 20_000
    shutil.rmtree(path)
    expect_same(ocp.load(tmp_path / "new"), state)


def test_a_checkpoint_may_be_its_own_base(base: Saved) -> None:
    path, state = base
    before = large_file(path).stat().st_ino
    changed = {**state, "w1": noise(128, 256)}
    ocp.save(path, changed, base=path, overwrite=True)
    assert before in {file.stat().st_ino for file in (path / "d").iterdir()}
    expect_same(ocp.load(path), changed)
    ocp.save(path, ocp.load(path, lazy=True), base=path, overwrite=True)
    expect_same(ocp.load(path), changed)

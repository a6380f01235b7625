"""Bases that others wrote, or that are stored in another way."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint
import pytest

import orbit_ckpt as ocp
import orbit_ckpt.v1
from orbit_ckpt.testing.comparison import expect_same
from tests.incremental.test_incremental import new_bytes, noise
from tests.support import checkpointer, put

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")

TREE = {"w": noise(256, 256), "sharded": put(noise(64, 512), "x", x=8), "step": 3}


def by_orbax(path: Path, **options: Any) -> Path:
    handler = orbax.checkpoint.PyTreeCheckpointHandler(**options)
    with orbax.checkpoint.Checkpointer(handler) as writer:
        writer.save(path, TREE)
    return path


def by_v1_of_orbax(path: Path) -> Path:
    orbax.checkpoint.v1.save(str(path), TREE)
    return next(path.glob("*/manifest.ocdbt")).parent


def by_checkpointer(path: Path, **options: Any) -> Path:
    with checkpointer(**options) as writer:
        writer.save(path, args=ocp.args.PyTreeSave(TREE))
    return path


def by_async_checkpointer(path: Path) -> Path:
    with ocp.AsyncCheckpointer(ocp.StandardHandler()) as writer:
        writer.save(path, args=ocp.args.StandardSave(TREE))
    return path


def by_v1(path: Path) -> Path:
    orbit_ckpt.v1.save(path, TREE)
    return next(path.glob("*/manifest.ocdbt")).parent


def by_manager(path: Path) -> Path:
    with ocp.CheckpointManager(path) as run:
        run.save(0, args=ocp.args.StandardSave(TREE))
    return path / "0/default"


UNSUITABLE: dict[str, Callable[[Path], Path]] = {
    "orbax": by_orbax,
    "orbax, zarr3": lambda path: by_orbax(path, use_zarr3=True),
    "orbax, files": lambda path: by_orbax(path, use_ocdbt=False),
    "v1 of orbax": by_v1_of_orbax,
    "files": lambda path: by_checkpointer(path, use_ocdbt=False),
    "zarr2": lambda path: by_checkpointer(path, use_zarr3=False),
    "not compressed": lambda path: by_checkpointer(path, use_compression=False),
}
SUITABLE: dict[str, Callable[[Path], Path]] = {
    "checkpointer": by_checkpointer,
    "async checkpointer": by_async_checkpointer,
    "v1": by_v1,
    "manager": by_manager,
}


@pytest.mark.parametrize("kind", UNSUITABLE)
def test_nothing_is_shared_with_a_base_that_is_stored_otherwise(kind: str, tmp_path: Path) -> None:
    path = UNSUITABLE[kind](tmp_path / "base")
    handle = ocp.save_async(tmp_path / "new", TREE, base=path)
    handle.result()
    assert handle.reused.referred == handle.reused.copied == 0
    if kind != "not compressed":  # that base is usable, though no array in it
        assert str(path) in str(handle.reused.why_not)
    shutil.rmtree(tmp_path / "base")
    expect_same(ocp.load(tmp_path / "new"), TREE)


@pytest.mark.parametrize("kind", SUITABLE)
def test_files_are_shared_with_a_base_that_another_way_of_saving_wrote(
    kind: str, tmp_path: Path
) -> None:
    path = SUITABLE[kind](tmp_path / "base")
    changed = {**TREE, "step": 4}
    handle = ocp.save_async(tmp_path / "new", changed, base=path)
    handle.result()
    assert handle.reused.why_not is None
    assert new_bytes(tmp_path / "new", path) < 20_000
    shutil.rmtree(tmp_path / "base")
    expect_same(ocp.load(tmp_path / "new"), changed)
    with orbax.checkpoint.Checkpointer(orbax.checkpoint.PyTreeCheckpointHandler()) as reader:
        found = reader.restore(tmp_path / "new")
    jax.tree.map(np.testing.assert_array_equal, found, changed)


def test_a_checkpoint_with_several_items_is_the_base_of_each(tmp_path: Path) -> None:
    items = {"model": {"w": noise(128, 256)}, "optimizer": {"mu": noise(128, 256)}}
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(tmp_path, options=options) as run:
        for step in range(2):
            saved = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
            run.save(step, args=ocp.args.Composite(**saved, notes=ocp.args.JsonSave([step])))
            run.wait_until_finished()
    assert new_bytes(tmp_path / "1", tmp_path / "0") < 20_000
    shutil.rmtree(tmp_path / "0")
    with ocp.CheckpointManager(tmp_path) as run:
        expect_same(dict(run.restore(1).items()), {**items, "notes": [1]})

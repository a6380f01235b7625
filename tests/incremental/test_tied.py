"""Arrays that are several leaves of a tree: what they take on the disk, and what is reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.errors import TreeMismatchError
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.type_handlers import ArrayHandler, create_type_handler_registry
from tests.incremental.test_incremental import new_bytes, noise
from tests.items.test_staging_options import Log
from tests.support import put


def test_tied_arrays_count_once_when_a_file_is_mostly_dead(tmp_path: Path) -> None:
    embedding = noise(256, 256)
    state = {"embed": embedding, "head": embedding, "trained": noise(384, 256)}
    ocp.save(tmp_path / "0", state, base=tmp_path / "none")
    changed = {**state, "trained": noise(384, 256)}  # 2/5 of the file stay live
    handle = ocp.save_async(tmp_path / "1", changed, base=tmp_path / "0")
    handle.result()
    assert handle.progress.nbytes == handle.progress.total_nbytes
    assert handle.reused.referred == 0
    assert 0.8 * embedding.nbytes < handle.reused.copied < 1.1 * embedding.nbytes
    written = embedding.nbytes + state["trained"].nbytes
    assert new_bytes(tmp_path / "1", tmp_path / "0") < 1.02 * written  # once, also in the copy
    shutil.rmtree(tmp_path / "0")
    expect_same(ocp.load(tmp_path / "1"), changed)


@pytest.mark.parametrize("background", [False, True])
def test_every_leaf_that_is_not_written_is_reported_as_written(
    background: bool, tmp_path: Path
) -> None:
    tied, frozen = jnp.asarray(noise(256, 256)) * 1, put(noise(256, 256), "x", x=8) * 2
    log = Log()
    registry = create_type_handler_registry((jax.Array, ArrayHandler(callback=log)))
    options = ocp.CheckpointManagerOptions(incremental=True, enable_async_checkpointing=background)
    handlers = {"state": ocp.StandardHandler(type_handler_registry=registry)}
    with ocp.CheckpointManager(tmp_path, options=options, item_handlers=handlers) as run:
        for step in range(2):
            log.lines.clear()
            tree = {"embed": tied, "head": tied, "frozen": frozen, "trained": jnp.ones(9) * step}
            items = ocp.args.Composite(state=ocp.args.StandardSave(tree))
            run.save(step, args=items)
            run.wait_until_finished()
            for name in tree:
                events = [line.split()[0] for line in log.lines if f"'{name}'" in line]
                assert sorted(events) == ["transfer", "transferred", "write", "written"], name
                assert events.index("write") < events.index("written")


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
@pytest.mark.parametrize("kind", ["jax", "sharded", "numpy"])
def test_equal_arrays_of_an_incremental_save_are_stored_once(kind: str, tmp_path: Path) -> None:
    value = noise(512, 512)
    make = {
        "jax": lambda array: jnp.asarray(array) + 0,
        "sharded": lambda array: put(array, "x", x=8),
        "numpy": np.copy,
    }[kind]
    state = {
        "mu": make(value),
        "nu": make(value),
        "other": make(-value),
        "bits": make(value.view(np.int32)),
    }
    ocp.save_async(tmp_path / "0", state, base=tmp_path / "none").result()
    assert new_bytes(tmp_path / "0") < 3.1 * value.nbytes  # another dtype is stored apart
    changed = {**state, "nu": make(value * 2), "bits": make(value.view(np.int32) + 1)}
    ocp.save_async(tmp_path / "1", changed, base=tmp_path / "0").result()
    assert new_bytes(tmp_path / "1", tmp_path / "0") < 2.1 * value.nbytes
    expect_same(ocp.load(tmp_path / "0"), state)
    assert ocp.verify(tmp_path / "0").is_intact
    with orbax.checkpoint.Checkpointer(orbax.checkpoint.PyTreeCheckpointHandler()) as reader:
        jax.tree.map(np.testing.assert_array_equal, reader.restore(tmp_path / "0"), state)
    shutil.rmtree(tmp_path / "0")
    expect_same(ocp.load(tmp_path / "1"), changed)


@pytest.mark.parametrize("kind", ["jax", "sharded", "numpy", "keys"])
def test_arrays_that_the_target_ties_are_one(kind: str, tmp_path: Path) -> None:
    values = {
        "jax": jnp.asarray(noise(64, 64)),
        "sharded": put(noise(64, 64), "x", x=8),
        "numpy": noise(64, 64),
        "keys": jax.random.split(jax.random.key(1), 8),
    }
    tied = values[kind]
    state = {"embed": tied, "head": {"kernel": tied}, "other": values["jax"] + 1}
    ocp.save(tmp_path / "a", state)
    found = ocp.load(tmp_path / "a", state, tied=True)
    assert found["embed"] is found["head"]["kernel"]
    expect_same(found, state)
    apart = ocp.load(tmp_path / "a", state)
    assert apart["embed"] is not apart["head"]["kernel"]
    expect_same(apart, state)


def test_arrays_of_other_values_are_never_tied(tmp_path: Path) -> None:
    one = np.zeros((64, 64), np.float32)
    ocp.save(tmp_path / "a", {"embed": one, "head": -one})
    with pytest.raises(TreeMismatchError, match="head: one array with embed in the target"):
        ocp.load(tmp_path / "a", {"embed": one, "head": one}, tied=True)
    with pytest.raises(ValueError, match="needs a target"):
        ocp.load(tmp_path / "a", tied=True)
    shape = jax.ShapeDtypeStruct(one.shape, one.dtype)
    found = ocp.load(tmp_path / "a", {"embed": shape, "head": shape}, tied=True)
    assert np.signbit(found["head"]).all()
    assert not np.signbit(found["embed"]).any()


def test_a_run_restores_tied_arrays(tmp_path: Path) -> None:
    tied = jnp.asarray(noise(64, 64))
    state = {"embed": tied, "head": tied}
    with ocp.CheckpointManager(tmp_path / "run") as run:
        run.save(0, state)
        found = run.restore(0, items=state, tied=True)
    assert found["embed"] is found["head"]

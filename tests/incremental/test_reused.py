"""What a save reports of its base, and bases of another kind."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt.testing.comparison import expect_same
from tests.incremental.test_incremental import new_bytes, noise
from tests.support import checkpointer, put

ODD: dict[str, Any] = {
    "bfloat16": np.arange(9000).astype(ml_dtypes.bfloat16),
    "float8": np.arange(9000).astype(ml_dtypes.float8_e4m3fn),
    "int4": (np.arange(9000) % 8).astype(ml_dtypes.int4),
    "uint4": (np.arange(9000) % 8).astype(ml_dtypes.uint4),
    "uint8": (np.arange(9000) % 8).astype(np.uint8),
    "bool": np.arange(9000) % 3 == 0,
    "dates": np.arange(9000).astype("datetime64[s]"),
    "key": jax.random.key(1),
    "keys": jax.random.split(jax.random.key(2), 600),
    "scalar": 3,
    "float": np.float32(1.5),
    "text": "a" * 5000,
    "bytes": b"\x00" * 5000,
    "empty": np.zeros((0, 7)),
    "none": None,
    "fortran": np.asfortranarray(np.arange(9000.0).reshape(90, 100)),
}


def test_every_kind_of_leaf_is_as_it_was_saved(tmp_path: Path) -> None:
    ocp.save(tmp_path / "0", ODD, base=tmp_path / "none")
    for step in range(1, 3):
        ocp.save(tmp_path / f"{step}", ODD, base=tmp_path / f"{step - 1}")
        shutil.rmtree(tmp_path / f"{step - 1}")
    expect_same(ocp.load(tmp_path / "2"), ocp.load(_full(tmp_path, ODD)))


def _full(tmp_path: Path, tree: object) -> Path:
    ocp.save(tmp_path / "full", tree)
    return tmp_path / "full"


def test_leaves_of_equal_bytes_and_other_types_are_not_confused(tmp_path: Path) -> None:
    """Their dtypes are recorded elsewhere than in the metadata of the stored array."""
    kinds = [ml_dtypes.uint4, np.uint8, ml_dtypes.int4, np.int8, np.bool_]
    for step, dtype in enumerate(kinds):
        value = (np.arange(9000) % 2).astype(dtype)
        ocp.save(tmp_path / f"{step}", {"w": value}, base=tmp_path / f"{step - 1}")
    for step, dtype in enumerate(kinds):
        found = ocp.load(tmp_path / f"{step}")["w"]
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.astype(int), np.arange(9000) % 2)


def test_a_handle_says_what_was_reused(tmp_path: Path) -> None:
    tree = {"frozen": noise(256, 256), "trained": noise(16, 256)}
    first = ocp.save_async(tmp_path / "0", tree, base=tmp_path / "none")
    first.result()
    assert first.reused.referred == 0
    assert "none" in str(first.reused.why_not)
    tree["trained"] = noise(16, 256)
    second = ocp.save_async(tmp_path / "1", tree, base=tmp_path / "0")
    second.result()
    reused = second.reused
    assert reused.why_not is None
    assert reused.referred + reused.copied > 0.8 * 256 * 256 * 4
    assert new_bytes(tmp_path / "1", tmp_path / "0") < 0.2 * new_bytes(tmp_path / "1")
    alone = ocp.save_async(tmp_path / "2", tree)
    alone.result()
    assert (alone.reused.referred, alone.reused.why_not) == (0, None)


@pytest.mark.parametrize("options", [{"use_ocdbt": False}, {"use_zarr3": False}], ids=str)
def test_a_base_of_another_layout_is_named(
    options: dict[str, bool], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = {"w": noise(128, 128)}
    checkpointer(**options).save(tmp_path / "0", args=ocp.args.PyTreeSave(tree))
    with caplog.at_level(logging.DEBUG, "orbit_ckpt"):
        handle = ocp.save_async(tmp_path / "1", tree, base=tmp_path / "0")
        handle.result()
    assert f"{tmp_path / '0'}" in str(handle.reused.why_not)
    assert any("written in full" in record.getMessage() for record in caplog.records)
    expect_same(ocp.load(tmp_path / "1"), tree)


@pytest.mark.parametrize("before", [{"x": 8}, {"x": 4}, None], ids=str)
def test_a_base_in_another_sharding_is_never_mixed_in(
    before: dict[str, int] | None, tmp_path: Path
) -> None:
    array = noise(64, 1024)
    old = array if before is None else put(array, "x", **before)
    ocp.save(tmp_path / "0", {"w": old}, base=tmp_path / "none")
    new = put(array, "x", x=2)
    ocp.save(tmp_path / "1", {"w": new}, base=tmp_path / "0")
    shutil.rmtree(tmp_path / "0")
    np.testing.assert_array_equal(ocp.load(tmp_path / "1")["w"], array)


def test_two_managers_share_files_of_one_run(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(incremental=True, max_to_keep=3)
    frozen = jnp.asarray(noise(128, 256)) + 1
    states = {
        step: {"frozen": frozen + step // 3, "trained": noise(32, 256), "step": step}
        for step in range(8)
    }
    with (
        ocp.CheckpointManager(tmp_path / "run", options=options) as a,
        ocp.CheckpointManager(tmp_path / "run", options=options) as b,
    ):
        for step, state in states.items():
            run = (a, b)[step % 2]
            run.reload()
            run.save(step, args=ocp.args.StandardSave(state))
            run.wait_until_finished()
        b.reload()
        for step in b.all_steps():
            expect_same(b.restore(step), states[step])

"""How much host memory a load takes beside its result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf

MIB = 1 << 20
COUNT = 64
SCRIPT = Path(__file__).with_name("peak_memory.py")


@pytest.mark.slow
@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is read from Linux's /proc"
)
@pytest.mark.parametrize("layout", ["own", pytest.param("t5x", marks=pytest.mark.matrix)])
def test_plan_tells_the_peak_memory_of_a_load(layout: str, tmp_path: Path) -> None:
    values = np.arange(MIB, dtype=np.float32) % 1000
    tree = {f"l{i}": values + i for i in range(COUNT)}
    path = tmp_path / "checkpoint_1"
    if layout == "own":
        options = ocp.PyTreeHandler(use_compression=False)
        ocp.Checkpointer(options).save(path, tree)
    else:
        ocp.save(tmp_path / "own", {"target": tree, "state": {"step": 1}})
        ocp.convert(tmp_path / "own", path, to="t5x")
    wanted = ["none", "cast", "cast+jax"]
    command = [sys.executable, str(SCRIPT), str(path), *wanted]
    environment = os.environ | {
        "XLA_FLAGS": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
        # glibc gives large blocks back at once: no measurement starts with those of the last
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    for options, line in zip(wanted, done.stdout.splitlines(), strict=True):
        peak, planned = map(int, line.split())
        assert 0.9 * planned < peak < 1.1 * planned, options


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tree = {f"l{i}": np.full((MIB // 4,), i, np.float32) for i in range(8)}
    ocp.save(tmp_path / "saved", {"host": tree, "jax": jax.tree.map(jnp.asarray, tree)})
    return tmp_path / "saved"


def test_planned_peak_of_a_cast_is_the_result_and_the_limit(saved: Path) -> None:
    plan = ocp.plan(saved, cast={"**": jnp.bfloat16}, memory_limit=2 * MIB)
    # all but the last two arrays as bfloat16, those two as they are stored
    assert plan.peak_bytes == 14 * MIB // 2 + 2 * MIB
    assert ocp.plan(saved, cast={"**": jnp.bfloat16}).peak_bytes == 4 * MIB + 8 * MIB


def test_planned_peak_without_a_cast_is_the_result(saved: Path) -> None:
    assert ocp.plan(saved).peak_bytes == 16 * MIB
    assert ocp.plan(saved, memory_limit=MIB).peak_bytes == 16 * MIB


@pytest.mark.parametrize("limit", [1, MIB + 1, 1 << 40])
def test_result_does_not_depend_on_the_memory_limit(limit: int, saved: Path) -> None:
    rule = tf.Combine(("host/l1", "jax/l2"), "sum", np.add)
    options: list[dict[str, Any]] = [{}, {"cast": {"**": jnp.bfloat16}}, {"transforms": [rule]}]
    for given in options:
        found = ocp.load(saved, memory_limit=limit, **given)
        expected = ocp.load(saved, **given)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("call", [ocp.load, ocp.plan])
@pytest.mark.parametrize(
    ("limit", "error"), [(0, ValueError), (-1, ValueError), ("1GB", TypeError), (True, TypeError)]
)
def test_memory_limit_that_is_none_is_refused(
    limit: object, error: type[Exception], call: Any, saved: Path
) -> None:
    with pytest.raises(error, match="memory_limit"):
        call(saved, memory_limit=limit)

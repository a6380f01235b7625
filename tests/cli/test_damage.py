"""One damaged chunk or NaN does not stop a command: the rest is shown, the exit code is 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.cli.conftest import Run
from tests.support import damage_chunk

pytestmark = pytest.mark.slow


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a checkpoint with two chunks of `w`, of which the second is damaged."""
    path = tmp_path / "checkpoint"
    rng = np.random.default_rng(0)
    tree = {
        "w": np.concatenate([np.linspace(0, 3, 2000), rng.random(2000)]),
        "v": np.array([1.0, np.nan]),
    }
    arguments = {"w": ocp.SaveArgs(chunk_byte_size=2000 * 8), "v": ocp.SaveArgs()}
    ocp.PyTreeCheckpointer().save(path, tree, save_args=arguments)
    damage_chunk(path, "w/c/1")
    return path


def test_stats_leave_out_a_damaged_chunk(cli: Run, damaged: Path) -> None:
    done = cli("stats", damaged, "--json", status=1).json
    leaves = {leaf["name"]: leaf for leaf in done["leaves"]}
    assert (leaves["w"]["size"], leaves["w"]["max"]) == (2000, 3)  # of the intact chunk
    (damage,) = leaves["w"]["damage"]
    assert "'w/c/1'" in damage
    assert (leaves["v"]["nans"], leaves["v"]["damage"]) == (1, [])
    text = cli("stats", damaged, status=1).out
    (v,) = [line for line in text.splitlines() if line.startswith("v ")]
    (w,) = [line for line in text.splitlines() if line.startswith("w ")]
    assert v.endswith("not finite")
    assert w.endswith("damaged")
    assert "damaged: w: chunk 'w/c/1'" in text


def test_show_prints_what_is_intact(cli: Run, damaged: Path) -> None:
    found = cli("show", damaged, "w", "--json", status=1).json
    assert found["statistics"]["max"] == 3
    assert found["corners"] is None
    text = cli("show", damaged, "*", status=1).out
    assert "damaged: w: chunk 'w/c/1'" in text
    assert "nan          1" in text

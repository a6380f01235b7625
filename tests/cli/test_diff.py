"""`diff`: order, tolerance, damage, other layouts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.cli.conftest import Run, Terminal
from tests.support import damage_chunk

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
NOISE = RNG.random((300, 7))


def tree(scale: float) -> dict[str, Any]:
    return {
        "params": {"far": NOISE * (1 + scale), "near": NOISE * (1 + scale / 100), "same": NOISE},
        "step": 1,
        "zero": np.full(3, scale - 1),
    }


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    ocp.save(tmp_path / "a", tree(1.0))
    ocp.save(tmp_path / "b", tree(3.0))
    return tmp_path


@pytest.mark.usefixtures("pair")
def test_changes_are_sorted_by_relative_change(cli: Run) -> None:
    found = cli("diff", "a", "b", "--values", "--json", status=1).json
    changed = {change["path"]: change for change in found["changed"]}
    assert list(changed) == ["zero", "params/far", "params/near"]
    assert changed["zero"]["relative"] == "Infinity"
    far = changed["params/far"]
    assert math.isclose(far["relative"], 1)
    assert math.isclose(far["rms"], math.sqrt(np.mean((2 * NOISE) ** 2)))
    assert math.isclose(far["cosine"], 1)
    lines = cli("diff", "a", "b", "--values", status=1).out.splitlines()
    assert "5 leaves in both, 2 of them the same" in lines
    (line,) = [line for line in lines if line.startswith("params/far")]
    assert line.split()[1:6] == ["values", "100", "%", "1.15", "1.00000"]
    (line,) = [line for line in lines if line.startswith("zero")]
    assert "from 0" in line


@pytest.mark.usefixtures("pair")
def test_a_tolerance_and_patterns_leave_out_changes(cli: Run) -> None:
    found = cli("diff", "a", "b", "--rtol", "0.05", "--only", "params/**", "--json", status=1).json
    assert [change["path"] for change in found["changed"]] == ["params/far"]
    (note,) = found["notes"]
    assert (note["path"], note["detail"]) == (
        "params/near",
        "2100 of 2100 differ within the tolerance",
    )
    assert found["common"] == 3
    cli("diff", "a", "b", "--atol", "2.5")
    cli("diff", "a", "b", "--values", "--only", "params/same")
    error = cli("diff", "a", "b", "--only", "params/fra", status=2).err
    assert "The nearest names are params/far" in error


def test_damage_does_not_stop_it(cli: Run, pair: Path) -> None:
    damage_chunk(pair / "b", "params.same/c/0/0")
    found = cli("diff", "a", "b", "--values", "--json", status=1).json
    assert [change["path"] for change in found["changed"]][1:] == ["params/far", "params/near"]
    assert "'params.same/c/0/0'" in found["damage"][0]
    text = cli("diff", "a", "b", "--only", "params/same", "--values", status=1).out
    assert "1 leaves in both, 0 of them the same, 1 damaged" in text
    assert "damaged: params/same: chunk" in text


@pytest.mark.usefixtures("pair")
def test_a_flat_file_compares_leaf_by_leaf(cli: Run) -> None:
    cli("convert", "a", "a.safetensors", "--to", "safetensors", "--only", "params/**")
    found = cli("diff", "a", "a.safetensors", "--only", "params/**", "--values", "--json").json
    assert (found["common"], found["same"], found["only_in_b"]) == (3, True, [])
    found = cli("diff", "b", "a.safetensors", "--only", "params/**", "--values", "--json", status=1)
    assert [change["path"] for change in found.json["changed"]] == ["params/far", "params/near"]


def test_a_bar_shows_progress(tmp_path: Path, on_terminal: Callable[..., Terminal]) -> None:
    for name in "ab":
        ocp.save(tmp_path / name, {f"w{i}": RNG.random((1000, 1000)) for i in range(8)})
    child = on_terminal("diff", tmp_path / "a", tmp_path / "b", "--values")
    child.expect("Comparing")
    status, text = child.end()
    assert status == 1
    assert re.search(r"\d+(\.\d+)?/128\.0 MB", text), text

"""`diff` tells from digests which leaves of two incremental saves changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.cli.conftest import Run
from tests.support import damage_chunk


def state(step: int) -> dict[str, Any]:
    weights = np.random.default_rng(step).standard_normal((300, 300))
    frozen = np.random.default_rng(0).standard_normal((300, 300))
    return {"frozen": frozen, "w": weights, "count": step, "note": f"at {step}", "same": 7}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step in (1, 2):
            run.save(step, args=ocp.args.StandardSave(state(step)))
    return tmp_path / "run"


def test_changed_leaves_are_found_without_reading_their_data(cli: Run, root: Path) -> None:
    damage_chunk(root / "1" / "default", "frozen/c/0/0")  # reading it would tell
    damage_chunk(root / "2" / "default", "w/c/0/0")
    found = cli("diff", "run@1", "run@2", "--json", status=1).json
    assert found["values_compared"] is False
    assert found["compared_by_digest"] == found["common"] == 5
    changes = {change["path"]: change for change in found["changed"]}
    assert {path: change["what"] for path, change in changes.items()} == {
        "w": "chunks",
        "count": "values",
        "note": "values",
    }
    assert changes["w"]["detail"] == "1 of 1 chunks differ"
    assert found["damage"] == []
    text = cli("diff", "run@1", "run@2", status=1).out
    assert "5 leaves in both, 2 of them the same by the digests of their values" in text


def test_values_are_measured_when_asked(cli: Run, root: Path) -> None:
    found = cli("diff", f"{root}@1", f"{root}@2", "--values", "--json", status=1).json
    assert found["values_compared"] is True
    assert found["compared_by_digest"] == 0
    changes = {change["path"]: change for change in found["changed"]}
    assert changes["w"]["what"] == "values"
    assert changes["w"]["rms"] > 0


def test_without_digests_only_metadata_are_compared(cli: Run, root: Path) -> None:
    (root / "1" / "default" / "orbit_digests").unlink()
    found = cli("diff", "run@1", "run@2", "--json").json
    assert (found["same"], found["compared_by_digest"]) == (True, 0)
    assert "--values compares values too" in cli("diff", "run@1", "run@2").out

"""Steps that share files are verified with one read of what they share."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from tests.support import damage_chunk


def state(step: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {"frozen": random.standard_normal((300, 300)), "w": np.full(40_000, step)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step in (1, 2, 3):
            run.save(step, args=ocp.args.StandardSave(state(step)))
    return tmp_path / "run"


def test_what_steps_share_is_read_once(root: Path) -> None:
    alone = [ocp.verify(root / str(step)) for step in (1, 2, 3)]
    seen: list[tuple[int, int]] = []
    whole = ocp.verify(root, progress=lambda *done: seen.append(done))
    assert whole.is_intact
    assert whole.chunks == sum(one.chunks for one in alone)
    twice = sum(one.bytes_checked for one in alone) - whole.bytes_checked
    assert twice >= 2 * 0.8 * state(1)["frozen"].nbytes
    assert seen[-1][0] >= 0.95 * seen[-1][1]  # the progress counts what is not read again


def test_damage_in_a_shared_file_is_reported_for_each_step_that_needs_it(root: Path) -> None:
    file = damage_chunk(root / "2" / "default", "frozen/c/0/0")
    report = ocp.verify(root)
    damaged = {(one.checkpoint.name, one.leaf) for one in report.damage}
    assert damaged == {("1", "frozen"), ("2", "frozen"), ("3", "frozen")}
    (shared,) = report.shared_damage
    assert [path.name for path in shared.checkpoints] == ["1", "2", "3"]
    assert os.path.samefile(shared.file, file)
    assert "the same file in 1, 2, 3" in str(report)


def test_damage_in_the_file_of_one_step_is_no_other_steps(root: Path) -> None:
    damage_chunk(root / "2" / "default", "w/c/0")
    report = ocp.verify(root)
    assert {(one.checkpoint.name, one.leaf) for one in report.damage} == {("2", "w")}
    assert report.shared_damage == ()

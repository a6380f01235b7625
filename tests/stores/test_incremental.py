"""Incremental saves to and from an object store, which has no links: all is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import orbit_ckpt as ocp
from orbit_ckpt.testing.comparison import expect_same

TREE = {"w": np.arange(40_000.0).reshape(200, 200), "step": 1}


def test_a_base_on_another_side_is_not_used_and_the_save_is_complete(
    s3: str, tmp_path: Path
) -> None:
    ocp.save(tmp_path / "0", TREE)
    for base, path in [
        (tmp_path / "0", f"{s3}/1"),
        (f"{s3}/1", f"{s3}/2"),
        (f"{s3}/2", tmp_path / "3"),
    ]:
        handle = ocp.save_async(path, TREE, base=base)
        handle.result()
        assert "cannot be linked" in str(handle.reused.why_not)
        expect_same(ocp.load(path), TREE)
        assert ocp.verify(path).is_intact


def test_a_run_in_a_store_may_be_incremental(s3: str) -> None:
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(f"{s3}/run", options=options) as run:
        for step in range(3):
            run.save(step, args=ocp.args.StandardSave({**TREE, "step": step}))
        run.wait_until_finished()
        for step in range(3):
            expect_same(run.restore(step), {**TREE, "step": step})

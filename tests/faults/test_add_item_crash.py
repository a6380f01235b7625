"""Processes that die while they add an item to a step: it is there as a whole, or not at all."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import orbit_ckpt as ocp
from orbit_ckpt import args
from tests.faults.support import Saver, numbered_tree, snapshot


@pytest.mark.slow
def test_a_step_is_intact_with_or_without_the_item_of_a_dead_process(
    saver: Saver, tmp_path: Path
) -> None:
    seen: list[bool] = []
    for nth in range(1, 300):
        run = tmp_path / f"run{nth}"
        with ocp.CheckpointManager(run, item_names=("model", "tx")) as manager:
            manager.save(1, args=args.Composite(model=args.StandardSave(numbered_tree(1))))
        saver.order(do="add_item", path=str(run), nth=nth)
        ended = saver.report()
        assert ocp.verify(run).is_intact, ocp.verify(run)
        with ocp.CheckpointManager(run, item_names=("model", "tx")) as manager:
            assert manager.all_steps() == [1]
            found = manager.restore(1)
            assert snapshot(found["model"]) == snapshot(numbered_tree(1))
            seen.append("tx" in found)
            if not seen[-1]:
                manager.save_item(1, "tx", numbered_tree(2))  # what is left is in nobody's way
                found = manager.restore(1)
            assert snapshot(found["tx"]) == snapshot(numbered_tree(2))
            assert manager.steps_with_item("tx") == [1]
        assert ocp.verify(run).is_intact
        assert {path.name for path in (run / "1").iterdir() if path.is_dir()} == {"model", "tx"}
        if ended == {"exit": 0}:
            break
        assert ended == {"exit": -signal.SIGKILL}
    else:
        pytest.fail("adding an item has no end")
    assert set(seen) == {False, True}
    # threads share the work differently in each save, and so number its operations differently
    last_without = len(seen) - seen[::-1].index(False)
    assert last_without - seen.index(True) <= 4, "an item that was there is gone"

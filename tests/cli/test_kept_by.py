"""`ls` says which of a run's own retention rules keeps each step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orbax.checkpoint as orbax
import pytest
from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.manager.preservation import PreservationContext, PreservationPolicy
from orbit_ckpt._src.manager.step_info import StepInfo
from tests.cli.conftest import Run

LOSSES = {1: 0.9, 2: 0.1, 3: 0.8, 4: 0.7, 5: 0.6, 6: 0.5}


def train(root: Path, options: ocp.CheckpointManagerOptions) -> None:
    with ocp.CheckpointManager(root, options=options) as run:
        for step, loss in LOSSES.items():
            run.save(step, args=ocp.args.StandardSave({"w": np.ones(2)}), metrics={"loss": loss})


def kept(cli: Run, *arguments: object) -> dict[int, Sequence[str] | None]:
    return {step["step"]: step["kept_by"] for step in cli("ls", *arguments, "--json").json["steps"]}


class Odd(PreservationPolicy):
    @override
    def should_preserve(
        self,
        checkpoints: Sequence[StepInfo],
        *,
        context: PreservationContext,
    ) -> Sequence[bool]:
        return [info.step % 2 == 1 for info in checkpoints]


OPTIONS = {
    "newest and a period": (
        ocp.CheckpointManagerOptions(max_to_keep=2, keep_period=3),
        {3: ["every 3"], 5: ["last 2"], 6: ["every 3", "last 2", "newest"]},
    ),
    "best": (
        ocp.CheckpointManagerOptions(
            max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min"
        ),
        {2: ["best 2 by loss"], 6: ["best 2 by loss", "newest"]},
    ),
    "a function of several metrics": (
        ocp.CheckpointManagerOptions(
            max_to_keep=1, best_fn=lambda metrics: -metrics["loss"] - metrics.get("other", 0)
        ),
        {2: ["best 1"], 6: ["newest"]},
    ),
    "a class of the user's": (
        ocp.CheckpointManagerOptions(preservation_policy=Odd()),
        {1: ["policy Odd"], 3: ["policy Odd"], 5: ["policy Odd"], 6: ["newest"]},
    ),
    "everything": (ocp.CheckpointManagerOptions(), dict.fromkeys(LOSSES)),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_the_rules_of_the_run_are_shown(case: str, cli: Run, tmp_path: Path) -> None:
    options, expected = OPTIONS[case]
    train(tmp_path / "run", options)
    assert kept(cli, "run") == expected
    assert ("kept by" in cli("ls", "run").out) is (case != "everything")


def test_given_rules_come_before_those_of_the_run(cli: Run, tmp_path: Path) -> None:
    train(tmp_path / "run", ocp.CheckpointManagerOptions(max_to_keep=2))
    assert kept(cli, "run", "--keep-last", 1) == {5: [], 6: ["last 1", "newest"]}


@pytest.mark.parametrize(
    ("flags", "best"), [((), 2), (("--lowest",), 2), (("--highest",), 1)], ids=str
)
def test_the_best_of_a_loss_is_the_lowest_as_in_a_selector(
    cli: Run, tmp_path: Path, flags: Sequence[str], best: int
) -> None:
    train(tmp_path / "run", ocp.CheckpointManagerOptions())
    found = kept(cli, "run", "--keep-best", 1, "--metric", "loss", *flags)
    assert [step for step, rules in found.items() if "best 1 by loss" in (rules or ())] == [best]
    chosen = cli("tree", "run@best:loss" if best == 2 else "run@max:loss")
    assert f"run/{best} " in chosen.out


def test_a_damaged_record_of_rules_hides_no_step(cli: Run, tmp_path: Path) -> None:
    train(tmp_path / "run", ocp.CheckpointManagerOptions(max_to_keep=2))
    (tmp_path / "run" / "6" / "orbit_retention.json").write_bytes(b"{")
    assert kept(cli, "run") == {5: None, 6: None}
    assert "orbit_retention.json" in cli("verify", "run", status=1).out


def test_orbax_manages_a_run_whose_steps_record_rules(cli: Run, tmp_path: Path) -> None:
    root = tmp_path / "run"
    train(root, ocp.CheckpointManagerOptions(max_to_keep=2, keep_period=3))
    options = orbax.CheckpointManagerOptions(max_to_keep=2)
    with orbax.CheckpointManager(root, options=options) as run:
        assert list(run.all_steps()) == [3, 5, 6]
        restored = run.restore(6, args=orbax.args.StandardRestore({"w": np.zeros(2)}))
        assert restored["w"].tolist() == [1, 1]
        assert run.metrics(5) == {"loss": 0.6}
        run.save(7, args=orbax.args.StandardSave({"w": np.ones(2)}))
    assert kept(cli, "run") == {6: None, 7: None}
    assert sorted(os.listdir(root)) == ["6", "7"]

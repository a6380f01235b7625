# pyright: strict, reportAny=error, reportExplicitAny=error, reportUnknownMemberType=error
"""A training program as its author would type it; type checkers find no `Any` in it.

`nox -s types` checks it, and `assert_type` what each call returns; the tests run it too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, assert_type

import jax
import jax.numpy as jnp

import orbit_ckpt as ocp
from orbit_ckpt.metadata import ArrayMetadata, Metadata, RootMetadata, StepMetadata, TreeMetadata
from orbit_ckpt.reports import CheckpointDiff, LeafPlan, RestorePlan, VerifyReport


class State(NamedTuple):
    """A state of training."""

    kernel: jax.Array
    step: int


def initial() -> State:
    """Return the first state."""
    return State(jnp.ones((4, 2)), 0)


def save_and_load(path: Path) -> None:
    """Use the functions."""
    state = initial()
    assert_type(ocp.save(path / "a", state), None)
    handle = ocp.save_async(path / "b", state, overwrite=True)
    assert_type(handle, ocp.SaveHandle)
    assert_type(handle.result(), None)
    assert_type(handle.step, int | None)

    assert_type(ocp.load(path / "a", like=state), State)
    assert_type(ocp.load(path / "a", state, strict=False), State)
    loaded, report = ocp.load(path / "a", like=state, report=True)
    assert_type(loaded, State)
    assert_type(report, RestorePlan)
    assert_type(loaded.kernel, jax.Array)
    params = {"layer_0": {"kernel": jnp.ones(3)}}
    ocp.save(path / "params", params)
    assert_type(ocp.load(path / "params", like=params), dict[str, dict[str, jax.Array]])


def inspect(path: Path) -> None:
    """Use what describes checkpoints."""
    metadata = ocp.metadata(path / "a")
    assert_type(metadata, TreeMetadata)
    assert_type(metadata.leaves, dict[str, Metadata])
    kernel = metadata.leaves["kernel"]
    assert isinstance(kernel, ArrayMetadata)
    assert_type(kernel.shape, tuple[int, ...])
    assert_type(kernel.nbytes, int)
    assert not isinstance(metadata.tree, Metadata)
    assert metadata.tree is not None
    assert_type(len(metadata.tree), int)

    plan = ocp.plan(path / "a", initial())
    assert_type(plan, RestorePlan)
    assert_type(plan.leaves, tuple[LeafPlan, ...])
    difference = ocp.diff(path / "a", path / "b", values=True)
    assert_type(difference, CheckpointDiff)
    assert_type([change.path for change in difference.changed], list[str])
    assert_type(ocp.verify(path / "a"), VerifyReport)


def train(path: Path) -> None:
    """Use a manager."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(path / "run", options=options) as run:
        assert_type(run, ocp.CheckpointManager)
        state = run.restore_or_init(initial)
        assert_type(state, State)
        for step in range(3):
            assert_type(run.save(step, state, metrics={"loss": 1 / (step + 1)}), bool)
        run.wait_until_finished()
        assert_type(run.all_steps(), list[int])
        assert_type(run.latest_step(), int | None)
        assert_type(run.best_step(), int | None)
        assert_type(run.restore(2, state), State)
        assert_type(run.restore(items=state), State)
        assert_type(run.metadata(2), StepMetadata)
        assert_type(run.metadata(), RootMetadata)
        assert_type(run.metrics(2), Mapping[str, object] | None)
        assert_type(ocp.latest_step(path / "run"), int | None)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "c", state)
        assert_type(checkpointer.restore(path / "c", state), State)


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    save_and_load(directory)
    inspect(directory)
    train(directory)

"""Save the position of a grain iterator with the state, so that no batch is lost or repeated.

Usage: python examples/recipes/grain_iterator.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import grain
import jax
import jax.numpy as jnp
import numpy as np

import orbit_ckpt as ocp


def make_dataset() -> grain.IterDataset:
    """Return batches of numbers, shuffled anew in every epoch."""
    numbers = grain.MapDataset.range(100).seed(7).shuffle().repeat()
    return numbers.batch(8).to_iter_dataset()


def train(run: Path, steps: range) -> list[np.ndarray]:
    """Train from the newest step of a run, if it has one; return the batches that were used."""
    state, data = {"sum": jnp.zeros((), jnp.int32)}, iter(make_dataset())
    batches: list[np.ndarray] = []
    with ocp.CheckpointManager(run) as manager:
        if manager.latest_step() is not None:
            # --8<-- [start:restore]
            items = manager.restore(
                args=ocp.args.Composite(
                    state=ocp.args.StandardRestore(state),
                    data=ocp.args.StatefulRestore(data),  # moves the iterator itself
                )
            )
            # --8<-- [end:restore]
            state = items.state
        for step in steps:
            batches.append(next(data))
            state = {"sum": state["sum"] + batches[-1].sum()}  # the training step
            # --8<-- [start:save]
            manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state),
                    data=ocp.args.StatefulSave(data),  # its position now, not when it is written
                ),
            )
            # --8<-- [end:save]
    return batches


def main() -> None:
    """Compare a run of twenty steps with one that stops after nine."""
    jax.config.update("jax_platforms", "cpu")
    with tempfile.TemporaryDirectory() as directory:
        expected = train(Path(directory, "whole"), range(20))
        first = train(Path(directory, "stopped"), range(9))
        second = train(Path(directory, "stopped"), range(9, 20))
        sums = [ocp.load(Path(directory, run, "19", "state")) for run in ("whole", "stopped")]
    np.testing.assert_array_equal([*first, *second], expected)
    np.testing.assert_array_equal(sums[1]["sum"], sums[0]["sum"])
    print("The run that stopped has seen the same batches, each once.")


if __name__ == "__main__":
    main()

"""Kauldron's checkpointer, which wraps a `CheckpointManager`."""

from pathlib import Path

import flax
import jax
import jax.numpy as jnp
from _report import describe, main
from kauldron import kd
from kauldron.checkpoints import checkpoint_items


@flax.struct.dataclass
class State(checkpoint_items.StandardCheckpointItem):
    step: jax.Array
    params: dict[str, object]
    collections: dict[str, object]


def make_state(fill: float) -> State:
    params = {"dense": {"kernel": jnp.full((4, 4), fill), "bias": jnp.full(4, fill)}}
    return State(jnp.int32(fill), params, {"batch_stats": {"mean": jnp.zeros(4)}})


def make_checkpointer(directory: Path, **options: object) -> kd.ckpts.Checkpointer:
    return kd.ckpts.Checkpointer(workdir=directory, save_interval_steps=2, **options)


def save(directory: Path) -> object:
    checkpointer = make_checkpointer(directory / "run", max_to_keep=2, keep_period=4)
    decisions = []
    for step in range(9):
        decisions.append(checkpointer.should_save(step))
        checkpointer.maybe_save(make_state(step), step=step)
        checkpointer.wait_until_finished()
    checkpointer.save(make_state(9), step=9, force=True)
    checkpointer.wait_until_finished()
    steps = [checkpointer.latest_step, list(checkpointer.all_steps)]
    checkpointer.delete(4)
    names = sorted(path.name for path in (directory / "run" / "checkpoints").iterdir())

    best = make_checkpointer(
        directory / "best",
        max_to_keep=2,
        best_metric_path="eval.accuracy",
        never_save_step_zero=True,
    )
    for step, accuracy in [(2, 0.5), (4, 0.9), (6, 0.7)]:
        best.save(make_state(step), step=step, metrics={"eval": {"accuracy": accuracy}})
    best.wait_until_finished()
    return [decisions, steps, names, best.should_save(0), list(best.all_steps)]


def restore(directory: Path) -> object:
    checkpointer = make_checkpointer(directory / "run")
    results = {
        "newest": describe(checkpointer.restore(make_state(-1.0))),
        "step 8": describe(checkpointer.restore(make_state(-1.0), step=8, donate=False)),
        "best": list(make_checkpointer(directory / "best").all_steps),
    }
    unknown = make_checkpointer(directory / "run")
    item = checkpoint_items.StandardCheckpointItem()
    results["unknown structure"] = describe(unknown.restore(item))
    metadata = make_checkpointer(directory / "run").item_metadata()
    results["metadata"] = {
        jax.tree_util.keystr(path): [list(leaf.shape), str(leaf.dtype)]
        for path, leaf in jax.tree_util.tree_leaves_with_path(metadata["params"])
    }
    absent = make_checkpointer(directory / "absent")
    results["absent"] = describe(absent.restore(make_state(1.0), noop_if_missing=True))
    new = checkpointer.iter_new_checkpoints(timeout=0, timeout_fn=lambda: True)
    results["new steps"] = list(new)
    return results


if __name__ == "__main__":
    main(save, restore)

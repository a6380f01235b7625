"""Flax's own `training.checkpoints` and `orbax_utils`, as in "Save and load checkpoints"."""

from pathlib import Path

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
from _report import describe, main
from flax import linen as nn
from flax.training import checkpoints, orbax_utils, train_state

flax.config.update("flax_use_orbax_checkpointing", True)

CONFIG = {"dimensions": np.array([5, 3]), "name": "dense"}


def make_state(seed: int) -> train_state.TrainState:
    model = nn.Dense(features=3)
    params = model.init(jax.random.key(seed), jnp.ones((4, 5)))["params"]
    tx = optax.adamw(learning_rate=0.001)
    return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=tx)


def make_checkpoint(seed: int) -> dict[str, object]:
    return {"model": make_state(seed), "config": CONFIG, "data": [jnp.arange(4.0) + seed]}


def save(directory: Path) -> object:
    checkpoint = make_checkpoint(0)
    results = {}

    plain = directory / "plain"
    for step in range(4):
        written = checkpoints.save_checkpoint(
            plain, {**checkpoint, "step": step}, step=step, keep=2, keep_every_n_steps=2
        )
        results[f"written {step}"] = Path(written).name
    try:
        checkpoints.save_checkpoint(plain, checkpoint, step=1)
    except ValueError:
        results["save of an older step"] = "refused"
    checkpoints.save_checkpoint(plain, checkpoint, step=2, overwrite=True, keep=3)
    results["steps"] = checkpoints.available_steps(plain)
    results["latest"] = Path(checkpoints.latest_checkpoint(plain) or "").name

    handler = orbax.checkpoint.PyTreeCheckpointHandler()
    asynchronous = orbax.checkpoint.AsyncCheckpointer(handler, timeout_secs=50)
    for step in (1, 2):
        checkpoints.save_checkpoint(
            directory / "asynchronous", checkpoint, step, orbax_checkpointer=asynchronous
        )
    restored = checkpoints.restore_checkpoint(
        directory / "asynchronous", target=None, orbax_checkpointer=asynchronous
    )
    results["asynchronous"] = describe(restored)
    asynchronous.close()

    with_manager = checkpoints.AsyncManager()
    checkpoints.save_checkpoint(
        directory / "manager", checkpoint, step=7, async_manager=with_manager, prefix="run_"
    )
    with_manager.wait_previous_save()
    checkpoints.save_checkpoint_multiprocess(directory / "processes", checkpoint, step=1)

    array = orbax.checkpoint.Checkpointer(orbax.checkpoint.ArrayCheckpointHandler())
    checkpoints.save_checkpoint(directory / "array", np.arange(5), 0, orbax_checkpointer=array)

    checkpointer = orbax.checkpoint.PyTreeCheckpointer()
    save_args = orbax_utils.save_args_from_target(checkpoint)
    checkpointer.save(directory / "single", checkpoint, save_args=save_args)

    options = orbax.checkpoint.CheckpointManagerOptions(max_to_keep=2, create=True)
    manager = orbax.checkpoint.CheckpointManager(directory / "managed", checkpointer, options)
    for step in range(5):
        manager.save(step, checkpoint, save_kwargs={"save_args": save_args})
    results["managed"] = [manager.all_steps(), manager.latest_step()]
    return results


def restore(directory: Path) -> object:
    target = make_checkpoint(1)
    results = {
        "without a target": describe(checkpoints.restore_checkpoint(directory / "plain", None)),
        "into a target": describe(
            checkpoints.restore_checkpoint(directory / "plain", target, step=2)
        ),
        "directory of a step": describe(
            checkpoints.restore_checkpoint(directory / "plain" / "checkpoint_2", target=None)
        ),
        "prefix": describe(
            checkpoints.restore_checkpoint(directory / "manager", target, prefix="run_")
        ),
        "several processes": describe(
            checkpoints.restore_checkpoint(directory / "processes", target)
        ),
        "no run": checkpoints.restore_checkpoint(directory / "absent", target=None),
    }
    fewer = {"data": [jnp.zeros(4)], "config": None}
    results["part of it"] = describe(
        checkpoints.restore_checkpoint(directory / "plain", fewer, step=2, orbax_transforms={})
    )
    array = orbax.checkpoint.Checkpointer(orbax.checkpoint.ArrayCheckpointHandler())
    results["array"] = describe(
        checkpoints.restore_checkpoint(directory / "array", None, orbax_checkpointer=array)
    )

    checkpointer = orbax.checkpoint.PyTreeCheckpointer()
    results["single"] = describe(checkpointer.restore(directory / "single"))
    restore_args = orbax_utils.restore_args_from_target(target)
    results["single into a target"] = describe(
        checkpointer.restore(directory / "single", item=target, restore_args=restore_args)
    )
    manager = orbax.checkpoint.CheckpointManager(directory / "managed", checkpointer)
    results["managed"] = [manager.all_steps(), describe(manager.restore(4))]
    results["managed into a target"] = describe(
        manager.restore(4, items=target, restore_kwargs={"restore_args": restore_args})
    )
    return results


if __name__ == "__main__":
    main(save, restore)

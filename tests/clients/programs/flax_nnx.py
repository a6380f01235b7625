"""Flax NNX, as in "Save and load checkpoints" of its guide."""

from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from _report import describe, main
from flax import nnx

MESH = jax.make_mesh((1,), ("model",))


class TwoLayerMLP(nnx.Module):
    def __init__(self, dim: int, rngs: nnx.Rngs) -> None:
        self.linear1 = nnx.Linear(dim, dim, rngs=rngs, use_bias=False)
        self.linear2 = nnx.Linear(dim, dim, rngs=rngs, use_bias=False)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.linear2(self.dropout(self.linear1(x)))


def create(seed: int) -> TwoLayerMLP:
    return TwoLayerMLP(4, rngs=nnx.Rngs(seed))


def save(directory: Path) -> object:
    root = ocp.test_utils.erase_and_create_empty(directory / "states")
    model = create(0)
    _, state = nnx.split(model)
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(root / "state", state)
    checkpointer.wait_until_finished()
    checkpointer.save(root / "pure_dict", nnx.to_pure_dict(state))
    checkpointer.wait_until_finished()

    runs = ocp.test_utils.erase_and_create_empty(directory / "managed")
    options = ocp.CheckpointManagerOptions(save_interval_steps=2, max_to_keep=2)
    with ocp.CheckpointManager(runs, options=options) as manager:
        saved = [
            manager.save(step, args=ocp.args.StandardSave(nnx.to_pure_dict(state)))
            for step in range(6)
        ]
        manager.wait_until_finished()
        return {"saved": saved, "steps": list(manager.all_steps())}


def restore(directory: Path) -> object:
    checkpointer = ocp.StandardCheckpointer()
    states = directory / "states"
    abstract_model = nnx.eval_shape(lambda: create(0))
    graphdef, abstract_state = nnx.split(abstract_model)
    results = {"abstract": describe(abstract_state)}

    restored = checkpointer.restore(states / "state", abstract_state)
    results["state"] = describe(restored)
    model = nnx.merge(graphdef, restored)
    model.eval()
    results["output"] = describe(model(jnp.ones((1, 4))))

    pure = checkpointer.restore(states / "pure_dict")
    results["pure dict"] = describe(pure)
    nnx.replace_by_pure_dict(abstract_state, nnx.restore_int_paths(pure))
    results["replaced"] = describe(abstract_state)

    sharding = jax.sharding.NamedSharding(MESH, jax.P(None, "model"))
    sharded = jax.tree.map(
        lambda leaf: (
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            if leaf.ndim == 2
            else leaf
        ),
        nnx.eval_shape(lambda: nnx.state(create(0), nnx.Param)),
    )
    handler = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
    restore_args = ocp.checkpoint_utils.construct_restore_args(sharded)
    args = ocp.args.PyTreeRestore(sharded, restore_args=restore_args, partial_restore=True)
    results["sharded parameters"] = describe(handler.restore(states / "state", args=args))

    with ocp.CheckpointManager(directory / "managed") as manager:
        step = manager.latest_step()
        target = nnx.to_pure_dict(nnx.state(abstract_model))
        managed = manager.restore(step, args=ocp.args.StandardRestore(target))
        results["managed"] = [step, describe(managed)]
        kernel = manager.item_metadata(step)["linear1"]["kernel"]
        results["metadata"] = [list(kernel.shape), str(kernel.dtype)]
    return results


if __name__ == "__main__":
    main(save, restore)

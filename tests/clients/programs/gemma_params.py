"""Gemma's `save_params` and `load_params`, and parameters out of a Kauldron run."""

from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from _report import describe, main
from gemma import gm
from kauldron import kd


def make_params(fill: float) -> dict[str, object]:
    return {
        "embedder": {"input_embedding": jnp.full((8, 4), fill, jnp.bfloat16)},
        "layer_0": {
            "attn": {"q_einsum": {"w": jnp.full((2, 4, 2), fill, jnp.bfloat16)}},
            "mlp": {"linear": {"w": jnp.arange(16.0, dtype=jnp.bfloat16).reshape(4, 4)}},
        },
        "final_norm": {"scale": jnp.full(4, fill, jnp.bfloat16)},
    }


def make_flat_params() -> dict[str, object]:
    """Return parameters as the published checkpoints name them."""
    return {
        "transformer/embedder": {"input_embedding": jnp.ones((8, 4), jnp.bfloat16)},
        "transformer/final_norm": {"scale": jnp.ones(4, jnp.bfloat16)},
        "transformer/layer_0/attn/q_einsum": {"w": jnp.ones((2, 4, 2), jnp.bfloat16)},
    }


def save(directory: Path) -> object:
    gm.ckpts.save_params(make_params(1.5), directory / "params", wait_until_finished=True)
    gm.ckpts.save_params(make_flat_params(), directory / "flat", wait_until_finished=True)
    with ocp.CheckpointManager(directory / "kauldron") as manager:
        state = {"params": make_params(2.5), "step": jnp.int32(7), "opt_state": {"mu": jnp.ones(3)}}
        manager.save(7, args=ocp.args.StandardSave(state))
    return sorted(path.name for path in directory.iterdir())


def restore(directory: Path) -> object:
    sharded = kd.sharding.REPLICATED
    return {
        "as saved": describe(gm.ckpts.load_params(directory / "params")),
        "into parameters": describe(
            gm.ckpts.load_params(directory / "params", params=make_params(0.0))
        ),
        "sharded": describe(gm.ckpts.load_params(directory / "params", sharding=sharded)),
        "flat": describe(gm.ckpts.load_params(directory / "flat", text_only=True)),
        "of a Kauldron run": describe(gm.ckpts.load_params(directory / "kauldron" / "7")),
        "devices": jax.device_count(),
    }


if __name__ == "__main__":
    main(save, restore)

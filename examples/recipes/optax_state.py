"""Restore the state of an optax optimizer, also after the optimizer has changed.

Usage: python examples/recipes/optax_state.py
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf

Params = dict[str, jax.Array]

# --8<-- [start:rules]
before = optax.adam(1e-2)
after = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.adam(optax.cosine_decay_schedule(1e-2, 100), mu_dtype=jnp.bfloat16),
    optax.ema(0.99),
)
RULES = [
    # Adam's state, which was the first of two, is now the first of the chain's second
    tf.Rename("opt_state/0/**", r"opt_state/1/0/\1"),
    # a schedule counts steps, a constant learning rate does not: continue at Adam's count
    tf.Copy("opt_state/1/0/count", "opt_state/1/1/count"),
    # new in the chain, therefore as `init` makes it
    tf.Fallback("opt_state/2/**"),
]
# --8<-- [end:rules]


def create(optimizer: optax.GradientTransformation) -> dict[str, Any]:
    """Return the state before the first step."""
    params = {"w": jnp.zeros(4), "b": jnp.zeros(())}
    return {"params": params, "opt_state": optimizer.init(params)}


def train(
    optimizer: optax.GradientTransformation, state: dict[str, Any], steps: int
) -> dict[str, Any]:
    """Return the state after some steps towards the sum of each row."""
    x = jax.random.normal(jax.random.key(1), (32, 4))

    def loss_fn(params: Params) -> jax.Array:
        return jnp.mean((x @ params["w"] + params["b"] - x.sum(axis=1)) ** 2)

    @jax.jit
    def train_step(state: dict[str, Any]) -> dict[str, Any]:
        grads = jax.grad(loss_fn)(state["params"])
        updates, opt_state = optimizer.update(grads, state["opt_state"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}

    for _ in range(steps):
        state = train_step(state)
    return state


def main() -> None:
    """Continue a run with the same optimizer and with another one."""
    state = train(before, create(before), steps=3)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "step_3")
        # --8<-- [start:save]
        ocp.save(path, state)

        # named tuples such as `ScaleByAdamState` come back as such
        same = ocp.load(path, like=jax.eval_shape(partial(create, before)))
        changed = ocp.load(path, like=create(after), transforms=RULES)
        # --8<-- [end:save]

    expected, found = train(before, state, steps=1), train(before, same, steps=1)
    np.testing.assert_array_equal(found["params"]["w"], expected["params"]["w"])

    adam, schedule = changed["opt_state"][1]
    np.testing.assert_array_equal(adam.nu["w"], state["opt_state"][0].nu["w"])
    np.testing.assert_array_equal(adam.mu["w"].dtype, jnp.bfloat16)
    np.testing.assert_array_equal(schedule.count, 3)
    np.testing.assert_array_equal(train(after, changed, steps=1)["opt_state"][1][1].count, 4)
    print("Adam continues as it was, and below gradient clipping and a learning-rate schedule.")


if __name__ == "__main__":
    main()

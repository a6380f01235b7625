"""Save the TrainState of a Flax Linen model, with its batch statistics and random key.

Usage: python examples/recipes/flax_linen.py
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

import orbit_ckpt as ocp


class Model(nn.Module):
    """A perceptron with batch normalization and dropout."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Return one number per row."""
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(16)(x))
        return nn.Dense(1)(nn.Dropout(0.1, deterministic=not train)(nn.relu(x)))


class TrainState(train_state.TrainState):
    """What Flax's state lacks: collections other than the parameters, and the key of dropout.

    Attributes:
        batch_stats: The running averages.
        key: A typed key.
    """

    batch_stats: Any
    key: jax.Array


model, optimizer = Model(), optax.adam(1e-2)


def create(x: jax.Array) -> TrainState:
    """Return the state before the first step."""
    key, init_key = jax.random.split(jax.random.key(0))
    variables = model.init(init_key, x, train=False)
    return TrainState.create(apply_fn=model.apply, tx=optimizer, key=key, **variables)


@jax.jit
def train_step(state: TrainState, x: jax.Array) -> tuple[TrainState, jax.Array]:
    """Take one step towards the sum of each row."""
    key, dropout = jax.random.split(state.key)

    def loss_fn(params: Any) -> tuple[jax.Array, Any]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        apply = partial(state.apply_fn, rngs={"dropout": dropout}, mutable=["batch_stats"])
        y, updates = apply(variables, x, train=True)
        return jnp.mean((y[:, 0] - x.sum(axis=1)) ** 2), updates["batch_stats"]

    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=stats, key=key), loss


def main() -> None:
    """Train, save, restore, and compare the next step of both."""
    x = jax.random.normal(jax.random.key(1), (32, 4))
    state = create(x)
    for _ in range(3):
        state, _ = train_step(state, x)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "step_3")
        # --8<-- [start:save]
        ocp.save(path, state)

        # shapes only; `apply_fn` and `tx`, which are not leaves, come from here
        restored = ocp.load(path, like=jax.eval_shape(create, x))

        # for inference, without Adam's moments
        variables = ocp.load(path, only=["params/**", "batch_stats/**"])
        # --8<-- [end:save]

    np.testing.assert_array_equal(
        jax.jit(partial(model.apply, train=False))(variables, x),
        jax.jit(partial(model.apply, train=False))(
            {"params": state.params, "batch_stats": state.batch_stats}, x
        ),
    )
    (_, expected), (_, found) = train_step(state, x), train_step(restored, x)
    np.testing.assert_array_equal(found, expected)
    print(f"The restored state takes the same step: loss {expected:.4f}.")


if __name__ == "__main__":
    main()

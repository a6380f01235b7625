"""Save the parameters and the state of a Haiku model, which are plain dicts of arrays.

Usage: python examples/recipes/haiku_params.py
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

import orbit_ckpt as ocp


def network(x: jax.Array, *, is_training: bool) -> jax.Array:
    """Return one number per row."""
    x = hk.Linear(16, name="hidden")(x)
    x = hk.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(x, is_training)
    return hk.Linear(1, name="output")(jax.nn.relu(x))


class TrainState(NamedTuple):
    """Everything that the next step depends on."""

    params: hk.Params
    averages: hk.State
    opt_state: optax.OptState


model = hk.without_apply_rng(hk.transform_with_state(network))
optimizer = optax.adam(1e-2)


def create(x: jax.Array) -> TrainState:
    """Return the state before the first step."""
    params, averages = model.init(jax.random.key(0), x, is_training=True)
    return TrainState(params, averages, optimizer.init(params))


@jax.jit
def train_step(state: TrainState, x: jax.Array) -> tuple[TrainState, jax.Array]:
    """Take one step towards the sum of each row."""

    def loss_fn(params: hk.Params) -> tuple[jax.Array, hk.State]:
        y, averages = model.apply(params, state.averages, x, is_training=True)
        return jnp.mean((y[:, 0] - x.sum(axis=1)) ** 2), averages

    (loss, averages), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    updates, opt_state = optimizer.update(grads, state.opt_state)
    params: Any = optax.apply_updates(state.params, updates)
    return TrainState(params, averages, opt_state), loss


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
        restored = ocp.load(path, like=jax.eval_shape(create, x))

        # Haiku's names have slashes; `**` matches them too
        averages = ocp.load(path, only="averages/batch_norm/**")["averages"]
        # --8<-- [end:save]

    apply = jax.jit(partial(model.apply, is_training=False))
    np.testing.assert_array_equal(
        apply(restored.params, averages, x)[0], apply(state.params, state.averages, x)[0]
    )
    (_, expected), (_, found) = train_step(state, x), train_step(restored, x)
    np.testing.assert_array_equal(found, expected)
    print(f"The restored state takes the same step: loss {expected:.4f}.")


if __name__ == "__main__":
    main()

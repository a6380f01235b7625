"""Save an Equinox model and its optimizer state; functions of the model stay in the program.

Usage: python examples/recipes/equinox_module.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

import orbit_ckpt as ocp

optimizer = optax.adam(1e-2)


def create() -> tuple[eqx.nn.MLP, optax.OptState]:
    """Return a new model and the state of its optimizer."""
    model = eqx.nn.MLP(4, 1, width_size=16, depth=2, key=jax.random.key(0))
    return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))


@eqx.filter_jit
def train_step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
    """Take one step towards the sum of each row."""
    model, opt_state = state

    def loss_fn(model: eqx.nn.MLP) -> jax.Array:
        return jnp.mean((jax.vmap(model)(x)[:, 0] - x.sum(axis=1)) ** 2)

    loss, grads = eqx.filter_value_and_grad(loss_fn)(model)
    updates, opt_state = optimizer.update(grads, opt_state)
    return (eqx.apply_updates(model, updates), opt_state), loss


# --8<-- [start:is_array]
def is_array(leaf: object) -> bool:
    """Return whether a leaf is an array or its shape, and not a function."""
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


# --8<-- [end:is_array]


def main() -> None:
    """Train, save, restore, and compare the next step of both."""
    x = jax.random.normal(jax.random.key(1), (32, 4))
    state = create()
    for _ in range(3):
        state, _ = train_step(state, x)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "step_3")
        # --8<-- [start:save]
        ocp.save(path, eqx.filter(state, is_array))

        # shapes only: nothing is computed or allocated for the model that is restored
        target, functions = eqx.partition(eqx.filter_eval_shape(create), is_array)
        restored = eqx.combine(ocp.load(path, like=target), functions)
        # --8<-- [end:save]

    (_, expected), (_, found) = train_step(state, x), train_step(restored, x)
    np.testing.assert_array_equal(found, expected)
    print(f"The restored state takes the same step: loss {expected:.4f}.")


if __name__ == "__main__":
    main()

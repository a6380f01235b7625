"""Save a Flax NNX model and its optimizer, and restore both without initializing them first.

Usage: python examples/recipes/flax_nnx.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import orbit_ckpt as ocp


class Model(nnx.Module):
    """A perceptron with batch normalization and dropout, whose random keys are state too."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(4, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.output = nnx.Linear(16, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return one number per row."""
        return self.output(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


def create() -> dict[str, Any]:
    """Return a new model and its optimizer."""
    model = Model(nnx.Rngs(0))
    return {"model": model, "optimizer": nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)}


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
    """Take one step towards the sum of each row."""

    def loss_fn(model: Model) -> jax.Array:
        return jnp.mean((model(x)[:, 0] - x.sum(axis=1)) ** 2)

    loss, grads = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, grads)
    return loss


def main() -> None:
    """Train, save, restore, and compare the next step of both."""
    x = jax.random.normal(jax.random.key(1), (32, 4))
    training = create()
    for _ in range(3):
        train_step(**training, x=x)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "step_3")
        # --8<-- [start:save]
        ocp.save(path, nnx.state(training))

        # shapes only: nothing is computed or allocated for what is restored
        graph, target = nnx.split(nnx.eval_shape(create))
        restored = nnx.merge(graph, ocp.load(path, like=target))

        # only the parameters, into a model that exists
        model = Model(nnx.Rngs(7))
        params = {"model": nnx.state(model, nnx.Param)}
        nnx.update(model, ocp.load(path, like=params, unexpected="ignore")["model"])
        # --8<-- [end:save]

    np.testing.assert_array_equal(model.output.kernel, training["model"].output.kernel)
    expected, found = train_step(**training, x=x), train_step(**restored, x=x)
    np.testing.assert_array_equal(found, expected)
    print(f"The restored model and optimizer take the same step: loss {expected:.4f}.")


if __name__ == "__main__":
    main()

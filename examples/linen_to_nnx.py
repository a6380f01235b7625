"""Load a checkpoint of a flax.linen model into the same model written with flax.nnx.

A convolutional network with batch normalization and dropout is trained with Linen. Its parameters,
running averages and Adam state are then loaded into an NNX module and optimizer, whose names
differ; seven rules rename them. Both models give the same outputs, bit for bit.

Usage: python examples/linen_to_nnx.py
"""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

import orbit_ckpt as ocp
from orbit_ckpt import transform as tf

CHANNELS, CLASSES = (1, 16, 32), 10
STEPS, BATCH = 20, 32

adam = optax.adam(1e-2)

RULES = [
    # an NNX module keeps the variables of all collections in one tree
    tf.Rename("params/**", r"model/\1"),
    tf.Rename("batch_stats/**", r"model/\1"),
    tf.Rename("opt_state/**", r"optimizer/opt_state/\1"),
    tf.Rename("step", "optimizer/step"),
    # layers are a list, also in the state of Adam
    tf.Rename("**/layers_*/**", r"\1/layers/\2/\3"),
    # a variable is a container with a value
    tf.Rename("**", r"\1/value"),
    # NNX dropout stores its random keys; Linen receives them with each call
    tf.Fallback("model/dropout/rngs/**"),
]


class LinenBlock(nn.Module):
    """A convolution with batch normalization.

    Attributes:
        channels: Number of output channels.
    """

    channels: int

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Return an image of half the size."""
        x = nn.Conv(self.channels, (3, 3), strides=2, name="conv")(x)
        return nn.relu(nn.BatchNorm(use_running_average=not train, name="norm")(x))


class LinenModel(nn.Module):
    """A classifier of images."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """Return the logits of the classes."""
        for i, channels in enumerate(CHANNELS[1:]):
            x = LinenBlock(channels, name=f"layers_{i}")(x, train=train)
        x = x.reshape(len(x), -1)
        x = nn.Dropout(0.2, deterministic=not train, name="dropout")(x)
        return nn.Dense(CLASSES, name="output")(x)


class NnxBlock(nnx.Module):
    """A convolution with batch normalization."""

    def __init__(self, inputs: int, channels: int, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(inputs, channels, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(channels, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return an image of half the size."""
        return nnx.relu(self.norm(self.conv(x)))


class NnxModel(nnx.Module):
    """A classifier of images."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([NnxBlock(*pair, rngs) for pair in pairwise(CHANNELS)])
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.output = nnx.Linear(2 * 2 * CHANNELS[-1], CLASSES, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the logits of the classes."""
        for layer in self.layers:
            x = layer(x)
        return self.output(self.dropout(x.reshape(len(x), -1)))


class LinenState(TrainState):
    """Parameters, Adam state and running averages.

    Attributes:
        batch_stats: The running averages.
    """

    batch_stats: Any


def load_data() -> tuple[jax.Array, jax.Array]:
    """Return the digits that ship with scikit-learn."""
    images, labels = load_digits(return_X_y=True)
    return jnp.asarray(images.reshape(-1, 8, 8, 1) / 16, jnp.float32), jnp.asarray(labels)


def train(images: jax.Array, labels: jax.Array) -> LinenState:
    """Return a trained Linen model."""
    model = LinenModel()
    variables = model.init(jax.random.key(0), images[:1], train=False)
    state = LinenState.create(apply_fn=model.apply, tx=adam, **variables)

    @jax.jit
    def train_step(
        state: LinenState, key: jax.Array, images: jax.Array, labels: jax.Array
    ) -> LinenState:
        def loss_fn(params: Any) -> tuple[jax.Array, Any]:
            logits, updates = model.apply(
                {"params": params, "batch_stats": state.batch_stats},
                images,
                train=True,
                rngs={"dropout": key},
                mutable=["batch_stats"],
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return losses.mean(), updates["batch_stats"]

        grads, batch_stats = jax.grad(loss_fn, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=batch_stats)

    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        state = train_step(state, jax.random.key(step), images[batch], labels[batch])
    return state


def check_same(what: str, found: object, expected: object) -> None:
    """Exit with an error unless the arrays of two trees are identical, bit for bit."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
    for one, other in pairs:
        if one.shape != other.shape or np.asarray(one).tobytes() != np.asarray(other).tobytes():
            sys.exit(f"{what}: they differ.")
    print(f"{what}: {len(pairs)} arrays are identical, bit for bit.")


def check_outputs(trained: LinenState, model: NnxModel, images: jax.Array) -> None:
    """Compare the logits, computed operation by operation and compiled as a whole."""

    def linen(variables: Any, images: jax.Array) -> jax.Array:
        return trained.apply_fn(variables, images, train=False)

    variables = {"params": trained.params, "batch_stats": trained.batch_stats}
    model.eval()  # no dropout, and the running averages
    with jax.disable_jit():
        found, expected = [model(images)], [linen(variables, images)]
    found.append(nnx.jit(NnxModel.__call__)(model, images))
    expected.append(jax.jit(linen)(variables, images))
    check_same("Outputs", found, expected)


def main() -> None:
    """Train with Linen, save, load into NNX, compare."""
    jax.config.update("jax_platforms", "cpu")
    images, labels = load_data()
    trained = train(images, labels)
    model = NnxModel(nnx.Rngs(1))
    optimizer = nnx.Optimizer(model, adam, wrt=nnx.Param)

    with tempfile.TemporaryDirectory() as directory:
        ocp.save(Path(directory, "linen"), trained)
        target = {"model": nnx.state(model), "optimizer": nnx.state(optimizer)}
        loaded = ocp.load(Path(directory, "linen"), like=target, transforms=RULES)
    nnx.update(model, loaded["model"])
    nnx.update(optimizer, loaded["optimizer"])

    check_same("Parameters", nnx.state(model, nnx.Param), trained.params)
    check_same("Running averages", nnx.state(model, nnx.BatchStat), trained.batch_stats)
    check_same("State of Adam", nnx.state(optimizer)["opt_state"], trained.opt_state)
    check_outputs(trained, model, images)
    right = jnp.mean(model(images).argmax(-1) == labels)
    print(f"The loaded model classifies {right:.0%} of the digits correctly.")


if __name__ == "__main__":
    main()

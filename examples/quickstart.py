"""Train a digit classifier, kill it, resume it, and compare it with an uninterrupted run.

Usage: python examples/quickstart.py
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import orbit_ckpt as ocp

EPOCHS = 6
BATCH = 32
KILLED_IN_EPOCH = 4

optimizer = optax.adam(1e-3)


class TrainState(NamedTuple):
    """Everything the next epoch depends on."""

    params: optax.Params
    opt_state: optax.OptState
    epoch: int  # a Python int comes back as a Python int
    key: jax.Array  # a typed key, which shuffles the data
    losses: jax.Array  # one row per epoch, one column per step


def load_data() -> tuple[jax.Array, jax.Array]:
    """Return the digits that ship with scikit-learn, in whole batches."""
    images, labels = load_digits(return_X_y=True)
    count = len(images) // BATCH * BATCH
    return jnp.asarray(images[:count] / 16, jnp.float32), jnp.asarray(labels[:count])


def initial_state(steps: int) -> TrainState:
    """Return the state before the first epoch, with room for `steps` losses per epoch."""
    key, hidden, output = jax.random.split(jax.random.key(0), 3)
    params = {
        "hidden": jax.random.normal(hidden, (64, 128)) / 8,
        "hidden_bias": jnp.zeros(128),
        "output": jax.random.normal(output, (128, 10)) / 11,
        "output_bias": jnp.zeros(10),
    }
    losses = jnp.full((EPOCHS, steps), jnp.nan)
    return TrainState(params, optimizer.init(params), epoch=0, key=key, losses=losses)


def loss_fn(params: dict[str, jax.Array], images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of a two-layer perceptron."""
    hidden = jax.nn.relu(images @ params["hidden"] + params["hidden_bias"])
    logits = hidden @ params["output"] + params["output_bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


@jax.jit
def train_epoch(state: TrainState, images: jax.Array, labels: jax.Array) -> TrainState:
    """Go through the data once, shuffled with the state's key."""

    def train_step(carry, batch):
        params, opt_state = carry
        loss, grads = jax.value_and_grad(loss_fn)(params, images[batch], labels[batch])
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    key, order_key = jax.random.split(state.key)
    order = jax.random.permutation(order_key, len(images)).reshape(-1, BATCH)
    (params, opt_state), losses = jax.lax.scan(train_step, (state.params, state.opt_state), order)
    losses = state.losses.at[state.epoch].set(losses)
    return TrainState(params, opt_state, state.epoch, key, losses)


def newest_checkpoint(run: Path) -> Path | None:
    """Return the newest complete checkpoint of a run.

    A save gets its final name when it is complete. Leftovers of a crash have longer names.
    """
    return max(run.glob("epoch_????"), default=None)


def train(run: Path, killed_in_epoch: int = 0) -> None:
    """Train to the last epoch, starting from the newest checkpoint of `run` if one exists."""
    images, labels = load_data()
    state = initial_state(len(images) // BATCH)
    if checkpoint := newest_checkpoint(run):
        state = ocp.load(checkpoint, like=state)
        print(f"  resumed from {checkpoint.name}")
    while state.epoch < EPOCHS:
        state = train_epoch(state, images, labels)._replace(epoch=state.epoch + 1)
        print(f"  epoch {state.epoch}: loss {state.losses[state.epoch - 1].mean():.4f}", flush=True)
        if state.epoch == killed_in_epoch:
            os.kill(os.getpid(), signal.SIGKILL)  # before this epoch is saved
        ocp.save(run / f"epoch_{state.epoch:04}", state)


def train_and_be_killed(run: Path) -> None:
    """Run `train` in its own process, which ends in the middle of the run."""
    command = [sys.executable, __file__, str(run)]
    status = subprocess.run(command, check=False).returncode
    if status != -signal.SIGKILL:
        sys.exit(f"training ended with status {status}")


def print_tree(checkpoint: Path) -> None:
    """Print the leaves of a checkpoint without reading arrays."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(ocp.metadata(checkpoint).tree):
        size = math.prod(leaf.shape) * leaf.dtype.itemsize
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        print(f"  {name:28} {leaf.shape!s:12} {leaf.dtype!s:10} {size:7,} B")


def main() -> None:
    """Train once with and once without an interruption, and compare every loss."""
    with tempfile.TemporaryDirectory() as directory:
        reference, killed = Path(directory, "reference"), Path(directory, "killed")
        print(f"A run that is killed in epoch {KILLED_IN_EPOCH}:")
        train_and_be_killed(killed)
        print("Resumed in another process:")
        train(killed)
        print("The same run, uninterrupted:")
        train(reference)

        # Even without `like`, built-in containers and named tuples keep their structure.
        last = f"epoch_{EPOCHS:04}"
        expected, resumed = (np.asarray(ocp.load(run / last).losses) for run in (reference, killed))
        print("Last loss of each epoch, uninterrupted and resumed:")
        for one, other in zip(expected[:, -1], resumed[:, -1], strict=True):
            print(f"  {float(one).hex():22} {float(other).hex()}")
        if expected.tobytes() != resumed.tobytes():
            sys.exit("the resumed run differs from the uninterrupted one")
        print(f"All {expected.size} losses are equal, bit for bit. Leaves of the last checkpoint:")
        print_tree(killed / last)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        train(Path(sys.argv[1]), KILLED_IN_EPOCH)
    else:
        main()

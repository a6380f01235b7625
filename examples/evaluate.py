"""Train in one process, and evaluate the checkpoints in another during training.

Usage: python examples/evaluate.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

import orbit_ckpt as ocp
from orbit_ckpt.checkpoint_utils import checkpoints_iterator

STEPS = 2000
SAVE_EVERY = 200


def make_data(seed: int, count: int) -> tuple[jax.Array, jax.Array]:
    """Return points of a line in eight dimensions, with some noise."""
    inputs, noise = jax.random.split(jax.random.key(seed))
    x = jax.random.normal(inputs, (count, 8))
    return x, x @ jnp.arange(8.0) + 3 + jax.random.normal(noise, (count,)) / 10


def loss_fn(params: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean squared error."""
    return jnp.mean((x @ params["weights"] + params["bias"] - y) ** 2)


def train(run: Path) -> None:
    """Fit the line, and save every `SAVE_EVERY` steps."""
    x, y = make_data(seed=0, count=1024)
    params = {"weights": jnp.zeros(8), "bias": jnp.zeros(())}
    gradient = jax.jit(jax.grad(loss_fn))
    for step in range(1, STEPS + 1):
        grads = gradient(params, x, y)
        params = jax.tree.map(lambda value, grad: value - 0.002 * grad, params, grads)
        if step % SAVE_EVERY == 0:
            ocp.save(run / f"step_{step}", params)


def evaluate(run: Path, training_is_over: Callable[[], bool]) -> dict[int, float]:
    """Return the error on held-out data by step."""
    x, y = make_data(seed=1, count=256)
    errors: dict[int, float] = {}
    for step in checkpoints_iterator(
        run,
        step_prefix="step",
        seconds_to_sleep=0.1,
        timeout=1,
        timeout_fn=training_is_over,
    ):
        params = ocp.load(run / f"step_{step}")
        errors[step] = float(loss_fn(params, x, y))
        print(f"  step {step}: error {errors[step]:.4f}", flush=True)
    return errors


def main() -> None:
    """Start a training run and evaluate its checkpoints until it finishes."""
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory, "run")
        with subprocess.Popen([sys.executable, __file__, run]) as trainer:
            print("Evaluated during training:")
            errors = evaluate(run, lambda: trainer.poll() is not None)
        if trainer.returncode:
            sys.exit(f"training ended with status {trainer.returncode}")
        if max(errors, default=0) != STEPS:
            sys.exit("the last checkpoint was not evaluated")
        if errors[STEPS] > 0.02:
            sys.exit(f"training did not converge: the error is {errors[STEPS]}")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        train(Path(sys.argv[1]))
    else:
        main()

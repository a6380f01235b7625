"""A training loop that survives preemption and crashes.

One manager saves the state, the position of the data and the metrics. It keeps the newest, the best
and every hundredth step, and saves immediately when a SIGTERM announces the end of the job.

Usage:
    python examples/train_loop.py RUN   trains, or resumes RUN
    python examples/train_loop.py       stops a training run twice, resumes it, and compares it, bit
                                        for bit, with an uninterrupted run
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

import orbit_ckpt as ocp
from orbit_ckpt import policies

STEPS = 300
BATCH = 32

optimizer = optax.adamw(3e-3)


class TrainState(NamedTuple):
    """Everything except the data that the next step depends on."""

    params: optax.Params
    opt_state: optax.OptState
    key: jax.Array


def make_dataset() -> grain.IterDataset:
    """Return batches of noisy points of a curve, shuffled with a fixed seed."""

    def example(index: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(index)
        x = rng.uniform(-3, 3, size=1).astype(np.float32)
        noise = rng.normal(scale=0.1, size=1).astype(np.float32)
        return {"x": x, "y": np.sin(x) + noise}

    points = grain.MapDataset.range(4096).shuffle(seed=0).map(example)
    return points.repeat().batch(BATCH).to_iter_dataset()


def initial_state() -> TrainState:
    """Return the state before the first step."""
    key, hidden, output = jax.random.split(jax.random.key(0), 3)
    params = {
        "hidden": jax.random.normal(hidden, (1, 64)),
        "bias": jnp.zeros(64),
        "output": jax.random.normal(output, (64, 1)) / 8,
    }
    return TrainState(params, optimizer.init(params), key)


@jax.jit
def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    """Take one step, with dropout on the hidden units."""
    key, dropout = jax.random.split(state.key)
    mask = jax.random.bernoulli(dropout, 0.9, (x.shape[0], 64)) / 0.9

    def loss_fn(params: dict[str, jax.Array]) -> jax.Array:
        hidden = jnp.tanh(x @ params["hidden"] + params["bias"]) * mask
        return jnp.mean((hidden @ params["output"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(state.params)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    return TrainState(optax.apply_updates(state.params, updates), opt_state, key), loss


def open_run(directory: Path) -> ocp.CheckpointManager:
    """Return the manager, which decides when to save and which steps to keep."""
    return ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            save_decision_policy=policies.AnySavePolicy(
                [
                    policies.FixedIntervalPolicy(20),
                    policies.PreemptionCheckpointingPolicy(),
                    # in between, as often as 1 % of the training time allows
                    policies.TemporaryPolicy(policies.BoundedOverheadPolicy(0.01)),
                ]
            ),
            preservation_policy=policies.AnyPreservationPolicy(
                [
                    policies.LatestN(2),
                    policies.EveryNSteps(100),
                    policies.BestN(get_metric_fn=lambda m: m["loss"], reverse=True, n=1),
                ]
            ),
        ),
    )


def train(directory: Path) -> TrainState:
    """Train for `STEPS` steps, resuming from the newest intact step."""
    state, data, first = initial_state(), iter(make_dataset()), 0
    with open_run(directory) as run:
        run.install_signal_handler(signal.SIGTERM, deadline=timedelta(seconds=30))
        if run.latest_step() is not None:
            wanted = ocp.args.Composite(
                state=ocp.args.StandardRestore(state), data=ocp.args.StatefulRestore(data)
            )
            restored = run.restore(args=wanted, fallback=True)  # the newest intact step
            state = restored.state
            first = max(run.all_steps()) + 1
            print(f"resuming at step {first}", flush=True)
        for step in range(first, STEPS):
            batch = next(data)
            state, loss = train_step(state, batch["x"], batch["y"])
            items = ocp.args.Composite(
                state=ocp.args.StandardSave(state), data=ocp.args.StatefulSave(data)
            )
            run.save(step, args=items, metrics={"loss": loss}, force=step == STEPS - 1)
            if run.reached_preemption(step):
                print(f"stopped after step {step}", flush=True)
                sys.exit(0)
    return state


def main() -> None:
    """Train a given run, or run the comparison."""
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        expected = train(Path(scratch) / "uninterrupted")
        run = Path(scratch) / "run"
        for number, stop in [(signal.SIGTERM, 30), (signal.SIGKILL, 130)]:
            job = subprocess.Popen([sys.executable, __file__, str(run)])
            wait_for_step(run, stop, job)
            job.send_signal(number)
            job.wait()
        resumed = train(run)
        print("kept:", *open_run(run).all_steps())
        same: Any = jax.tree.map(
            lambda a, b: (
                np.array_equal(jax.random.key_data(a), jax.random.key_data(b))
                if jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
                else np.array_equal(a, b)
            ),
            expected,
            resumed,
        )
        if not all(jax.tree.leaves(same)):
            sys.exit("The resumed run differs from the uninterrupted one.")
        print("The resumed run ends in the same state, bit for bit.")


def wait_for_step(run: Path, step: int, job: subprocess.Popen[bytes]) -> None:
    """Wait until a job has saved the given step or a later one."""
    options = ocp.CheckpointManagerOptions(read_only=True)
    while job.poll() is None:
        if run.is_dir():
            latest = ocp.CheckpointManager(run, options=options).latest_step()
            if latest is not None and latest >= step:
                return
        time.sleep(0.02)
    sys.exit(f"The training ended with status {job.returncode} before step {step}.")


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()

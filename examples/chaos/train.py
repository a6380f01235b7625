"""A training script that may be killed at any moment and resumes when it is started again.

Trains in the working directory and prints the final loss. `test_train.py` proves that a crash at
any storage operation does not change it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import orbit_ckpt as ocp

STEPS = 6
EXAMPLES = 40


class Batches:
    """Random batches; its state is a random generator's."""

    def __init__(self) -> None:
        self._inputs = np.random.default_rng(0).standard_normal((EXAMPLES, 4), np.float32)
        self._rng = np.random.default_rng(1)

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        chosen = self._inputs[self._rng.integers(EXAMPLES, size=8)]
        return chosen, chosen @ np.arange(4, dtype=np.float32)

    def get_state(self) -> dict[str, object]:
        """Return what `set_state` takes."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, object]) -> None:
        """Go on where the state was taken."""
        self._rng.bit_generator.state = state


@jax.jit
def train_step(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Take one step of gradient descent."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * gradient, loss


def main() -> None:
    """Train, from the last step that was saved."""
    w, batches, first = jnp.zeros(4), Batches(), 0
    options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=2)
    with ocp.CheckpointManager("run", options=options) as run:
        latest = run.latest_step()
        if latest is not None:
            wanted = ocp.args.Composite(
                state=ocp.args.StandardRestore({"w": w}), data=ocp.args.StatefulRestore(batches)
            )
            w = run.restore(latest, args=wanted).state["w"]
            first = latest + 1
        for step in range(first, STEPS):
            w, _ = train_step(w, *next(batches))
            items = ocp.args.Composite(
                state=ocp.args.StandardSave({"w": w}), data=ocp.args.StatefulSave(batches)
            )
            run.save(step, args=items)
    print("final weights:", np.asarray(w).tolist())


if __name__ == "__main__":
    main()

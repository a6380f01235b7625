"""RecML's trainer, which saves its state with a manager and resumes from the newest step."""

import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import clu.metrics as clu_metrics
import jax
import optax
import orbax.checkpoint as ocp
import tensorflow as tf
from _report import describe, main
from flax import linen as nn
from flax.training.train_state import TrainState
from recml.core.training import core
from recml.core.training import jax as recml


class Task(recml.JaxTask):
    """Fit a line."""

    def create_datasets(self) -> tuple[tf.data.Dataset, tf.data.Dataset]:
        numbers = tf.data.Dataset.range(64).map(lambda x: tf.reshape(tf.cast(x, tf.float32), [1]))
        points = numbers.map(lambda x: (x / 64, x / 640 + 3)).batch(4)
        return points, points

    def create_state(self, batch: object, rng: jax.Array) -> TrainState:
        model = nn.Dense(1)
        params = model.init(rng, batch[0])
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(0.1))

    def train_step(
        self,
        batch: object,
        state: TrainState,
        rng: jax.Array,  # noqa: ARG002 - RecML's signature
    ) -> tuple[TrainState, dict[str, object]]:
        def loss_of(params: object) -> jax.Array:
            return ((state.apply_fn(params, batch[0]) - batch[1]) ** 2).mean()

        loss, gradients = jax.value_and_grad(loss_of)(state.params)
        metrics = {"loss": clu_metrics.Average.from_model_output(loss)}
        return state.apply_gradients(grads=gradients), metrics

    def eval_step(self, batch: object, state: TrainState) -> dict[str, object]:
        loss = ((state.apply_fn(state.params, batch[0]) - batch[1]) ** 2).mean()
        return {"loss": clu_metrics.Average.from_model_output(loss)}


def run(directory: Path, mode: str, train_steps: int) -> dict[str, float]:
    trainer = recml.JaxTrainer(
        train_steps=train_steps,
        steps_per_eval=3,
        steps_per_loop=4,
        max_checkpoints_to_keep=2,
        model_dir=str(directory),
        continuous_eval_timeout=5,
    )
    logs = core.run_experiment(core.Experiment(Task(), trainer), mode)
    return {name: float(values["loss"]) for name, values in sorted(logs.items())}


def steps_of(directory: Path) -> list[int]:
    return sorted(ocp.utils.checkpoint_steps(directory / core.CHECKPOINT_DIR))


def save(directory: Path) -> object:
    modes = core.Experiment.Mode
    first = run(directory, modes.TRAIN, 12), steps_of(directory)
    second = run(directory, modes.TRAIN_AND_EVAL, 20), steps_of(directory)
    return [first, second]


def restore(directory: Path) -> object:
    evaluated = run(directory, core.Experiment.Mode.CONTINUOUS_EVAL, 20)
    with ocp.CheckpointManager(directory / core.CHECKPOINT_DIR) as manager:
        step = manager.latest_step()
        name = core.STATE_CHECKPOINT_KEY
        args = ocp.args.Composite(**{name: ocp.args.StandardRestore()})
        return [evaluated, step, describe(manager.restore(step, args=args)[name])]


if __name__ == "__main__":
    main(save, restore)

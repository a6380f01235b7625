"""Tunix' checkpoint manager of fine-tuning, and the trainer that saves with it and resumes."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from _report import describe, main
from flax import nnx
from tunix.sft import peft_trainer
from tunix.sft.checkpoint_manager import CheckpointManager


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.base = nnx.Linear(4, 4, rngs=rngs)
        self.lora = nnx.LoRA(4, 2, 4, rngs=rngs, dtype=jnp.bfloat16)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.base(x) + self.lora(x)


def make(seed: int) -> tuple[Model, nnx.Optimizer]:
    model = Model(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


def train(directory: Path, max_steps: int) -> dict[str, object]:
    """Train; at its end, the trainer saves the last step unless the manager lists it."""
    config = peft_trainer.TrainingConfig(
        eval_every_n_steps=100,
        max_steps=max_steps,
        checkpoint_root_directory=str(directory),
        checkpointing_options=ocp.CheckpointManagerOptions(save_interval_steps=2, max_to_keep=3),
    )
    model = Model(nnx.Rngs(0))
    trainer = peft_trainer.PeftTrainer(model, optax.sgd(1e-3), config)
    trainer.with_gen_model_input_fn(lambda batch: {"x": batch.input_tokens})
    trainer.with_loss_fn(lambda model, x: (model(x) ** 2).mean())
    inputs = [np.full((2, 4), number, np.float32) for number in range(10)]
    trainer.train([peft_trainer.TrainingInput(batch, np.ones((2, 4))) for batch in inputs])
    steps = sorted(path.name for path in directory.iterdir() if path.name.isdigit())
    return {"steps": steps, "state": describe(nnx.state(model))}


def save(directory: Path) -> object:
    options = ocp.CheckpointManagerOptions(
        save_decision_policy=ocp.checkpoint_managers.FixedIntervalPolicy(2), max_to_keep=2
    )
    model, optimizer = make(0)
    manager = CheckpointManager(str(directory / "full"), options)
    saved = []
    for step in range(1, 6):
        loss, gradients = nnx.value_and_grad(lambda m: (m(jnp.ones((1, 4))) ** 2).mean())(model)
        optimizer.update(model, gradients)
        custom = {"loss": float(loss), "step": step}
        saved.append(manager.save(step, model, optimizer, custom_metadata=custom))
    saved.append(manager.save(7, model, optimizer, force=True))
    manager.close()
    latest = manager.latest_step()

    manager = CheckpointManager(str(directory / "lora"))
    saved.append(manager.save(1, model, save_only_lora_params=True))
    manager.close()
    steps = sorted(path.name for path in (directory / "full").iterdir() if path.name.isdigit())
    trained = train(directory / "trainer", 5), train(directory / "even", 4)
    return {"saved": saved, "latest": latest, "steps": steps, "trained": trained}


def restore(directory: Path) -> object:
    results = {}
    for step in (None, 4):
        model, optimizer = make(1)
        manager = CheckpointManager(str(directory / "full"))
        found = manager.maybe_restore(model, optimizer, step)
        states = nnx.state(model), nnx.state(optimizer)
        results[f"step {step}"] = [found, describe(states)]
        manager.close()
    model, _ = make(1)
    manager = CheckpointManager(str(directory / "lora"))
    found = manager.maybe_restore(model, restore_only_lora_params=True)
    results["lora"] = [found, describe(nnx.state(model))]
    manager.close()
    manager = CheckpointManager(str(directory / "absent"))
    results["absent"] = manager.maybe_restore(model)
    manager.close()
    resumed = shutil.copytree(directory / "trainer", directory / "resumed", dirs_exist_ok=True)
    results["resumed"] = train(resumed, 9)
    shutil.rmtree(resumed)
    return results


if __name__ == "__main__":
    main(save, restore)

"""Checkpoint code of trainers that use the v1 API: fine-tuning, pre-training, callbacks."""

import dataclasses
import datetime as dt

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Model(nnx.Module):
    def __init__(self, rngs):
        self.base = nnx.Linear(4, 4, rngs=rngs)
        self.lora = nnx.LoRA(4, 2, 4, rngs=rngs)

    def __call__(self, x):
        return self.base(x) + self.lora(x)


def parts(seed):
    model = Model(nnx.Rngs(seed))
    return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


def trained(seed, steps):
    model, optimizer = parts(seed)
    for _ in range(steps):
        gradients = nnx.grad(lambda m: (m(jnp.ones((1, 4))) ** 2).mean())(model)
        optimizer.update(model, gradients)
    return model, optimizer


def context_of_flags(ocp, *, partial_load=False):
    context = ocp.v1.Context()
    context.array.saving.use_ocdbt = True
    context.array.saving.use_zarr3 = True
    context.array.saving.ocdbt_target_data_file_size = 2**21
    context.array.saving.storage_options.chunk_byte_size = 2**21
    context.memory.write_concurrent_bytes = 10**9
    context.memory.read_concurrent_bytes = 10**9
    context.asynchronous.timeout_secs = int(dt.timedelta(minutes=60).total_seconds())
    context.pathways.checkpointing_impl = ocp.pathways.CheckpointingImpl.NO_DISPATCHER
    context.pytree.loading.partial_load = partial_load
    return context


def flags_of_a_context(ocp, path):
    context = context_of_flags(ocp, partial_load=True)
    saving, memory = context.array.saving, context.memory
    return (
        saving.use_ocdbt,
        saving.storage_options.chunk_byte_size,
        memory.read_concurrent_bytes,
        context.asynchronous.timeout_secs,
        context.pytree.loading.partial_load,
        context.array_options.saving.use_zarr3,
        context.memory_options.write_concurrent_bytes,
        context.async_options.timeout_secs,
        context.pytree_options.loading.partial_load,
        context.deletion.gcs_deletion_options.todelete_full_path,
    )


def implementation_of_pathways(ocp, path):
    kinds = ocp.pathways.CheckpointingImpl
    context = ocp.v1.Context()
    context.pathways_options.checkpointing_impl = kinds.from_options(
        use_persistence_array_handler=False
    )
    ocp.v1.save(path / "step", {"w": jnp.ones(2)})
    return ocp.v1.load(path / "step")


def fine_tuning(ocp, path):
    training = ocp.v1.training
    model, optimizer = trained(0, 2)
    context = ocp.v1.Context()
    context.asynchronous.timeout_secs = 1200
    run = training.Checkpointer(
        path / "run",
        context=context,
        save_decision_policy=training.save_decision_policies.ContinuousCheckpointingPolicy(
            minimum_interval_secs=180
        ),
        preservation_policy=training.preservation_policies.LatestN(n=3),
        step_name_format=ocp.v1.path.step.standard_name_format(),
    )
    response = run.save_checkpointables_async(
        1,
        {
            "model_params": nnx.state(model),
            "optimizer_state": nnx.state(optimizer, nnx.optimizer.OptState),
        },
        force=True,
        custom_metadata={"step": 1},
    )
    assert response is not None
    run.close()

    run = training.Checkpointer(path / "run", context=context)
    other, other_optimizer = parts(1)
    metadata = run.checkpointables_metadata(run.latest.step)
    assert "optimizer_state" in metadata.metadata
    optimizer_state = nnx.state(other_optimizer, nnx.optimizer.OptState)
    found = run.load_checkpointables(
        run.latest.step,
        {"model_params": nnx.state(other), "optimizer_state": optimizer_state},
    )
    nnx.update(other, found["model_params"])
    nnx.update(other_optimizer, found["optimizer_state"])
    run.close()
    equal = jax.tree.map(np.array_equal, nnx.state(model), nnx.state(other))
    return metadata.custom_metadata, jax.tree.leaves(equal), nnx.to_pure_dict(nnx.state(other))


def adapters_only(ocp, path):
    model, _ = trained(0, 2)
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save_checkpointables(0, {"model_params": nnx.state(model)})
        other, _ = parts(1)
        abstract = {"model_params": nnx.state(other, nnx.LoRAParam)}
        context = ocp.v1.Context()
        context.pytree.loading.partial_load = True
        with context:
            found = run.load_checkpointables(0, abstract)
    nnx.update(other, found["model_params"])
    return nnx.to_pure_dict(nnx.state(other, nnx.LoRAParam))


def all_parameters_of_adapters(ocp, path):
    model, _ = parts(0)
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save_checkpointables(0, {"model_params": nnx.state(model, nnx.LoRAParam)})
        try:
            run.load_checkpointables(0, {"model_params": nnx.state(model)})
        except KeyError:
            return "KeyError"
        except ValueError:
            return "ValueError"
    return "loaded"


def optimizer_on_a_mesh(ocp, path):
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    params = {"w": jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, PartitionSpec("data")))}
    state = optax.adam(1e-2).init(params)
    ocp.v1.save_checkpointables(path / "step", {"params": params, "opt": state})
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf.sharding if leaf.ndim else replicated
        ),
        state,
    )
    return ocp.v1.load_checkpointables(path / "step", {"opt": abstract})


def pre_training(ocp, path):
    training = ocp.v1.training
    policies = training.save_decision_policies

    def open_run():
        return training.Checkpointer(
            path / "run",
            context=context_of_flags(ocp, partial_load=True),
            save_decision_policy=policies.AnySavePolicy(
                [policies.PreemptionCheckpointingPolicy(), policies.FixedIntervalPolicy(2)]
            ),
            preservation_policy=training.preservation_policies.LatestN(2),
        )

    run = open_run()
    saved = []
    for step in range(5):
        state = {"params": {"w": jnp.full(4, float(step))}, "step": jnp.int32(step)}
        response = run.save_checkpointables_async(
            step, {"items": state}, force=False, custom_metadata={"scan_layers": True}
        )
        saved.append(response is not None)
    run.wait()
    try:
        run.save_checkpointables(4, {"items": state})
    except FileExistsError:
        saved.append("exists")
    latest = run.latest.step
    run.close()

    run = open_run()
    abstract = {"params": {"w": jax.ShapeDtypeStruct((4,), jnp.float32)}}
    found = run.load(latest, abstract, checkpointable_name="items")
    step = run.directory / str(latest)
    run.close()
    with context_of_flags(ocp, partial_load=True):
        params = ocp.v1.load(step, abstract, checkpointable_name="items")
    custom = ocp.v1.checkpointables_metadata(step).custom_metadata
    return saved, latest, found, params, custom, (step / "items").exists()


def step_in_progress_saved_again(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        response = run.save_async(1, {"w": np.ones((2048, 2048))})
        outcomes = []
        for options in ({}, {"force": True}):
            try:
                outcomes.append(run.save_async(1, {"w": np.ones(2)}, **options))
            except FileExistsError:
                outcomes.append("exists")
        response.result()
        return outcomes


def parameters_of_a_flat_checkpoint(ocp, path):
    with ocp.PyTreeCheckpointer() as checkpointer:
        checkpointer.save(path / "flat", {"params": {"w": jnp.ones(3)}, "opt": jnp.zeros(2)})
    abstract = {"params": {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}}
    with context_of_flags(ocp, partial_load=True):
        return ocp.v1.load(path / "flat", abstract, checkpointable_name=None)


def parameters_for_decoding(ocp, path):
    with context_of_flags(ocp):
        for value in (1.0, 2.0):
            ocp.v1.save(
                path / "params",
                {"params": {"w": jnp.full(3, value)}},
                checkpointable_name="items",
                overwrite=True,
            )
    return ocp.v1.load(path / "params", checkpointable_name="items"), ocp.v1.load(path / "params")


def options_in_a_dataclass(ocp, path):
    training = ocp.v1.training

    @dataclasses.dataclass(frozen=True)
    class Options:
        save: object
        keep: object
        names: object

    options = Options(
        training.save_decision_policies.FixedIntervalPolicy(interval=1),
        training.preservation_policies.LatestN(n=1),
        ocp.v1.path.step.standard_name_format(step_prefix="s"),
    )
    with training.Checkpointer(
        str(path / "run"),
        save_decision_policy=options.save,
        preservation_policy=options.keep,
        step_name_format=options.names,
    ) as run:
        for step in range(3):
            run.save(step, {"a": step})
        return [one.path.name for one in run.checkpoints]


def newest_step_during_its_save(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save(0, {"w": np.ones(2)})
        run.save_async(1, {"w": np.ones((2048, 2048))}, force=True)
        found = run.latest.step, [one.step for one in run.checkpoints]
        run.wait()
        return found, run.latest.step, run.latest.path.name


def last_step_of_a_trainer(ocp, path):
    """Save by an interval, then the last step unless it is the newest."""
    policy = ocp.v1.training.save_decision_policies.FixedIntervalPolicy(2)
    with ocp.v1.training.Checkpointer(path / "run", save_decision_policy=policy) as run:
        for step in range(5):
            run.save_async(step, {"w": np.full((512, 512), step)})
        if run.latest is None or run.latest.step != 4:
            run.save(4, {"w": np.zeros(1)}, force=True)
        run.wait()
        return [one.step for one in run.checkpoints], run.load()["w"].shape


def callback_at_the_end_of_epochs(ocp, path):
    training = ocp.v1.training
    never = training.save_decision_policies.FixedIntervalPolicy(1)
    run = training.Checkpointer(
        directory=path / "run",
        preservation_policy=training.preservation_policies.LatestN(2),
        save_decision_policy=never,
    )
    pending = []
    for epoch in range(3):
        state = {
            "trainable_variables": {"dense": {"kernel": np.full((2, 2), epoch, np.float32)}},
            "optimizer_variables": {"iteration": epoch + 1},
        }
        checkpointables = {"pytree": state, "model_config": {"config": "{}"}}
        pending.append(run.save_checkpointables_async(epoch, checkpointables))
    for response in pending:
        response.result()
    run.close()
    found = ocp.v1.load_checkpointables(path / "run" / "2")
    described = ocp.v1.metadata(path / "run" / "1", checkpointable_name="pytree").metadata
    return found, sorted(described), ocp.v1.load(path / "run" / "2", checkpointable_name="pytree")


def newest_step_of_a_directory(ocp, path):
    names = ocp.v1.path.step.standard_name_format()
    for step in (1, 10, 2):
        ocp.v1.save(path / "run" / str(step), {"a": step})
    (path / "run" / "logs").mkdir()
    newest = max(names.find_all(path / "run"), key=lambda found: found.step)
    return newest.step, ocp.v1.load(newest.path)


def best_value_by_custom_metadata(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        for step, loss in enumerate([0.3, 0.1, 0.2]):
            run.save(step, {"a": step}, custom_metadata={"loss": loss})
        best = min(run.checkpoints, key=lambda one: run.metadata(one).custom_metadata["loss"])
        return run.load(best)


def inside_an_event_loop(ocp, path):
    import asyncio

    async def work():
        ocp.v1.save(path / "step", {"a": jnp.ones(2)})
        return ocp.v1.load(path / "step")

    return asyncio.run(work())

"""Runs of steps in the v1 API, as public code uses them."""

import jax
import jax.numpy as jnp
import numpy as np


def state_of(step):
    return {"params": {"w": jnp.full((2, 2), float(step))}, "step": step}


def numbers(run):
    return [step.step for step in run.checkpoints]


def train_and_resume(ocp, path):
    for steps in (3, 6):
        with ocp.v1.training.Checkpointer(path / "run") as run:
            start = 0 if run.latest is None else run.latest.step + 1
            state = state_of(0) if start == 0 else run.load(run.latest, state_of(0))
            for step in range(start, steps):
                state = {**state, "step": step}
                run.save(step, state)
    with ocp.v1.training.Checkpointer(path / "run") as run:
        return numbers(run), run.load(), run.latest.step


def loop_with_policies(ocp, path):
    training = ocp.v1.training
    with training.Checkpointer(
        path / "run",
        save_decision_policy=training.save_decision_policies.FixedIntervalPolicy(2),
        preservation_policy=training.preservation_policies.LatestN(3),
    ) as run:
        saved = [run.save(step, state_of(step)) for step in range(11)]
        return saved, numbers(run)


def loop_in_the_background(ocp, path):
    training = ocp.v1.training
    with training.Checkpointer(
        path / "run",
        save_decision_policy=training.save_decision_policies.FixedIntervalPolicy(3),
    ) as run:
        responses = [run.save_async(step, state_of(step)) for step in range(7)]
        run.wait()
        return [one is not None for one in responses], numbers(run), run.is_saving_in_progress()


def combined_policies(ocp, path):
    when = ocp.v1.training.save_decision_policies
    keep = ocp.v1.training.preservation_policies
    policy = when.AnySavePolicy(
        [
            when.InitialSavePolicy(),
            when.SpecificStepsPolicy([3, 5]),
            when.FixedIntervalPolicy(4),
            when.PreemptionCheckpointingPolicy(),
        ]
    )
    kept = keep.AnyPreservationPolicy([keep.LatestN(1), keep.EveryNSteps(4)])
    with ocp.v1.training.Checkpointer(
        path / "run", save_decision_policy=policy, preservation_policy=kept
    ) as run:
        saved = [step for step in range(1, 10) if run.save(step, state_of(step))]
        return saved, numbers(run)


def policy_of_ones_own(ocp, path):
    class Late(ocp.v1.training.save_decision_policies.SaveDecisionPolicy):
        def should_save(self, step, previous_steps, *, context):
            return step.step > 2 and len(previous_steps) < 2

    class Even(ocp.v1.training.preservation_policies.PreservationPolicy):
        def should_preserve(self, checkpoints, *, context):
            return [one.step % 2 == 0 for one in checkpoints]

    with ocp.v1.training.Checkpointer(
        path / "run", save_decision_policy=Late(), preservation_policy=Even()
    ) as run:
        saved = [step for step in range(8) if run.save(step, state_of(step))]
        return saved, numbers(run)


def kept_by_custom_steps(ocp, path):
    keep = ocp.v1.training.preservation_policies
    policy = keep.AnyPreservationPolicy([keep.CustomSteps([1, 4]), keep.LatestN(1)])
    with ocp.v1.training.Checkpointer(path / "run", preservation_policy=policy) as run:
        for step in range(6):
            run.save(step, state_of(step))
        return numbers(run)


def best_steps(ocp, path):
    keep = ocp.v1.training.preservation_policies
    policy = keep.AnyPreservationPolicy(
        [keep.LatestN(1), keep.BestN(get_metric_fn=lambda found: found["loss"], reverse=True, n=2)]
    )
    with ocp.v1.training.Checkpointer(path / "run", preservation_policy=policy) as run:
        for step, loss in enumerate([0.5, 0.1, 0.9, 0.3, 0.4]):
            run.save(step, state_of(step), metrics={"loss": loss})
        return numbers(run), [step.metrics for step in run.checkpoints]


def only_the_newest(ocp, path):
    policy = ocp.v1.training.preservation_policies.LatestN(n=1)
    for value in range(2):
        with ocp.v1.training.Checkpointer(path / "run", preservation_policy=policy) as run:
            run.save_checkpointables(0, {"model": state_of(value)}, overwrite=True)
    with ocp.v1.training.Checkpointer(path / "run") as run:
        return run.load_checkpointables(abstract_checkpointables={"model": state_of(0)})


def forced_last_step(ocp, path):
    policy = ocp.v1.training.save_decision_policies.FixedIntervalPolicy(5)
    with ocp.v1.training.Checkpointer(path / "run", save_decision_policy=policy) as run:
        for step in range(8):
            run.save(step, state_of(step))
        asked = run.should_save(7)
        run.save(7, state_of(7), force=True)
        return asked, numbers(run)


def saved_twice(ocp, path):
    errors = ocp.v1.training.errors
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save(0, state_of(0))
        try:
            run.save(0, state_of(1))
        except errors.StepAlreadyExistsError:
            refused = ["by default"]
        try:
            run.save(0, state_of(1), force=True)
        except errors.StepAlreadyExistsError:
            refused.append("with force")
        return refused, run.load(0)


def step_below_the_newest(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        saved = [run.save(step, state_of(step)) for step in (5, 3)]
        return saved, run.save(4, state_of(4), force=True), numbers(run)


def missing_step(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        found = [run.latest]
        for step in (None, 4):
            try:
                run.load(step)
            except ocp.v1.training.errors.StepNotFoundError:
                found.append((step, "missing"))
        return found


def several_checkpointables(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save_checkpointables(2, {"model": state_of(2), "opt": {"mu": jnp.zeros(2)}})
        abstract = jax.eval_shape(lambda: {"model": state_of(2)})
        return (
            run.load_checkpointables(2),
            run.load_checkpointables(None, {"opt": None}),
            run.load_checkpointables(
                2, {"model": {"params": abstract["model"]["params"], "step": 0}}
            ),
            run.load(2, checkpointable_name="model"),
        )


def named_state(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save(0, state_of(0), checkpointable_name="items")
        return (
            run.load(0, state_of(0), checkpointable_name="items"),
            ocp.v1.load(path / "run" / "0", checkpointable_name="items"),
        )


def partial_load_of_a_step(ocp, path):
    context = ocp.v1.Context()
    context.pytree.loading.partial_load = True
    with ocp.v1.training.Checkpointer(path / "run", context=context) as run:
        run.save(0, state_of(0))
        return run.load(0, {"step": 0})


def load_onto_a_mesh(ocp, path):
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save(0, {"w": jnp.arange(8.0)})
        abstract = {"w": jax.ShapeDtypeStruct((8,), jnp.float32, sharding=place)}
        return run.load(abstract_state=abstract)


def metadata_of_a_step(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save(0, state_of(0), metrics={"loss": 1.0}, custom_metadata={"epoch": 1})
        found = run.metadata(0)
        newest = run.metadata()
        shape = found.metadata["params"]["w"].shape
        return (found.step, found.metrics, found.custom_metadata, shape, newest.path.name)


def metadata_of_checkpointables(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save_checkpointables(0, {"model": state_of(0), "opt": {"mu": np.zeros(2)}})
        found = run.checkpointables_metadata()
        return found.step, sorted(found.metadata), found.metadata["opt"]["mu"].shape


def metadata_of_a_run(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run", custom_metadata={"model": "tiny"}) as run:
        run.save(0, state_of(0))
    with ocp.v1.training.Checkpointer(path / "run") as run:
        return run.root_metadata().custom_metadata, run.root_metadata().directory.name


def older_methods(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save_pytree(0, state_of(0))
        response = run.save_pytree_async(1, state_of(1))
        response.result()
        found = run.load_pytree(0, state_of(0))
        return found, run.load_pytree(), run.pytree_metadata(1).step


def responses(ocp, path):
    policy = ocp.v1.training.save_decision_policies.FixedIntervalPolicy(2)
    with ocp.v1.training.Checkpointer(path / "run", save_decision_policy=policy) as run:
        first = run.save_async(0, state_of(0)).result()
        return first, run.save_async(1, state_of(1)), run.save(1, state_of(1))


def steps_of_another_writer(ocp, path):
    with (
        ocp.v1.training.Checkpointer(path / "run") as writer,
        ocp.v1.training.Checkpointer(path / "run") as reader,
    ):
        before = numbers(reader)
        writer.save(0, state_of(0))
        reader.reload()
        return before, numbers(reader), reader.load(0)


def step_names(ocp, path):
    names = ocp.v1.path.step.standard_name_format(step_prefix="step", step_format_fixed_length=6)
    with ocp.v1.training.Checkpointer(path / "run", step_name_format=names) as run:
        run.save(12, state_of(12))
        run.save(300, state_of(300))
    found = names.find_all(path / "run")
    return (
        sorted(p.name for p in (path / "run").iterdir() if p.is_dir()),
        sorted(one.step for one in found),
        names.find_step(path / "run", 12).path.name,
        names.build_name(7),
    )


def several_step_names(ocp, path):
    step = ocp.v1.path.step
    plain, prefixed = step.standard_name_format(), step.standard_name_format(step_prefix="ckpt")
    for number, names in ((1, plain), (2, prefixed)):
        with ocp.v1.training.Checkpointer(path / "run", step_name_format=names) as run:
            run.save(number, state_of(number))
    both = step.composite_name_format(prefixed, [prefixed, plain])
    with ocp.v1.training.Checkpointer(path / "run", step_name_format=both) as run:
        run.save(3, state_of(3))
        return numbers(run), run.load(3), ocp.v1.load(path / "run" / "1")


def deleted_steps(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        for step in range(4):
            run.save(step, state_of(step))
        found = [run.delete(0), run.delete(run.checkpoints[0]), run.delete_async(2).result()]
        return found, numbers(run), run.delete(9, missing_ok=True)


def run_of_an_older_manager(ocp, path):
    with ocp.CheckpointManager(path / "run") as manager:
        for step in range(2):
            manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(state_of(step))))
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save(2, state_of(2))
        return numbers(run), run.load(1), run.load_checkpointables(2)


def run_for_an_older_manager(ocp, path):
    with ocp.v1.training.Checkpointer(path / "run") as run:
        run.save(0, state_of(0), metrics={"loss": 0.5})
    with ocp.CheckpointManager(path / "run", item_names=("state",)) as manager:
        found = manager.restore(0, args=ocp.args.Composite(state=ocp.args.StandardRestore()))
        return manager.all_steps(), found["state"]


def attributes_of_ones_own(ocp, path):
    run = ocp.v1.training.Checkpointer(path / "run")
    run.use_async = True
    run.save(0, state_of(0))
    run.close()
    return run.use_async, run.directory.name


def subclass(ocp, path):
    class Counting(ocp.v1.training.Checkpointer):
        saved = 0

        def save(self, step, state, **options):
            self.saved += 1
            return super().save(step, state, **options)

    with Counting(path / "run") as run:
        run.save(0, state_of(0))
        return run.saved, numbers(run)


def frozen_options(ocp, path):
    options = ocp.v1.options
    context = ocp.v1.Context(
        array_options=options.ArrayOptions(
            saving=options.ArrayOptions.Saving(
                use_ocdbt=True, use_zarr3=True, ocdbt_target_data_file_size=2**20
            )
        ),
        async_options=options.AsyncOptions(timeout_secs=300),
        memory_options=options.MemoryOptions(write_concurrent_bytes=10**8),
        pytree_options=options.PyTreeOptions(
            loading=options.PyTreeOptions.Loading(partial_load=True)
        ),
    )
    with ocp.v1.training.Checkpointer(path / "run", context=context) as run:
        run.save(0, state_of(0))
        return run.load(0, {"params": state_of(1)["params"]})


def unfinished_steps(ocp, path):
    (path / "run" / "3.orbax-checkpoint-tmp-1").mkdir(parents=True)
    (path / "run" / "notes").mkdir()
    with ocp.v1.training.Checkpointer(path / "run", cleanup_tmp_directories=True) as run:
        run.save(4, state_of(4))
        left = sorted(one.name for one in (path / "run").iterdir() if one.is_dir())
        return numbers(run), left


def steps_from_elsewhere(ocp, path):
    for step in (1, 2):
        ocp.v1.save(path / "run" / str(step), state_of(step))
    with ocp.v1.training.Checkpointer(path / "run") as run:
        return numbers(run), run.load(), run.latest.step

"""Runs of training jobs as public training scripts manage them."""

import datetime as dt
import os

import jax
import jax.numpy as jnp
import numpy as np


def state(step=0):
    return {"params": {"w": jnp.full((2, 3), float(step))}, "step": jnp.int32(step)}


def loop_with_an_interval(ocp, path):
    options = ocp.CheckpointManagerOptions(max_to_keep=3, save_interval_steps=2, create=True)
    manager = ocp.CheckpointManager(path / "run", options=options)
    saved = [manager.save(step, args=ocp.args.StandardSave(state(step))) for step in range(9)]
    manager.wait_until_finished()
    restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state()))
    manager.close()
    return saved, manager.all_steps(), restored


def legacy_single_checkpointer(ocp, path):
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
    manager = ocp.CheckpointManager(str(path / "run"), ocp.PyTreeCheckpointer(), options)
    for step in range(4):
        manager.save(step, state(step), save_kwargs={"save_args": None})
    restore_args = ocp.checkpoint_utils.construct_restore_args(state())
    kwargs = {"restore_args": restore_args}
    return manager.all_steps(), manager.restore(3, items=state(), restore_kwargs=kwargs)


def legacy_checkpointers_by_name(ocp, path):
    checkpointers = {
        "state": ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()),
        "config": ocp.Checkpointer(ocp.JsonCheckpointHandler()),
    }
    manager = ocp.CheckpointManager(path / "run", checkpointers)
    manager.save(1, {"state": state(1), "config": {"layers": 2}})
    manager.wait_until_finished()
    return manager.restore(1, {"state": None, "config": None})


def items_by_name(ocp, path):
    manager = ocp.CheckpointManager(
        path / "run",
        item_names=("state", "config"),
        options=ocp.CheckpointManagerOptions(enable_async_checkpointing=False),
    )
    args = ocp.args.Composite(
        state=ocp.args.StandardSave(state(5)), config=ocp.args.JsonSave({"lr": 0.1})
    )
    manager.save(5, args=args)
    restored = manager.restore(
        5,
        args=ocp.args.Composite(
            state=ocp.args.StandardRestore(state()), config=ocp.args.JsonRestore()
        ),
    )
    return restored.state, restored["config"], sorted(restored.keys())


def items_with_handlers(ocp, path):
    handlers = {"params": ocp.PyTreeCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()}
    with ocp.CheckpointManager(path / "run", item_handlers=handlers) as manager:
        items = {"params": ocp.args.PyTreeSave(state(1)), "meta": ocp.args.JsonSave({"a": 1})}
        manager.save(1, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
        wanted = ocp.args.Composite(meta=ocp.args.JsonRestore())
        only = manager.restore(1, args=wanted)
        return only.meta, sorted(only), (path / "run" / "1" / "meta" / "metadata").exists()


def restore_without_arguments(ocp, path):
    with ocp.CheckpointManager(path / "run", item_names=("a", "b")) as manager:
        items = {"a": ocp.args.StandardSave(state(1)), "b": ocp.args.JsonSave([1])}
        manager.save(1, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
        restored = manager.restore(1)
        return sorted(restored.keys()), restored["b"], restored["a"]


def best_by_metric(ocp, path):
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode="min"
    )
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        for step, loss in enumerate([0.5, 0.1, 0.4, 0.2]):
            manager.save(step, args=ocp.args.StandardSave(state(step)), metrics={"loss": loss})
        manager.wait_until_finished()
        return manager.best_step(), manager.all_steps(), manager.metrics(1)


def keep_period_and_prefix(ocp, path):
    options = ocp.CheckpointManagerOptions(
        max_to_keep=1, keep_period=4, step_prefix="ckpt", step_format_fixed_length=5
    )
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        for step in range(1, 8):
            manager.save(step, args=ocp.args.StandardSave(state(step)))
        manager.wait_until_finished()
    return sorted(name for name in os.listdir(path / "run") if name.startswith("ckpt"))


def resume_of_a_job(ocp, path):
    def run(steps):
        options = ocp.CheckpointManagerOptions(max_to_keep=2, save_interval_steps=1)
        with ocp.CheckpointManager(path / "run", options=options) as manager:
            first = manager.latest_step()
            tree = (
                state()
                if first is None
                else manager.restore(first, args=ocp.args.StandardRestore(state()))
            )
            for step in range(0 if first is None else first + 1, steps):
                tree = jax.tree.map(lambda leaf: leaf + 1, tree)
                manager.save(step, args=ocp.args.StandardSave(tree))
        return tree

    run(3)
    return run(6)


def existing_step(ocp, path):
    with ocp.CheckpointManager(path / "run") as manager:
        manager.save(1, args=ocp.args.StandardSave(state(1)))
        manager.wait_until_finished()
        silent = manager.save(1, args=ocp.args.StandardSave(state(1)))
        try:
            manager.save(1, args=ocp.args.StandardSave(state(1)), force=True)
        except ocp.checkpoint_manager.StepAlreadyExistsError as error:
            return silent, isinstance(error, ValueError)
    return None


def should_save_function(ocp, path):
    options = ocp.CheckpointManagerOptions(should_save_fn=lambda step, last: step in {2, 3})
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        return [manager.save(s, args=ocp.args.StandardSave(state(s))) for s in range(5)]


def save_decision_policies(ocp, path):
    policies = ocp.checkpoint_managers
    options = ocp.CheckpointManagerOptions(
        save_decision_policy=policies.AnySavePolicy(
            [policies.FixedIntervalPolicy(3), policies.SpecificStepsPolicy({4})]
        ),
        preservation_policy=policies.AnyPreservationPolicy(
            [policies.LatestN(2), policies.EveryNSteps(3)]
        ),
    )
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        saved = [manager.save(s, args=ocp.args.StandardSave(state(s))) for s in range(10)]
        manager.wait_until_finished()
        return saved, manager.all_steps()


def policies_by_module(ocp, path):
    options = ocp.CheckpointManagerOptions(
        save_decision_policy=ocp.checkpoint_managers.save_decision_policy.InitialSavePolicy(),
        preservation_policy=ocp.checkpoint_managers.preservation_policy.LatestN(n=1),
    )
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        return [manager.save(s, args=ocp.args.StandardSave(state(s))) for s in range(3)]


def best_n_policy(ocp, path):
    best = ocp.checkpoint_managers.BestN(get_metric_fn=lambda m: m["acc"], n=1, reverse=False)
    options = ocp.CheckpointManagerOptions(
        preservation_policy=ocp.checkpoint_managers.AnyPreservationPolicy(
            [best, ocp.checkpoint_managers.LatestN(1)]
        ),
        best_fn=lambda m: m["acc"],
    )
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        for step, accuracy in enumerate([0.3, 0.9, 0.5, 0.6]):
            manager.save(step, args=ocp.args.StandardSave(state(step)), metrics={"acc": accuracy})
        manager.wait_until_finished()
        return manager.all_steps()


def time_between_kept_steps(ocp, path):
    options = ocp.CheckpointManagerOptions(max_to_keep=1, keep_time_interval=dt.timedelta(hours=1))
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        for step in range(3):
            manager.save(step, args=ocp.args.StandardSave(state(step)))
        manager.wait_until_finished()
        return manager.all_steps()


def registry_of_handlers(ocp, path):
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    registry.add("model_state", ocp.args.PyTreeSave, ocp.handlers.PyTreeCheckpointHandler)
    registry.add("model_state", ocp.args.PyTreeRestore, ocp.handlers.PyTreeCheckpointHandler)
    options = ocp.CheckpointManagerOptions(step_format_fixed_length=6, cleanup_tmp_directories=True)
    manager = ocp.CheckpointManager(path / "run", options=options, handler_registry=registry)
    manager.save(10, args=ocp.args.Composite(model_state=ocp.args.PyTreeSave(state(10))))
    manager.wait_until_finished()
    target = ocp.args.PyTreeRestore(state(), partial_restore=True)
    restored = manager.restore(10, args=ocp.args.Composite(model_state=target))
    manager.close()
    return sorted(os.listdir(path / "run")), restored["model_state"]


def registry_without_handlers(ocp, path):
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    for name, arguments in (("state", ocp.args.StandardSave), ("state", ocp.args.StandardRestore)):
        registry.add(name, arguments)
    registry.add("metrics", ocp.args.JsonSave)
    registry.add("metrics", ocp.args.JsonRestore)
    manager = ocp.CheckpointManager(directory=path / "run", handler_registry=registry)
    items = {"state": ocp.args.StandardSave(state(1)), "metrics": ocp.args.JsonSave({"l": 1.0})}
    try:
        manager.save(1, args=ocp.args.Composite(**items))
    except ValueError:
        return "metrics is reserved"
    manager.wait_until_finished()
    return [child.name for child in sorted((path / "run" / "1").iterdir()) if child.is_dir()]


def registry_with_objects(ocp, path):
    registry = ocp.handlers.create_default_handler_registry(
        params=ocp.PyTreeCheckpointHandler(), extra=ocp.JsonCheckpointHandler()
    )
    with ocp.CheckpointManager(path / "run", handler_registry=registry) as manager:
        items = {"params": ocp.args.PyTreeSave(state(1)), "extra": ocp.args.JsonSave({"n": 1})}
        manager.save(1, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
        return manager.restore(1)["extra"]


def registry_under_the_default_name(ocp, path):
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    registry.add("default", ocp.args.PyTreeSave, ocp.PyTreeCheckpointHandler)
    registry.add("default", ocp.args.PyTreeRestore, ocp.PyTreeCheckpointHandler)
    manager = ocp.CheckpointManager(path / "run", handler_registry=registry)
    manager.save(step=0, args=ocp.args.PyTreeSave(item={"a": np.arange(2)}))
    manager.wait_until_finished()
    restored = manager.restore(0, args=ocp.args.PyTreeRestore(item={"a": np.zeros(2, int)}))
    manager.delete(0)
    return restored, manager.all_steps()


def metadata_of_the_run(ocp, path):
    metadata = {"version": 1, "config": {"layers": 2}}
    with ocp.CheckpointManager(path / "run", metadata=metadata) as manager:
        manager.save(1, args=ocp.args.StandardSave(state(1)), custom_metadata={"note": "first"})
        manager.wait_until_finished()
        of_step = manager.metadata(1).custom_metadata
    options = ocp.CheckpointManagerOptions(read_only=True)
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        return manager.metadata().custom_metadata, of_step


def shapes_from_item_metadata(ocp, path):
    with ocp.CheckpointManager(path / "run", item_names=("state",)) as manager:
        manager.save(1, args=ocp.args.Composite(state=ocp.args.StandardSave(state(1))))
        manager.wait_until_finished()
        tree = manager.item_metadata(1)["state"]
        return [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(tree)]


def target_from_item_metadata(ocp, path):
    with ocp.CheckpointManager(path / "run") as manager:
        manager.save(1, args=ocp.args.StandardSave(state(1)))
        manager.wait_until_finished()
        metadata = manager.item_metadata(1)
        to_struct = ocp.utils.to_shape_dtype_struct
        target = jax.tree.map(to_struct, metadata.tree if hasattr(metadata, "tree") else metadata)
        return manager.restore(1, args=ocp.args.StandardRestore(target))


def restore_from_another_directory(ocp, path):
    with ocp.CheckpointManager(path / "pretrained") as manager:
        manager.save(3, args=ocp.args.StandardSave(state(3)))
    with ocp.CheckpointManager(path / "run") as manager:
        target = ocp.args.StandardRestore(state())
        return manager.restore(3, directory=path / "pretrained", args=target)


def read_only_reload(ocp, path):
    writer = ocp.CheckpointManager(path / "run")
    writer.save(1, args=ocp.args.StandardSave(state(1)))
    writer.wait_until_finished()
    reader = ocp.CheckpointManager(
        path / "run", options=ocp.CheckpointManagerOptions(read_only=True)
    )
    before = reader.all_steps()
    writer.save(2, args=ocp.args.StandardSave(state(2)))
    writer.wait_until_finished()
    reader.reload()
    return before, reader.all_steps(), reader.latest_step()


def todelete_subdirectory(ocp, path):
    options = ocp.CheckpointManagerOptions(max_to_keep=1, todelete_subdir="trash")
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        for step in range(3):
            manager.save(step, args=ocp.args.StandardSave(state(step)))
        manager.wait_until_finished()
    return sorted(os.listdir(path / "run" / "trash"))


def step_name_format_of_a_run(ocp, path):
    name_format = ocp.path.step.standard_name_format(step_prefix="step", step_format_fixed_length=8)
    options = ocp.CheckpointManagerOptions(step_name_format=name_format)
    with ocp.CheckpointManager(path / "run", options=options) as manager:
        manager.save(12, args=ocp.args.StandardSave(state(12)))
    newest = ocp.path.step.latest_step_metadata(path / "run", name_format)
    exists = ocp.path.step.build_step_path(path / "run", name_format, 12).exists()
    return newest.step, newest.path.name, exists


def item_names_of_a_manager_module(ocp, path):
    with ocp.CheckpointManager(path / "run") as manager:
        manager.save(1, args=ocp.args.StandardSave(state(1)))
        manager.wait_until_finished()
    default = ocp.checkpoint_manager.DEFAULT_ITEM_NAME
    names = ocp.checkpoint_manager.METRIC_ITEM_NAME, ocp.checkpoint_manager.METADATA_ITEM_NAME
    return default, names, (path / "run" / "1" / default).is_dir()


def manager_options_from_modules(ocp, path):
    options = ocp.checkpoint_manager.CheckpointManagerOptions(
        max_to_keep=2,
        file_options=ocp.checkpoint_manager.FileOptions(path_permission_mode=0o770),
        async_options=ocp.options.AsyncOptions(timeout_secs=60),
        multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=0),
        enable_background_delete=True,
    )
    with ocp.checkpoint_manager.CheckpointManager(path / "run", options=options) as manager:
        for step in range(3):
            manager.save(step, args=ocp.args.StandardSave(state(step)))
        manager.wait_until_finished()
        return manager.latest_step()


def subclassed_manager(ocp, path):
    class Manager(ocp.CheckpointManager):
        def save(self, step, tree):
            return super().save(step, args=ocp.args.StandardSave(tree))

        def restore(self, step):
            return super().restore(step, args=ocp.args.StandardRestore(state()))

    with Manager(path / "run") as manager:
        manager.save(1, state(1))
        manager.wait_until_finished()
        has_name = hasattr(ocp.checkpoint_managers, "AbstractCheckpointManager")
        return has_name, manager.restore(1)


def logger_of_a_manager(ocp, path):
    entries = []

    class Logger(ocp.logging.AbstractLogger):
        def log_entry(self, entry):
            entries.append(entry)

    loggers = ocp.logging.CompositeLogger(Logger(), ocp.logging.StandardLogger())
    with ocp.CheckpointManager(path / "run", logger=loggers) as manager:
        manager.save(1, args=ocp.args.StandardSave(state(1)))
        manager.wait_until_finished()
        manager.restore(1, args=ocp.args.StandardRestore(state()))
    return [(entry["event_type"], entry["step"]) for entry in entries]


def follow_a_run(ocp, path):
    with ocp.CheckpointManager(path / "run") as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.StandardSave(state(step)))
    found = ocp.checkpoint_utils.checkpoints_iterator(path / "run", timeout=0)
    return list(found)


def callback_handler_of_a_robot_policy(ocp, path):
    import asyncio
    import dataclasses

    from etils import epath

    future = ocp.future

    class CallbackHandler(ocp.AsyncCheckpointHandler):
        def save(self, directory: epath.Path, args):
            if jax.process_index() == 0:
                args.callback(directory)

        async def async_save(self, directory: epath.Path, args):
            work = asyncio.to_thread(self.save, directory, args)
            return [future.CommitFutureAwaitingContractedSignals(work)]

        def restore(self, *args, **kwargs):
            raise NotImplementedError

    @ocp.args.register_with_handler(CallbackHandler, for_save=True)
    @dataclasses.dataclass
    class CallbackSave(ocp.args.CheckpointArgs):
        callback: object

    @ocp.args.register_with_handler(CallbackHandler, for_restore=True)
    class CallbackRestore(ocp.args.CheckpointArgs): ...

    manager = (
        ocp.CheckpointManager(
            path / "run",
            item_handlers={
                "assets": CallbackHandler(),
                "train_state": ocp.PyTreeCheckpointHandler(),
                "params": ocp.PyTreeCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(
                max_to_keep=1,
                keep_period=None,
                create=False,
                async_options=ocp.AsyncOptions(timeout_secs=7200),
            ),
        )
        if (path / "run").mkdir() is None
        else None
    )
    items = {
        "assets": lambda directory: (directory / "stats.json").write_text("{}"),
        "train_state": state(4),
        "params": {"params": state(4)["params"]},
    }
    args = ocp.args.Composite(
        assets=CallbackSave(items["assets"]),
        train_state=ocp.args.PyTreeSave(items["train_state"]),
        params=ocp.args.PyTreeSave(items["params"]),
    )
    manager.save(4, args=args)
    manager.wait_until_finished()
    wanted = ocp.args.Composite(
        train_state=ocp.args.PyTreeRestore(item=state()),
        params=ocp.args.PyTreeRestore(item={"params": state()["params"]}),
    )
    restored = manager.restore(4, args=wanted)
    return restored["params"], os.listdir(path / "run" / "4" / "assets")

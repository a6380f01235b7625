"""Checkpointers as training scripts and the guides of Orbax and Flax use them."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def state():
    return {
        "params": {"dense": {"kernel": jnp.arange(6.0).reshape(2, 3), "bias": jnp.ones(3)}},
        "step": 7,
        "lr": 0.5,
    }


def mesh_of(*shape):
    count = int(np.prod(shape))
    names = ("data", "model")[: len(shape)]
    return Mesh(np.asarray(jax.devices()[:count]).reshape(shape), names)


def pytree_checkpointer_with_item(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", state())
    return checkpointer.restore(path / "one", item=state())


def pytree_checkpointer_without_target(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(str(path / "one"), {"a": np.arange(3), "b": {"c": 1, "d": "text"}})
    return checkpointer.restore(str(path / "one"))


def save_args_from_tree(ocp, path):
    tree = state()
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(), tree)
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", tree, save_args=save_args)
    checkpointer.save(path / "one", tree, save_args=save_args, force=True)
    return checkpointer.restore(path / "one")


def restore_args_as_numpy(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", state())
    restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), state())
    return checkpointer.restore(path / "one", restore_args=restore_args)


def restore_args_from_target(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", state())
    target = jax.tree.map(jnp.zeros_like, state())
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    return checkpointer.restore(path / "one", item=target, restore_args=restore_args)


def args_together_with_a_none_item(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "policy", state(), force=True)
    restore_args = ocp.checkpoint_utils.construct_restore_args(state())
    args = ocp.args.PyTreeRestore(restore_args=restore_args)
    return checkpointer.restore(path / "policy", args, item=None)


def config_beside_the_weights(ocp, path):
    step = path / f"{100:012d}"
    checkpointer = ocp.PyTreeCheckpointer()
    params = (np.float32([1.0, 2.0]), {"policy": jnp.ones((2, 2))}, {"value": jnp.zeros(3)})
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(), params)
    checkpointer.save(step, params, force=True, save_args=save_args)
    (step / "config.json").write_text("{}")
    target = checkpointer.restore(step)
    return [type(target).__name__, jax.tree.leaves(target)]


def checkpointer_with_pytree_handler(ocp, path):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(path / "one", args=ocp.args.PyTreeSave(state()))
        return checkpointer.restore(path / "one", args=ocp.args.PyTreeRestore())


def handler_with_flags_as_numbers(ocp, path):
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=1, use_zarr3=1)) as checkpointer:
        checkpointer.save(path / "one", state())
        return checkpointer.restore(path / "one")


def standard_checkpointer_round_trip(ocp, path):
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(path / "one", state())
    checkpointer.wait_until_finished()
    restored = checkpointer.restore(path / "one", state())
    checkpointer.close()
    return restored


def standard_checkpointer_abstract_target(ocp, path):
    sharding = NamedSharding(mesh_of(2, 2), PartitionSpec("data", "model"))
    tree = {"w": jax.device_put(jnp.arange(16.0).reshape(4, 4), sharding), "n": 3}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "one", tree)
    other = NamedSharding(mesh_of(4), PartitionSpec(None, "data"))
    abstract = {"w": jax.ShapeDtypeStruct((4, 4), jnp.bfloat16, sharding=other), "n": 0}
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path / "one", abstract)


def abstract_target_by_utils(ocp, path):
    tree = state()["params"]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "one", tree)
    abstract = jax.tree_util.tree_map(ocp.utils.to_shape_dtype_struct, tree)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path / "one", target=abstract)


def abstract_target_by_tree(ocp, path):
    tree = state()["params"]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "one", tree)
    abstract = jax.tree.map(ocp.tree.to_shape_dtype_struct, tree)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path / "one", abstract, strict=False)


def guide_directory_from_test_utils(ocp, path):
    directory = ocp.test_utils.erase_and_create_empty(path / "guide")
    (directory / "left").write_text("x")
    directory = ocp.test_utils.erase_and_create_empty(str(path / "guide"))
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(directory / "state", state())
    checkpointer.wait_until_finished()
    names = sorted(child.name for child in directory.iterdir())
    return names, checkpointer.restore(directory / "state")


def async_checkpointer_with_timeout(ocp, path):
    checkpointer = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler(), timeout_secs=50)
    checkpointer.save(path / "one", state())
    checkpointer.save(path / "two", args=ocp.args.PyTreeSave(state()))
    checkpointer.wait_until_finished()
    checkpointer.check_for_errors()
    restored = checkpointer.restore(path / "two")
    checkpointer.close()
    return sorted(os.listdir(path)), restored


def async_checkpointer_with_options(ocp, path):
    called = []
    options = ocp.options.AsyncOptions(
        timeout_secs=120, post_finalization_callback=lambda: called.append("done")
    )
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler(), async_options=options)
    checkpointer.save(path / "one", args=ocp.args.StandardSave(state()))
    checkpointer.wait_until_finished()
    return called


def buffers_donated_during_a_save(ocp, path):
    checkpointer = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    tree = {"x": jnp.arange(8.0), "host": np.arange(4)}
    checkpointer.save(path / "one", args=ocp.args.StandardSave(tree))
    tree["host"][:] = -1
    tree["x"].delete()
    checkpointer.wait_until_finished()
    return checkpointer.restore(path / "one")


def second_save_without_force(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", state())
    try:
        checkpointer.save(path / "one", state())
    except ValueError as error:
        return "already exists" in str(error)
    return None


def restore_of_nothing(ocp, path):
    try:
        ocp.PyTreeCheckpointer().restore(path / "none")
    except FileNotFoundError:
        return "not found"
    return None


def structure_mismatch(ocp, path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "one", {"a": jnp.ones(2), "b": jnp.ones(2)})
    with ocp.StandardCheckpointer() as checkpointer:
        try:
            checkpointer.restore(path / "one", {"a": jnp.ones(2), "c": jnp.ones(2)})
        except ValueError:
            return "refused"
    return None


def bfloat16_on_disk(ocp, path):
    tree = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
    save_args = jax.tree.map(lambda _: ocp.SaveArgs(dtype=jnp.dtype("bfloat16")), tree)
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", tree, save_args=save_args)
    return checkpointer.restore(path / "one")


def save_args_changed_afterwards(ocp, path):
    save_args = {"w": ocp.SaveArgs()}
    save_args["w"].dtype = np.dtype(np.int16)
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"w": np.arange(3)}, save_args=save_args)
    return checkpointer.restore(path / "one")


def array_restore_args_with_mesh_axes(ocp, path):
    mesh = mesh_of(2)
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"w": jnp.arange(8.0)})
    args = ocp.ArrayRestoreArgs(mesh=mesh, mesh_axes=PartitionSpec("data"), dtype=jnp.bfloat16)
    return checkpointer.restore(path / "one", restore_args={"w": args})


def array_restore_args_pad(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"w": jnp.arange(4.0)})
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    args = ocp.ArrayRestoreArgs(sharding=sharding, global_shape=(6,), strict=False)
    return checkpointer.restore(path / "one", restore_args={"w": args})


def replicated_on_all_devices(ocp, path):
    sharding = NamedSharding(mesh_of(4), PartitionSpec())
    tree = jax.device_put({"w": jnp.arange(4.0), "s": jnp.int32(3)}, sharding)
    checkpointer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    checkpointer.save(path / "one", args=ocp.args.StandardSave(tree))
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
    )
    return checkpointer.restore(path / "one", args=ocp.args.StandardRestore(abstract))


def custom_metadata_of_a_save(ocp, path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "one", state(), custom_metadata={"git": "abc", "layers": [1, 2]})
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.metadata(path / "one").custom_metadata


def placeholder_leaves(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"a": np.arange(2), "b": np.arange(3)})
    target = {"a": np.zeros(2), "b": ocp.PLACEHOLDER}
    restored = checkpointer.restore(path / "one", item=target)
    return restored["a"], restored["b"] is ...


def partial_restore_of_a_subset(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", state())
    args = ocp.args.PyTreeRestore({"params": state()["params"]}, partial_restore=True)
    return checkpointer.restore(path / "one", args=args)


def partial_restore_with_new_leaves(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"a": np.arange(3), "b": np.ones(2)})
    target = {"a": np.zeros(3, int), "head": np.full(2, 5.0)}
    args = ocp.args.PyTreeRestore(item=target, partial_restore=True)
    return checkpointer.restore(path / "one", args=args)


def empty_transforms_for_a_subset(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", state())
    target = {"params": state()["params"]}
    restore_args = ocp.checkpoint_utils.construct_restore_args(target)
    return checkpointer.restore(path / "one", item=target, restore_args=restore_args, transforms={})


def restore_on_the_handler(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"old": np.arange(3)})
    handler = ocp.PyTreeCheckpointHandler()
    return handler.restore(
        path / "one",
        item={"new": np.zeros(3, int)},
        restore_args={"new": ocp.RestoreArgs(restore_type=np.ndarray)},
        transforms={"new": ocp.Transform(original_key="old")},
    )


def save_on_the_handler(ocp, path):
    handler = ocp.PyTreeCheckpointHandler()
    (path / "one").mkdir()
    handler.save(path / "one", {"a": np.arange(3)})
    handler.finalize(path / "one")
    return handler.restore(path / "one")


def handler_options_of_large_jobs(ocp, path):
    handler = ocp.PyTreeCheckpointHandler(
        save_concurrent_gb=1,
        restore_concurrent_gb=1,
        use_ocdbt=True,
        use_zarr3=False,
        save_device_host_concurrent_gb=1,
    )
    with ocp.AsyncCheckpointer(handler) as checkpointer:
        save_args = ocp.args.PyTreeSave(state(), ocdbt_target_data_file_size=10_000)
        checkpointer.save(path / "one", args=save_args)
        checkpointer.wait_until_finished()
        return checkpointer.restore(path / "one")


def handler_with_multiprocessing_options(ocp, path):
    options = ocp.options.MultiprocessingOptions(primary_host=0)
    handler = ocp.StandardCheckpointHandler(multiprocessing_options=options)
    checkpointer = ocp.Checkpointer(handler, multiprocessing_options=options)
    checkpointer.save(path / "one", args=ocp.args.StandardSave(state()))
    return checkpointer.restore(path / "one")


def file_permissions(ocp, path):
    options = ocp.options.FileOptions(path_permission_mode=0o750)
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(), file_options=options)
    checkpointer.save(path / "one", state())
    return oct((path / "one").stat().st_mode & 0o777)


def checkpointers_module(ocp, path):
    handler = ocp.handlers.StandardCheckpointHandler()
    with ocp.checkpointers.AsyncCheckpointer(handler) as checkpointer:
        checkpointer.save(path / "one", args=ocp.args.StandardSave(state()))
    is_abstract = isinstance(checkpointer, ocp.checkpointers.AbstractCheckpointer)
    return is_abstract, ocp.Checkpointer(handler).restore(path / "one")


def array_and_json_and_keys(ocp, path):
    ocp.Checkpointer(ocp.ArrayCheckpointHandler()).save(path / "array", np.arange(3))
    ocp.Checkpointer(ocp.JsonCheckpointHandler()).save(path / "json", {"a": [1, None]})
    keys = ocp.Checkpointer(ocp.JaxRandomKeyCheckpointHandler())
    keys.save(path / "key", args=ocp.args.JaxRandomKeySave(jax.random.key(3)))
    restored = keys.restore(path / "key", args=ocp.args.JaxRandomKeyRestore())
    return (
        ocp.Checkpointer(ocp.ArrayCheckpointHandler()).restore(path / "array"),
        ocp.Checkpointer(ocp.JsonCheckpointHandler()).restore(path / "json"),
        jax.random.key_data(restored),
    )

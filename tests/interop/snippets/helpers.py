"""Helper functions for trees, steps, paths, metadata and processes."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Pair = collections.namedtuple("Pair", "left right")


def tree():
    return {"a": {"b": np.arange(2), "c": [1, 2.5]}, "d": None, "e": {}}


def names(found):
    return {
        "/".join(map(str, key)) if isinstance(key, tuple) else key: v for key, v in found.items()
    }


def flat_dict(ocp, path):
    return names(ocp.tree.to_flat_dict(tree()))


def flat_dict_with_separator(ocp, path):
    return ocp.tree.to_flat_dict(tree(), sep="/", keep_empty_nodes=True)


def flat_dict_and_back(ocp, path):
    flat = ocp.tree.to_flat_dict({"a": {"b": 1}, "c": 2}, sep=".")
    return flat, ocp.tree.from_flat_dict(flat, sep=".")


def flat_dict_of_utils(ocp, path):
    flat = ocp.utils.to_flat_dict({"a": {"b": 1}, "c": 2}, sep="/")
    return flat, ocp.utils.from_flat_dict(flat, sep="/")


def flat_dict_of_saved_metadata(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"layer": {"w": jnp.ones((2, 3))}, "n": 1})
    metadata = checkpointer.metadata(path / "one").item_metadata
    flat = ocp.tree.to_flat_dict(metadata, sep="/")
    return {name: tuple(getattr(leaf, "shape", ())) for name, leaf in flat.items() if "/" in name}


def serialized_tree(ocp, path):
    value = {"a": Pair(1, {"b": 2}), "c": [3]}
    return ocp.tree.serialize_tree(value, keep_empty_nodes=True)


def deserialized_tree(ocp, path):
    value = {"a": [1, {"b": 2}], "c": (3,)}
    stored = ocp.utils.serialize_tree(value, keep_empty_nodes=True)
    return stored, ocp.utils.deserialize_tree(stored, value)


def parameter_names(ocp, path):
    return ocp.tree.get_param_names({"a": {"b": 1}, "c": [2, 3]})


def merged_trees(ocp, path):
    return ocp.transform_utils.merge_trees({"a": {"b": 1}}, {"a": {"c": 2}}, {"d": 3})


def difference_of_trees(ocp, path):
    return ocp.tree.tree_difference({"a": 1, "b": 2}, {"a": 1, "c": 2}) is not None


def shape_dtype_structs(ocp, path):
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    value = {"a": jax.device_put(jnp.arange(4.0), sharding), "b": np.arange(2), "c": 1}
    found = jax.tree.map(ocp.utils.to_shape_dtype_struct, value)
    return (found["a"].shape, str(found["a"].dtype), found["a"].sharding == sharding), found[
        "b"
    ].shape


def bucket_paths(ocp, path):
    is_gcs_path = ocp.utils.is_gcs_path
    from etils import epath

    return is_gcs_path(epath.Path("gs://bucket/x")), is_gcs_path(epath.Path(path))


def barriers(ocp, path):
    ocp.utils.sync_global_processes("ready")
    ocp.multihost.sync_global_processes("ready again")
    return ocp.multihost.process_index(), ocp.multihost.is_primary_host(0)


def host_local_array(ocp, path):
    everywhere = NamedSharding(Mesh(np.asarray(jax.devices()), ("x",)), PartitionSpec())
    local = jax.device_put(jnp.arange(4), everywhere)
    array = ocp.utils.fully_replicated_host_local_array_to_global_array(local)
    return array.is_fully_replicated, np.asarray(array)


def steps_of_a_directory(ocp, path):
    for name in ("1", "ckpt_5", "7.orbax-checkpoint-tmp-123", "notes"):
        (path / name).mkdir()
    for name in ("1", "ckpt_5"):
        ocp.PyTreeCheckpointer().save(path / name, {"a": np.ones(1)}, force=True)
    return sorted(ocp.utils.checkpoint_steps(path)), ocp.step.checkpoint_steps(path) != []


def any_step(ocp, path):
    none = ocp.utils.any_checkpoint_step(path)
    ocp.PyTreeCheckpointer().save(path / "3", {"a": np.ones(1)})
    return none, ocp.utils.any_checkpoint_step(path)


def temporary_directories(ocp, path):
    (path / f"4{ocp.utils.TMP_DIR_SUFFIX}17").mkdir()
    ocp.PyTreeCheckpointer().save(path / "3", {"a": np.ones(1)})
    found = [unfinished.get().name for unfinished in ocp.utils.tmp_checkpoints(path)]
    return ocp.step.TMP_DIR_SUFFIX, found, ocp.step.tmp_checkpoints(path)


def finalized_checkpoint(ocp, path):
    ocp.PyTreeCheckpointer().save(path / "3", {"a": np.ones(1)})
    return ocp.utils.is_checkpoint_finalized(path / "3"), ocp.step.is_checkpoint_finalized(
        path / "3"
    )


def step_from_name(ocp, path):
    return ocp.utils.step_from_checkpoint_name("checkpoint_12"), ocp.step.step_from_checkpoint_name(
        "7"
    )


def save_directory_of_a_step(ocp, path):
    found = ocp.utils.get_save_directory(7, path, name="params", step_prefix="ckpt")
    return str(found.relative_to(path))


def name_formats(ocp, path):
    fixed = ocp.step.standard_name_format(step_prefix="m", step_format_fixed_length=4)
    manager = ocp.CheckpointManager(
        path / "run", options=ocp.CheckpointManagerOptions(step_name_format=fixed)
    )
    for step in (1, 2):
        manager.save(step, args=ocp.args.StandardSave({"a": np.ones(1)}))
    manager.close()
    found = sorted(item.step for item in fixed.find_all(path / "run"))
    return fixed.build_name(3), found, fixed.find_step(path / "run", 2).path.name


def composite_name_format(ocp, path):
    old = ocp.step.standard_name_format()
    new = ocp.step.standard_name_format(step_prefix="step")
    for name in ("1", "step_2"):
        ocp.PyTreeCheckpointer().save(path / "run" / name, {"a": np.ones(1)})
    both = ocp.step.composite_name_format(new, [new, old])
    return both.build_name(9), sorted(item.step for item in both.find_all(path / "run"))


def step_path_that_may_be_unfinished(ocp, path):
    name_format = ocp.step.standard_name_format()
    ocp.PyTreeCheckpointer().save(path / "5", {"a": np.ones(1)})
    found = ocp.step.find_step_path(path, name_format, step=5, include_uncommitted=True)
    return found.name


def leaf_metadata(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"w": jnp.ones((2, 3)), "n": 1, "s": "t"})
    found = checkpointer.metadata(path / "one").item_metadata.tree
    kinds = (ocp.metadata.ArrayMetadata, ocp.metadata.ScalarMetadata, ocp.metadata.StringMetadata)
    matches = [isinstance(found[key], kind) for key, kind in zip("wns", kinds)]
    return (
        matches,
        found["w"].shape,
        str(found["w"].dtype),
        isinstance(found["w"], ocp.metadata.Metadata),
    )


def equal_leaf_metadata(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    for name in ("one", "two"):
        checkpointer.save(path / name, {"w": np.ones((2, 3))})
    first, second = (checkpointer.metadata(path / name).item_metadata for name in ("one", "two"))
    return first["w"] == second["w"]


def sharding_metadata(ocp, path):
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"w": jax.device_put(jnp.arange(4.0), sharding)})
    found = checkpointer.metadata(path / "one").item_metadata["w"].sharding
    is_named = isinstance(found, ocp.metadata.NamedShardingMetadata)
    return (
        is_named,
        found.partition_spec,
        tuple(found.axis_names),
        found.to_jax_sharding() == sharding,
    )


def restore_by_saved_metadata(ocp, path):
    handler = ocp.PyTreeCheckpointHandler()
    checkpointer = ocp.Checkpointer(handler)
    checkpointer.save(path / "one", {"w": jnp.ones((2, 3)), "b": np.ones(2, np.float32)})
    metadata = checkpointer.metadata(path / "one").item_metadata.tree
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    restore_args = jax.tree.map(
        lambda leaf: ocp.ArrayRestoreArgs(sharding=device, restore_type=jax.Array), metadata
    )
    return checkpointer.restore(path / "one", restore_args=restore_args)


def restore_args_of_a_sharding_tree(ocp, path):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    target = {"w": jnp.zeros(3), "n": 1}
    args = ocp.checkpoint_utils.construct_restore_args(target, {"w": device, "n": None})
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"w": jnp.arange(3.0), "n": 5})
    return checkpointer.restore(path / "one", item=target, restore_args=args)


def wait_for_a_checkpoint(ocp, path):
    from etils import epath

    with ocp.CheckpointManager(path / "run") as manager:
        manager.save(4, args=ocp.args.StandardSave({"a": np.ones(1)}))
    run = epath.Path(path / "run")
    with ocp.checkpoint_utils.wait_for_new_checkpoint(run, until_step=3, timeout=5) as step:
        return step


def compared_trees(ocp, path):
    class Case:
        def assertEqual(self, a, b, msg=None):
            assert a == b

        def assertTrue(self, value, msg=None):
            assert value

        def assertSameElements(self, a, b):
            assert set(a) == set(b)

        def assertDictEqual(self, a, b):
            assert a == b

        def assertIsInstance(self, a, kind):
            assert isinstance(a, kind)

    value = {"a": np.arange(3), "b": jnp.ones(2)}
    ocp.test_utils.assert_tree_equal(Case(), value, value)
    try:
        ocp.test_utils.assert_tree_equal(Case(), value, {**value, "b": jnp.zeros(2)})
    except AssertionError:
        return "differ"
    return None


def renamed_by_transform(ocp, path):
    checkpointer = ocp.PyTreeCheckpointer()
    checkpointer.save(path / "one", {"enc": {"w": np.arange(3)}, "step": 2})
    return checkpointer.restore(
        path / "one",
        item={"encoder": {"w": np.zeros(3, int)}, "step": 0},
        transforms={r"encoder/(.*)": ocp.Transform(original_key=r"enc/\1")},
        restore_args={
            "encoder": {"w": ocp.RestoreArgs(restore_type=np.ndarray)},
            "step": ocp.RestoreArgs(restore_type=int),
        },
    )


def value_function_of_a_transform(ocp, path):
    return ocp.apply_transformations(
        {"a": 1, "b": {"c": 2}},
        {"x": ocp.Transform(original_key="a", value_fn=lambda v: v + 10)},
        {"x": 0, "b": {"c": 0}},
    )


def fallback_of_a_transform(ocp, path):
    return ocp.apply_transformations(
        {"a": 1}, {"new": ocp.Transform(use_fallback=True)}, {"a": 0, "new": 7}
    )


def several_values_of_a_transform(ocp, path):
    return ocp.apply_transformations(
        {"a": 1, "b": 2},
        {"sum": ocp.Transform(multi_value_fn=lambda key, old: old["a"] + old["b"])},
        {"sum": 0},
    )

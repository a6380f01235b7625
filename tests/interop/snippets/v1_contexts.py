"""Options, parts and other formats in the v1 API, as public code uses them."""

import asyncio

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from safetensors.numpy import save_file


def weights():
    return {"layer": {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.zeros(4)}, "step": 7}


def mesh_of(count, name="data"):
    return Mesh(np.asarray(jax.devices()[:count]), (name,))


def sharded(count, *spec):
    return NamedSharding(mesh_of(count), PartitionSpec(*spec))


def shape_dtype(leaf):
    return (leaf.shape, str(leaf.dtype)) if hasattr(leaf, "shape") else leaf


def part_of_a_state(ocp, path):
    ocp.v1.save(path / "step", weights())
    context = ocp.v1.Context()
    context.pytree.loading.partial_load = True
    with context:
        return ocp.v1.load(path / "step", {"layer": {"w": weights()["layer"]["w"]}})


def part_by_frozen_options(ocp, path):
    options = ocp.v1.options
    ocp.v1.save(path / "step", weights())
    loading = options.PyTreeOptions.Loading(partial_load=True)
    with ocp.v1.Context(pytree_options=options.PyTreeOptions(loading=loading)):
        return ocp.v1.load(path / "step", {"step": 0})


def padded_and_cut(ocp, path):
    ocp.v1.save(path / "step", {"w": jnp.arange(6.0)})
    context = ocp.v1.Context()
    context.array.loading.enable_padding_and_truncation = True
    with context:
        return [
            ocp.v1.load(path / "step", {"w": jax.ShapeDtypeStruct((count,), jnp.float32)})
            for count in (3, 8)
        ]


def background_save_with_options(ocp, path):
    context = ocp.v1.Context()
    context.asynchronous.timeout_secs = 60
    with context:
        response = ocp.v1.save_async(path / "step", weights())
    response.result()
    return ocp.v1.load(path / "step")


def safetensors_file(ocp, path):
    save_file(
        {"a.w": np.ones((2, 3), np.float32), "b": np.arange(3, dtype=np.int32)},
        path / "model.safetensors",
    )
    context = ocp.v1.Context()
    context.checkpoint_layout = ocp.v1.options.CheckpointLayout.SAFETENSORS
    with context:
        described = ocp.v1.metadata(path).metadata
        found = ocp.v1.load(path)
        placed = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharded(2))
            for name, leaf in described.items()
        }
        return (
            {name: shape_dtype(leaf) for name, leaf in described.items()},
            jax.tree.map(np.asarray, found),
            ocp.v1.load(path, placed),
        )


def safetensors_by_frozen_options(ocp, path):
    save_file({"a": np.ones((2, 3), np.float32)}, path / "model.safetensors")
    layout = ocp.v1.options.CheckpointLayout.SAFETENSORS
    with ocp.v1.Context(checkpoint_layout=layout):
        return np.asarray(ocp.v1.load_pytree(path)["a"])


def storage_options(ocp, path):
    options = ocp.v1.options
    saving = options.ArrayOptions.Saving(use_ocdbt=False, use_zarr3=False)
    with ocp.v1.Context(array_options=options.ArrayOptions(saving=saving)):
        ocp.v1.save(path / "step", {"a": {"w": jnp.ones(3)}})
    files = sorted(p.name for p in (path / "step" / "state").iterdir())
    return "a.w" in files, "manifest.ocdbt" in files, ocp.v1.load(path / "step")


def stored_in_another_dtype(ocp, path):
    context = ocp.v1.Context()
    storage = ocp.v1.options.ArrayOptions.Saving.StorageOptions
    context.array.saving.storage_options = storage(dtype=jnp.bfloat16)
    with context:
        ocp.v1.save(path / "one", {"w": jnp.ones(3)})
    context = ocp.v1.Context()

    def scoped(key, value):
        return storage(dtype=jnp.float16) if "b" in jax.tree_util.keystr(key) else None

    context.array.saving.scoped_storage_options_creator = scoped
    with context:
        ocp.v1.save(path / "two", {"w": jnp.ones(3), "b": jnp.ones(2)})
    return ocp.v1.load(path / "one"), ocp.v1.load(path / "two")


def memory_limits(ocp, path):
    context = ocp.v1.Context()
    context.memory.write_concurrent_bytes = 10**6
    context.memory.read_concurrent_bytes = 10**6
    with context:
        ocp.v1.save(path / "step", weights())
        return ocp.v1.load(path / "step")


def nested_contexts(ocp, path):
    outer = ocp.v1.Context()
    outer.pytree.loading.partial_load = True
    with outer:
        inner = ocp.v1.Context(outer)
        inner.array.saving.use_ocdbt = False
        with inner:
            seen = (inner.pytree.loading.partial_load, inner.array.saving.use_ocdbt)
        return seen, outer.array.saving.use_ocdbt


def changed_while_active(ocp, path):
    context = ocp.v1.Context()
    with context:
        try:
            context.array.saving.use_ocdbt = False
        except RuntimeError:
            return "refused"
    return "changed"


def saved_in_parts(ocp, path):
    ocp.v1.partial.save(path / "step", {"params": weights()["layer"]})
    ocp.v1.partial.save_async(path / "step", {"step": 3}).result()
    ocp.v1.partial.finalize(path / "step")
    return ocp.v1.load(path / "step")


def saved_in_parts_with_metadata(ocp, path):
    ocp.v1.partial.save(path / "step", {"a": jnp.ones(2)}, custom_metadata={"x": 1})
    ocp.v1.partial.save(path / "step", {"b": {"c": jnp.ones(3)}}, custom_metadata={"y": 2})
    ocp.v1.partial.finalize(path / "step")
    return ocp.v1.load(path / "step"), ocp.v1.metadata(path / "step").custom_metadata


def merged_trees(ocp, path):
    merge = ocp.v1.tree.merge
    state = merge({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}})
    replaced = merge({"a": 1, "b": {"c": 2}}, {"b": {"c": 4}}, overwrite=True)
    try:
        merge({"a": 1}, {"a": 2})
    except ValueError:
        return state, replaced, "refused"
    return state, replaced, "merged"


def params_into_a_new_state(ocp, path):
    ocp.v1.save(path / "step", {"params": weights()["layer"], "step": 5})
    context = ocp.v1.Context()
    context.pytree.loading.partial_load = True
    with context:
        params = ocp.v1.load(path / "step", {"params": weights()["layer"]})
    return ocp.v1.tree.merge(params, {"head": jnp.zeros(2)})


def processes(ocp, path):
    multihost = ocp.v1.multihost
    asyncio.run(multihost.sync_global_processes("start", operation_id="1"))
    primary = multihost.is_primary_host(0)
    return multihost.process_index(), multihost.process_count(), primary

"""States in the v1 API, as public code uses them."""

import contextlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training import train_state
from jax.sharding import Mesh, NamedSharding, PartitionSpec


class Pair(NamedTuple):
    mu: object
    nu: object


def weights():
    return {"layer": {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.zeros(4)}, "step": 7}


def mesh_of(count, name="data"):
    return Mesh(np.asarray(jax.devices()[:count]), (name,))


def sharded(count, *spec):
    return NamedSharding(mesh_of(count), PartitionSpec(*spec))


def shape_dtype(leaf):
    return (leaf.shape, str(leaf.dtype)) if hasattr(leaf, "shape") else leaf


def save_then_load(ocp, path):
    ocp.v1.save(path / "step", weights())
    return ocp.v1.load(path / "step")


def save_at_a_string(ocp, path):
    ocp.v1.save(str(path / "step"), weights())
    return ocp.v1.load(str(path / "step"))


def older_names(ocp, path):
    ocp.v1.save_pytree(path / "one", weights())
    ocp.v1.save_pytree_async(path / "two", weights()).result()
    found = ocp.v1.pytree_metadata(path / "one").metadata
    return ocp.v1.load_pytree(path / "one", weights()), shape_dtype(found["layer"]["w"])


def older_names_by_keyword(ocp, path):
    def tried(call):
        try:
            call()
        except TypeError:
            return "refused"
        return "done"

    return [
        tried(lambda: ocp.v1.save_pytree(path=path / "one", state=weights())),
        tried(lambda: ocp.v1.save_pytree(path=path / "two", pytree=weights())),
        tried(lambda: ocp.v1.load_pytree(path=path / "one", abstract_state=weights())),
        tried(lambda: ocp.v1.load_pytree(path / "one", abstract_pytree=weights())),
    ]


def shapes_from_eval_shape(ocp, path):
    state = weights()["layer"]
    ocp.v1.save(path / "step", state)
    return ocp.v1.load(path / "step", jax.eval_shape(lambda: state))


def shapes_of_a_mapped_state(ocp, path):
    state = weights()
    ocp.v1.save(path / "step", state)
    return ocp.v1.load(path / "step", jax.tree.map(ocp.v1.arrays.to_shape_dtype_struct, state))


def shape_dtype_structs(ocp, path):
    convert = ocp.v1.arrays.to_shape_dtype_struct
    array = jax.device_put(jnp.ones((4, 2)), sharded(2, "data"))
    found = [
        convert(array),
        convert(array, jnp.bfloat16),
        convert(np.ones(3, np.int8)),
        convert(jax.ShapeDtypeStruct((2,), jnp.float32)),
    ]
    return [(*shape_dtype(one), str(one.sharding)) for one in found], convert(3), convert(2.5)


def another_sharding(ocp, path):
    state = {"w": jax.device_put(jnp.arange(16.0).reshape(8, 2), sharded(4, "data"))}
    ocp.v1.save(path / "step", state)
    abstract = {
        "w": jax.ShapeDtypeStruct((8, 2), jnp.float32, sharding=sharded(2, None, "data")),
    }
    return ocp.v1.load(path / "step", abstract)


def saved_sharding(ocp, path):
    state = {"w": jax.device_put(jnp.arange(8.0), sharded(4, "data"))}
    ocp.v1.save(path / "step", state)
    return ocp.v1.load(path / "step")


def sharding_of_the_metadata(ocp, path):
    state = {"w": jax.device_put(jnp.arange(8.0), sharded(4, "data")), "n": np.ones(2)}
    ocp.v1.save(path / "step", state)
    found = ocp.v1.metadata(path / "step").metadata
    place = found["w"].sharding_metadata.to_jax_sharding()
    return place == state["w"].sharding, hasattr(found["n"], "sharding")


def lower_precision(ocp, path):
    ocp.v1.save(path / "step", weights())
    abstract = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, int) else leaf.astype(jnp.bfloat16), weights()
    )
    return ocp.v1.load(path / "step", abstract)


def arrays_as_numpy(ocp, path):
    ocp.v1.save(path / "step", weights())
    described = ocp.v1.metadata(path / "step").metadata
    abstract = jax.tree.map(
        lambda leaf: np.empty(leaf.shape, leaf.dtype) if hasattr(leaf, "shape") else leaf, described
    )
    return ocp.v1.load(path / "step", abstract)


def random_keys(ocp, path):
    ocp.v1.save(path / "step", {"rng": jax.random.key(3), "old": jax.random.PRNGKey(1)})
    found = ocp.v1.load(path / "step")
    return jax.random.key_data(found["rng"]).tolist(), found["old"]


def typed_keys_by_an_abstract_state(ocp, path):
    state = {"rng": jax.random.key(3)}
    ocp.v1.save(path / "step", state)
    found = ocp.v1.load(path / "step", state)["rng"]
    return str(found.dtype), jax.random.key_data(found).tolist()


def named_tuples_of_an_optimizer(ocp, path):
    params = weights()["layer"]
    optimizer = optax.adamw(1e-3)
    state = {"params": params, "opt": optimizer.init(params), "pair": Pair(jnp.ones(2), [1, 2])}
    ocp.v1.save(path / "step", state)
    found = ocp.v1.load(path / "step", state)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    plain = ocp.v1.load(path / "step")
    return jax.tree.leaves(found), plain["pair"], len(plain["opt"]), sorted(plain["opt"][0])


def a_train_state(ocp, path):
    params = weights()["layer"]
    state = train_state.TrainState.create(apply_fn=None, params=params, tx=optax.sgd(0.1))
    state = state.replace(step=jnp.int32(3))
    ocp.v1.save(path / "step", state)
    found = ocp.v1.load(path / "step", jax.eval_shape(lambda: state))
    return type(found).__name__, found.step, found.params


def an_nnx_module(ocp, path):
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    _, state = nnx.split(model)
    ocp.v1.save(path / "step", state)
    other = nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(1)))
    graph, abstract = nnx.split(other)
    found = nnx.merge(graph, ocp.v1.load(path / "step", abstract))
    return found(jnp.ones((1, 2))).tolist() == model(jnp.ones((1, 2))).tolist()


def pure_dict_of_nnx(ocp, path):
    state = nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    ocp.v1.save(path / "step", nnx.to_pure_dict(state))
    found = ocp.v1.load(path / "step", nnx.to_pure_dict(state))
    nnx.replace_by_pure_dict(state, found)
    return nnx.to_pure_dict(state)


def placeholders(ocp, path):
    ocp.v1.save(path / "step", weights())
    skip = ocp.v1.PLACEHOLDER
    abstract = {"layer": {"w": weights()["layer"]["w"], "b": skip}, "step": skip}
    found = ocp.v1.load(path / "step", abstract)
    return found["layer"]["w"], found["layer"]["b"] is skip, found["step"] is ...


def wrong_structure(ocp, path):
    ocp.v1.save(path / "step", weights())
    with contextlib.suppress(ValueError, KeyError):
        ocp.v1.load(path / "step", {"layer": {"w": 0}})
        return "loaded"
    return "refused"


def wrong_shape(ocp, path):
    ocp.v1.save(path / "step", {"w": jnp.arange(6.0)})
    with contextlib.suppress(ValueError):
        ocp.v1.load(path / "step", {"w": jax.ShapeDtypeStruct((3,), jnp.float32)})
        return "loaded"
    return "refused"


def existing_directory(ocp, path):
    ocp.v1.save(path / "step", {"a": 1})
    try:
        ocp.v1.save(path / "step", {"a": 2})
    except ValueError:
        ocp.v1.save(path / "step", {"a": 3}, overwrite=True)
    return ocp.v1.load(path / "step")


def background_save(ocp, path):
    response = ocp.v1.save_async(path / "step", weights())
    return response.result(), ocp.v1.load(path / "step"), response.result(timeout=5)


def two_background_saves(ocp, path):
    responses = [ocp.v1.save_async(path / str(step), {"a": step}) for step in range(2)]
    for response in responses:
        response.result()
    return [ocp.v1.load(path / str(step)) for step in range(2)]


def donated_after_a_background_save(ocp, path):
    state = {"w": jnp.arange(4.0)}
    response = ocp.v1.save_async(path / "step", state)
    state = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(state)
    response.result()
    return state, ocp.v1.load(path / "step")


def custom_metadata(ocp, path):
    ocp.v1.save(path / "step", weights(), custom_metadata={"model": "tiny", "sizes": [1, 2]})
    found = ocp.v1.metadata(path / "step")
    ordered = found.init_timestamp_nsecs <= found.commit_timestamp_nsecs
    return found.custom_metadata, ordered, found.path.name


def described_state(ocp, path):
    ocp.v1.save(path / "step", {**weights(), "n": np.ones(2, np.int16), "s": "x"})
    found = ocp.v1.metadata(path / "step").metadata
    return jax.tree.map(shape_dtype, found, is_leaf=lambda leaf: hasattr(leaf, "shape"))


def restored_by_its_metadata(ocp, path):
    ocp.v1.save(path / "step", weights())
    described = ocp.v1.metadata(path / "step")
    return ocp.v1.load(path / "step", described), ocp.v1.load(path / "step", described.metadata)


def metadata_with_other_shardings(ocp, path):
    ocp.v1.save(path / "step", {"w": jnp.arange(8.0), "v": jnp.ones((8, 2))})
    described = ocp.v1.metadata(path / "step").metadata
    abstract = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharded(2, "data")),
        described,
    )
    return ocp.v1.load(path / "step", abstract)


def deleted_checkpoint(ocp, path):
    ocp.v1.save(path / "step", weights())
    deleted = ocp.v1.delete(path / "step")
    again = ocp.v1.delete_async(path / "step", missing_ok=True).result()
    return deleted, again, (path / "step").exists()


def is_a_checkpoint(ocp, path):
    ocp.v1.save(path / "step", weights())
    (path / "empty").mkdir()
    (path / "file").write_text("x")
    found = [ocp.v1.is_orbax_checkpoint(path / name) for name in ("step", "missing", "file")]
    return found, ocp.v1.is_orbax_checkpoint(str(path / "step"))


def missing_checkpoint(ocp, path):
    try:
        ocp.v1.load(path / "missing")
    except ocp.v1.errors.InvalidLayoutError as error:
        return isinstance(error, ValueError)
    return "loaded"


def checkpoint_of_the_older_api(ocp, path):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path / "step", weights())
    return ocp.v1.load(path / "step", checkpointable_name=None), ocp.v1.load(path / "step")


def item_of_an_older_manager(ocp, path):
    with ocp.CheckpointManager(path / "run") as manager:
        manager.save(3, args=ocp.args.Composite(items=ocp.args.StandardSave(weights())))
    named = ocp.v1.load(path / "run" / "3", weights(), checkpointable_name="items")
    return named, ocp.v1.load(path / "run" / "3")


def only_item_of_an_older_manager(ocp, path):
    with ocp.CheckpointManager(path / "run") as manager:
        manager.save(3, args=ocp.args.StandardSave(weights()))
    return ocp.v1.load(path / "run" / "3", checkpointable_name="default")


def read_by_the_older_api(ocp, path):
    ocp.v1.save(path / "step", weights())
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path / "step" / "state")

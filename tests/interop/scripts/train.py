"""A training run with one state: saved at intervals, restarted, evaluated."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

directory = Path(sys.argv[1])
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))
optimizer = optax.adam(1e-2)


def init_state(seed):
    key, weights_key = jax.random.split(jax.random.key(seed))
    replicated = NamedSharding(mesh, P())
    params = {
        "dense": {
            "kernel": jax.device_put(
                jax.random.normal(weights_key, (8, 4)), NamedSharding(mesh, P("data", "model"))
            ),
            "bias": jax.device_put(jnp.zeros(4), replicated),
        }
    }
    opt_state = jax.tree.map(
        lambda x: x if x.ndim else jax.device_put(x, replicated), optimizer.init(params)
    )
    return {
        "params": params,
        "opt_state": opt_state,
        "rng": jax.random.key_data(key),
        "step": np.array(0, np.int64),
        "epoch": 0,
    }


@jax.jit
def update(params, opt_state, x):
    def loss_fn(params):
        y = x @ params["dense"]["kernel"] + params["dense"]["bias"]
        return jnp.mean(jnp.square(y - 1))

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def train_step(state, step):
    x = jnp.asarray(np.random.default_rng(step).normal(size=(16, 8)), jnp.float32)
    params, opt_state, loss = update(state["params"], state["opt_state"], x)
    step = np.asarray(step, np.int64)
    return {**state, "params": params, "opt_state": opt_state, "step": step}, float(loss)


def show(title, tree):
    print(title)
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        kind = "jax" if isinstance(leaf, jax.Array) else type(leaf).__name__
        spec = leaf.sharding.spec if hasattr(leaf, "sharding") and leaf.ndim == 2 else ""
        total = float(np.asarray(leaf, np.float64).sum())
        names = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", k)))) for k in path]
        print(" ", ".".join(names), kind, np.shape(leaf), spec, f"{total:.6f}")


def options(**more):
    return ocp.CheckpointManagerOptions(
        save_interval_steps=2, max_to_keep=3, keep_period=6, step_prefix="ckpt", **more
    )


# The first process.
with ocp.CheckpointManager(directory, options=options(create=True), metadata={"lr": 0.01}) as mngr:
    state = init_state(0)
    print("begin", mngr.latest_step(), mngr.all_steps())
    for step in range(9):
        state, loss = train_step(state, step)
        saved = mngr.save(step, args=ocp.args.StandardSave(state), custom_metadata={"loss": loss})
        mngr.wait_until_finished()
        print("step", step, saved, mngr.should_save(step), mngr.should_save(step + 1))
    mngr.save(9, args=ocp.args.StandardSave(state), force=True)
    mngr.wait_until_finished()
    print("end", mngr.latest_step(), mngr.all_steps())

print(sorted(path.name for path in directory.iterdir()))

# The second goes on.
mngr = ocp.CheckpointManager(directory, options=options())
print("latest", mngr.latest_step(), "best", mngr.best_step(), "of", mngr.all_steps())
print(dict(mngr.metadata().custom_metadata))
abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, init_state(1))
state = mngr.restore(mngr.latest_step(), args=ocp.args.StandardRestore(abstract))
show("restored", state)
for step in range(10, 13):
    state, loss = train_step(state, step)
    print(step, mngr.save(step, args=ocp.args.StandardSave(state)), f"{loss:.5f}")
mngr.wait_until_finished()
mngr.check_for_errors()
print(mngr.all_steps(), mngr.is_saving_in_progress(), mngr.reached_preemption(12))
meta = mngr.item_metadata(12)
print(meta["params"]["dense"]["kernel"].shape, meta["params"]["dense"]["kernel"].dtype)
print({k: round(v, 5) for k, v in mngr.metadata(6).custom_metadata.items()})
print(jax.tree.map(lambda leaf: leaf.shape, meta.tree["params"]))
print(ocp.utils.to_shape_dtype_struct(meta["params"]["dense"]["kernel"]).sharding.spec)
mngr.delete(9)
print(mngr.all_steps())
mngr.reload()
print(mngr.all_steps(read=True))
mngr.close()

# An evaluation restores in several ways.
mngr = ocp.CheckpointManager(directory, options=options(read_only=True))
print(mngr.save(20, args=ocp.args.StandardSave(state)), mngr.should_save(20))
show("as saved", mngr.restore(mngr.latest_step()))
params = {"params": abstract["params"]}
restore_args = ocp.checkpoint_utils.construct_restore_args(params)
show(
    "only params",
    ocp.CheckpointManager(directory, options=options(read_only=True)).restore(
        None,
        args=ocp.args.PyTreeRestore(params, restore_args=restore_args, partial_restore=True),
    ),
)
restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), abstract)
with ocp.CheckpointManager(directory, options=options(read_only=True)) as other:
    args = ocp.args.PyTreeRestore(abstract, restore_args=restore_args)
    show("as numpy", other.restore(12, args=args))
mngr.close()

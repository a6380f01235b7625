"""Several items a step: a state, a configuration, the position in the data; the best are kept."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

directory = Path(sys.argv[1])
losses = [0.9, 0.5, 0.7, 0.4, 0.6, 0.8]


def manager(**more):
    fields = {"best_fn": lambda m: m["val"]["loss"], "best_mode": "min", "max_to_keep": 3, **more}
    return ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(**fields))


def items(step):
    return ocp.args.Composite(
        state=ocp.args.StandardSave({"w": jnp.full((2, 3), step, jnp.bfloat16), "n": step}),
        config=ocp.args.JsonSave({"layers": [1, 2], "name": "x", "step": step}),
        data=ocp.args.PyTreeSave({"position": step, "seed": np.arange(3), "file": f"f{step}"}),
        ema=ocp.args.ArraySave(jnp.arange(4.0) * step),
        rng=ocp.args.JaxRandomKeySave(jax.random.key(step)),
    )


def show(items):
    for name in sorted(items.keys()):
        value = items[name]
        if name == "rng":
            value = jax.random.key_data(value)
        print("  ", name, jax.tree.map(lambda x: np.asarray(x).tolist(), value))


mngr = manager()
for step, loss in enumerate(losses[:-1]):
    metrics = {"val": {"loss": loss}, "lr": np.float32(0.5).item()}
    print(step, mngr.save(step, args=items(step), metrics=metrics))
mngr.wait_until_finished()
kept = [step for step in mngr.all_steps() if step != 4]  # one library keeps the newest besides
print("best", mngr.best_step(), kept)
print(mngr.metrics(mngr.best_step()), mngr.metadata(3).metrics)
mngr.close()

mngr = manager()
print(mngr.best_step(), mngr.metrics(1))
restored = mngr.restore(mngr.best_step())
print(type(restored).__name__.startswith("Composite"))
show(restored)
args = ocp.args.Composite(
    state=ocp.args.StandardRestore({"w": np.zeros((2, 3), jnp.bfloat16), "n": 0}),
    config=ocp.args.JsonRestore(),
    rng=ocp.args.JaxRandomKeyRestore(),
)
restored = mngr.restore(1, args=args)
print(sorted(restored), restored.config["step"], restored.state["n"], type(restored.state["w"]))
show(restored)
metadata = mngr.item_metadata(1)
print(sorted(metadata), metadata.config, metadata["state"]["w"].shape, metadata.state["w"].dtype)
print(
    {name: handler.rpartition(".")[2] for name, handler in mngr.metadata(1).item_handlers.items()}
)
try:
    mngr.restore(1, args=ocp.args.Composite(missing=ocp.args.JsonRestore()))
except (KeyError, FileNotFoundError):
    print("missing item")
try:
    mngr.save(3, args=items(3), metrics={"val": {"loss": 1}}, force=True)
except ValueError:
    print("exists")
try:
    mngr.restore(77, args=args)
except FileNotFoundError:
    print("no step 77")
try:
    mngr.delete(77)
except FileNotFoundError:
    print("cannot delete 77")
try:
    mngr.save(88, args=ocp.args.StandardSave({"a": 1}))
except ValueError:
    print("not Composite")
mngr.close()

"""The API of before arguments: checkpointers, items, and keyword arguments by item."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

directory = Path(sys.argv[1])
state = {"w": jnp.arange(6.0).reshape(2, 3), "b": np.arange(3), "n": 3}


def show(tree):
    print("  ", jax.tree.map(lambda x: (type(x).__name__, np.asarray(x).tolist()), tree))


single = ocp.CheckpointManager(
    directory / "single",
    ocp.PyTreeCheckpointer(),
    ocp.CheckpointManagerOptions(max_to_keep=2, create=True),
)
save_args = jax.tree.map(lambda _: ocp.SaveArgs(), state)
for step in range(3):
    print(single.save(step, state, save_kwargs={"save_args": save_args}))
print(single.all_steps(), single.latest_step())
show(single.restore(2))
target = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.int64), "n": 0}
show(single.restore(2, items=target))
restore_args = ocp.checkpoint_utils.construct_restore_args(target)
show(single.restore(1, items=target, restore_kwargs={"restore_args": restore_args}))

several = ocp.CheckpointManager(
    directory / "several",
    {
        "state": ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler()),
        "meta": ocp.Checkpointer(ocp.JsonCheckpointHandler()),
    },
)
several.save(1, {"state": state, "meta": {"a": [1, None]}})
several.wait_until_finished()
restored = several.restore(1)
print(sorted(restored))
show(restored["state"])
print(restored["meta"])
restored = several.restore(1, items={"state": target})
print("state" in restored)
several.close()

handlers = ocp.CheckpointManager(
    directory / "handlers",
    item_handlers={"state": ocp.StandardCheckpointHandler(), "meta": ocp.JsonCheckpointHandler()},
)
handlers.save(
    0,
    args=ocp.args.Composite(state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave({"x": 1})),
)
handlers.wait_until_finished()
print(handlers.item_metadata(0)["state"]["w"].shape)
restored = handlers.restore(0)
show(restored.state)
print(restored.meta)
handlers.close()

one = ocp.CheckpointManager(directory / "one", item_handlers=ocp.StandardCheckpointHandler())
one.save(0, args=ocp.args.StandardSave(state))
one.wait_until_finished()
print(one.item_metadata(0)["w"].shape)
show(one.restore(0))
one.close()
print(sorted(ocp.utils.checkpoint_steps(directory / "single")))
print(ocp.step.find_step_path(directory / "single", ocp.step.standard_name_format(), step=2).name)

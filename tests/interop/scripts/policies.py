"""When to save and what to keep, said by policies and by options."""

import datetime as dt
import sys
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
from etils import epath

directory = Path(sys.argv[1])
managers = ocp.checkpoint_managers


def run(name, steps=range(12), losses=None, **options):
    path = directory / name
    saved = []
    with ocp.CheckpointManager(path, options=ocp.CheckpointManagerOptions(**options)) as mngr:
        for step in steps:
            more = {} if losses is None else {"metrics": losses[step]}
            if mngr.save(step, args=ocp.args.StandardSave({"w": np.full(2, step)}), **more):
                saved.append(step)
            mngr.wait_until_finished()
        print(name, "saved", saved, "kept", mngr.all_steps(), mngr.latest_step(), mngr.best_step())
    print("  ", sorted(entry.name for entry in epath.Path(path).iterdir()))


run("all")
run("interval", save_interval_steps=5, max_to_keep=2)
run("period", max_to_keep=1, keep_period=4)
run("steps", save_interval_steps=100, save_on_steps=[3, 7])
run("function", should_save_fn=lambda step, _: step % 3 == 1)
run("from-5", steps=[5, 6, 8, 10], save_interval_steps=4)
run("time", max_to_keep=1, keep_time_interval=dt.timedelta(hours=1))
run("names", steps=[0, 3], step_prefix="a_b", step_format_fixed_length=4)
run("trash", steps=range(4), max_to_keep=1, todelete_subdir="trash")
run("background", steps=range(4), max_to_keep=1, enable_background_delete=True)
run("sync", steps=range(4), max_to_keep=2, enable_async_checkpointing=False)
run(
    "decisions",
    save_decision_policy=managers.AnySavePolicy(
        [managers.FixedIntervalPolicy(4), managers.SpecificStepsPolicy([5])]
    ),
)
run("initial", steps=range(3, 9), save_decision_policy=managers.InitialSavePolicy())
run("latest", preservation_policy=managers.LatestN(2))
run(
    "any",
    preservation_policy=managers.AnyPreservationPolicy(
        [managers.LatestN(1), managers.EveryNSteps(5), managers.CustomSteps([3])]
    ),
)
run("named", preservation_policy=managers.preservation_policy.LatestN(n=3))
best = {step: {"acc": value} for step, value in enumerate([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8])}
run("best", losses=best, best_fn=lambda m: m["acc"], max_to_keep=3)
run("best-period", losses=best, best_fn=lambda m: m["acc"], max_to_keep=2, keep_period=5)
run(
    "best-policy",
    losses=best,
    best_fn=lambda m: m["acc"],
    preservation_policy=managers.AnyPreservationPolicy(
        [
            managers.BestN(get_metric_fn=lambda m: m["acc"], n=2),
            managers.LatestN(1),
        ]
    ),
)
run("no-metrics", steps=range(4), best_fn=lambda m: m["acc"], max_to_keep=1)

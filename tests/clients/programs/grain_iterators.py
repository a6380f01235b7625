"""Grain's iterators in a run, as in "Checkpointing" of its documentation."""

from pathlib import Path

import grain
import grain.python as pygrain
import jax.numpy as jnp
import orbax.checkpoint as ocp
from _report import describe, main


def make_loader() -> pygrain.DataLoader:
    source = pygrain.RangeDataSource(start=0, stop=40, step=1)
    sampler = pygrain.IndexSampler(
        num_records=40, shard_options=pygrain.NoSharding(), shuffle=True, num_epochs=1, seed=3
    )
    return pygrain.DataLoader(
        data_source=source, sampler=sampler, operations=[pygrain.Batch(2)], worker_count=0
    )


def make_dataset() -> grain.MapDataset:
    return grain.MapDataset.range(40).shuffle(seed=5).map(lambda x: x * 10).batch(2)


def rest_of(iterator: object) -> list[object]:
    return [batch.tolist() for batch in iterator]


def save(directory: Path) -> object:
    loader, dataset = iter(make_loader()), iter(make_dataset().to_iter_dataset())
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    seen = []
    with ocp.CheckpointManager(directory / "run", options=options) as manager:
        for step in range(4):
            seen.append([next(loader).tolist(), next(dataset).tolist()])
            manager.save(
                step,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave({"w": jnp.arange(4.0) + step}),
                    loader=pygrain.PyGrainCheckpointSave(loader),
                    dataset=grain.checkpoint.CheckpointSave(dataset),
                ),
            )
        manager.wait_until_finished()
        steps = list(manager.all_steps())

    handlers = {"loader": ocp.Checkpointer(pygrain.PyGrainCheckpointHandler())}
    with ocp.CheckpointManager(directory / "legacy", handlers) as manager:
        manager.save(0, {"loader": loader})

    checkpointer = ocp.Checkpointer(pygrain.PyGrainCheckpointHandler())
    checkpointer.save(directory / "alone", args=pygrain.PyGrainCheckpointSave(loader))
    return {"seen": seen, "steps": steps, "files": files_in(directory / "run" / "3" / "loader")}


def files_in(directory: Path) -> list[str]:
    names = {path.name for path in directory.iterdir()}
    return sorted(names - {"orbit_manifest.json"})


def restore(directory: Path) -> object:
    loader, dataset = iter(make_loader()), iter(make_dataset().to_iter_dataset())
    results = {}
    with ocp.CheckpointManager(directory / "run") as manager:
        restored = manager.restore(
            manager.latest_step(),
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore({"w": jnp.zeros(4)}),
                loader=pygrain.PyGrainCheckpointRestore(loader),
                dataset=grain.checkpoint.CheckpointRestore(dataset),
            ),
        )
        results["same objects"] = [restored.loader is loader, restored.dataset is dataset]
        results["params"] = describe(restored.params)
        results["loader"] = rest_of(loader)
        results["dataset"] = rest_of(dataset)

    loader = iter(make_loader())
    handlers = {"loader": ocp.Checkpointer(pygrain.PyGrainCheckpointHandler())}
    with ocp.CheckpointManager(directory / "legacy", handlers) as manager:
        manager.restore(0, items={"loader": loader})
        results["legacy"] = rest_of(loader)

    loader = iter(make_loader())
    checkpointer = ocp.Checkpointer(pygrain.PyGrainCheckpointHandler())
    checkpointer.restore(directory / "alone", args=pygrain.PyGrainCheckpointRestore(loader))
    results["alone"] = rest_of(loader)
    return results


if __name__ == "__main__":
    main(save, restore)

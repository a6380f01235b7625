"""One process of a program that uses the v1 API; prints `done` if all is as it should be."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orbit_ckpt import v1
from orbit_ckpt.errors import StepAlreadyExistsError

SHAPE = (32, 64)


def sharding(*axes: str | tuple[str, ...] | None) -> NamedSharding:
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("x", "y"))
    return NamedSharding(mesh, PartitionSpec(*axes))


def host_values(step: int) -> np.ndarray:
    return np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE) + step


def make_state(step: int) -> dict[str, Any]:
    """Return a state with an array of which every process has a part."""
    values = host_values(step)
    array = jax.make_array_from_callback(SHAPE, sharding("x", "y"), values.__getitem__)
    return {"w": array, "step": step}


def check(state: dict[str, Any], step: int, wanted: NamedSharding | None = None) -> None:
    assert state["step"] == step
    assert state["w"].sharding == (wanted or sharding("x", "y"))
    for shard in state["w"].addressable_shards:
        np.testing.assert_array_equal(shard.data, host_values(step)[shard.index])


class Position:
    """Saves one file for each process."""

    def __init__(self, value: int) -> None:
        self.value = value

    def _name(self) -> str:
        return f"position_{jax.process_index()}.json"

    async def save(self, directory: Any) -> Any:
        text = json.dumps(self.value)

        async def write() -> None:
            ((await directory.await_creation()) / self._name()).write_text(text)

        return write()

    async def load(self, directory: Path) -> Any:
        async def read() -> None:
            self.value = json.loads((directory / self._name()).read_text())

        return read()


def states(directory: Path) -> None:
    """Save and load states, at once and in the background."""
    path = directory / "state"
    v1.save(path, make_state(1))
    check(v1.load(path), 1)
    check(v1.load(path, make_state(0)), 1)
    other = sharding(None, ("x", "y"))
    abstract = {"w": jax.ShapeDtypeStruct(SHAPE, np.float32, sharding=other), "step": 0}
    check(v1.load(path, abstract), 1, other)
    assert v1.metadata(path).metadata["w"].shape == SHAPE
    v1.save_async(path, make_state(2), overwrite=True).result()
    check(v1.load(path), 2)

    index = jax.process_index()
    v1.save_checkpointables(directory / "items", {"state": make_state(3), "data": Position(index)})
    data = Position(-1)
    found = v1.load_checkpointables(directory / "items", {"state": make_state(0), "data": data})
    check(found["state"], 3)
    assert data.value == index

    v1.partial.save(directory / "parts", {"w": make_state(4)["w"]})
    v1.partial.save(directory / "parts", {"step": 4})
    v1.partial.finalize(directory / "parts")
    asyncio.run(v1.multihost.sync_global_processes("finalized", operation_id="1"))
    check(v1.load(directory / "parts", make_state(0)), 4)


def run(directory: Path) -> None:
    """Save the steps of a run, list and load one in progress, and resume."""
    policies, keep = v1.training.save_decision_policies, v1.training.preservation_policies

    def open_run() -> v1.training.Checkpointer:
        return v1.training.Checkpointer(
            directory / "run",
            save_decision_policy=policies.FixedIntervalPolicy(2),
            preservation_policy=keep.LatestN(2),
        )

    with open_run() as opened:
        for step in range(5):
            response = opened.save_async(step, make_state(step), metrics={"loss": step})
            assert (response is not None) == (step % 2 == 0)
        assert opened.latest is not None
        assert opened.latest.step == 4
        check(opened.load(opened.latest), 4)
        try:
            opened.save(4, make_state(0), force=True)
        except StepAlreadyExistsError:
            pass
        else:
            raise AssertionError("the step in progress is saved twice")
        assert [step.step for step in opened.checkpoints] == [2, 4]
        assert opened.save(5, make_state(5), force=True)
        opened.save_async(6, make_state(6))
        assert opened.save(6, make_state(7), overwrite=True, force=True)
        check(opened.load(6, make_state(0)), 7)

    with open_run() as opened:
        assert [step.step for step in opened.checkpoints] == [5, 6]
        check(opened.load(5, make_state(0)), 5)
        assert opened.delete(5)
        assert [step.step for step in opened.checkpoints] == [6]


def main(index: int, count: int, port: int, scenario: str, directory: str) -> None:
    """Run a scenario in a directory as one of several processes."""
    jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    {"states": states, "run": run}[scenario](Path(directory))
    jax.distributed.shutdown()
    print("done", flush=True)

"""A training run that is killed: what it saves, what must be left of it, and a life of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.layout import OCDBT_DATA, PINNED
from orbit_ckpt.policies import LatestN
from orbit_ckpt.testing.write_faults import before_every_write
from tests.faults.support import snapshot

Report = Callable[[dict[str, Any]], None]

PIN_EVERY = 7

_FROZEN, _FROZEN_FOR = 8, 6
"""How many arrays seldom change, and after how many steps."""


@dataclass(frozen=True)
class Setting:
    """How a run saves.

    Attributes:
        background: Whether saves go on in the background.
        background_delete: Whether deletions have a thread of their own.
        in_place: Whether steps become visible by a marker file.
        incremental: Whether steps share the arrays of which only some change at each step.
        nbytes: Size of the large array.
    """

    background: bool = True
    background_delete: bool = False
    in_place: bool = False
    incremental: bool = False
    nbytes: int = 4 << 20

    def open(self, root: Path, when_durable: Callable[[], None]) -> ocp.CheckpointManager:
        """Open a run."""
        mode = ocp.AtomicityMode.COMMIT_FILE if self.in_place else ocp.AtomicityMode.AUTO
        options = ocp.CheckpointManagerOptions(
            max_to_keep=3,
            keep_period=20,
            item_preservation_policies={"data": LatestN(2)},
            enable_async_checkpointing=self.background,
            enable_background_delete=self.background_delete,
            async_options=ocp.AsyncOptions(post_finalization_callback=when_durable),
            atomicity_options=ocp.AtomicityOptions(mode=mode),
            incremental=self.incremental,
            full_every=9,
        )
        names = ["state", "data"]
        return ocp.CheckpointManager(root, None, options, {"run": "killed"}, item_names=names)

    def state(self, step: int) -> dict[str, Any]:
        """Return the tree of a step, of which every leaf but the frozen ones depends on it."""
        rng = np.random.default_rng(step)
        seldom = [(i, (step + i) // _FROZEN_FOR) for i in range(_FROZEN if self.incremental else 0)]
        return {
            "frozen": [np.random.default_rng(seed).normal(size=(64, 128)) for seed in seldom],
            "large": np.frombuffer(rng.bytes(self.nbytes), np.uint8).reshape(-1, 1 << 10),
            "jax": jnp.arange(300.0) + step,
            "blocks": [np.full(50, step + i, np.int32) for i in range(3)],
            "step": step,
            "name": f"step {step}",
        }

    def save(self, manager: ocp.CheckpointManager, step: int) -> None:
        """Save a step."""
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(self.state(step)), data=ocp.args.JsonSave(data(step))
        )
        assert manager.save(step, args=items, metrics=metrics(step))

    def wrong(self, manager: ocp.CheckpointManager) -> list[str]:
        """Return what is wrong with the listed steps; restores all of them."""
        return [text for step in manager.all_steps() for text in self._wrong(manager, step)]

    def _wrong(self, manager: ocp.CheckpointManager, step: int) -> list[str]:
        try:
            items = manager.restore(step)
        except Exception as error:  # noqa: BLE001 - whatever it is, the test tells it
            return [f"step {step}: {error!r}"]
        expected = {"state": snapshot(self.state(step)), "metrics": metrics(step)}
        found = {"state": snapshot(items.state), "metrics": items.get("metrics")}
        if "data" in items or step in manager.all_steps()[-2:]:
            expected["data"], found["data"] = data(step), items.get("data")
        stray = _unrecorded(manager.directory / str(step) / "state")
        return [
            f"step {step}: {name} differs" for name in expected if expected[name] != found[name]
        ] + [f"step {step}: {name} is of no use" for name in stray]


def _unrecorded(tree: Path) -> set[str]:
    """Return the data files of a tree that its manifest does not record."""
    manifest = CheckedDirectory(tree).manifest
    assert manifest is not None
    known = {*manifest.files, *manifest.self_checked}
    return {f"{OCDBT_DATA}/{name}" for name in os.listdir(tree / OCDBT_DATA)} - known


def data(step: int) -> dict[str, Any]:
    """Return the JSON item of a step."""
    return {"position": step * 1000, "files": [f"part-{step}-{i}" for i in range(20)]}


def metrics(step: int) -> dict[str, float]:
    """Return the metrics of a step."""
    return {"loss": 1 / (1 + step)}


def kept(steps: Collection[int], pinned: Collection[int]) -> set[int]:
    """Return which steps the run's options keep."""
    newest = sorted(steps)[-3:]
    return {step for step in steps if step in newest or step % 20 == 0 or step in pinned}


def live(order: dict[str, Any], report: Report) -> None:
    """Look at what is left of a run, then go on with it until something kills this process.

    Reports the steps found and what is wrong with them, then each step that is durable, each that
    is pinned, and, after two saves, what the directory holds.

    Args:
        order: The `setting`, the `path`, how many steps to `skip`, how many `saves`, and before
            which operation to die, `kill`: its name and a number, None for none; `signal` is how.
        report: Takes what there is to say.
    """
    setting = Setting(**order["setting"])
    root = Path(order["path"])
    name, nth = order["kill"] or (None, 0)

    def die(operation: str) -> None:
        nonlocal nth
        nth -= operation == name
        if operation == name and nth == 0:
            os.kill(os.getpid(), signal.Signals[order.get("signal", "SIGKILL")])

    with before_every_write(die, deletions=True, data=True):
        manager = setting.open(root, lambda: report({"durable": manager.latest_step()}))
        report({"found": manager.all_steps(), "wrong": setting.wrong(manager)})
        first = (manager.latest_step() or 0) + 1 + order.get("skip", 0)
        for step in range(first, first + order["saves"]):
            setting.save(manager, step)
            if step == first + 1:
                manager.wait_until_finished()
                entries = sorted(os.listdir(root))
                report({"steps": manager.all_steps(), "entries": entries, "pins": _pinned(root)})
            if step % PIN_EVERY == 0:
                _move_pin(manager, root, report)
        manager.close()


def _move_pin(manager: ocp.CheckpointManager, root: Path, report: Report) -> None:
    """Pin the newest step instead of those that are pinned."""
    for step in _pinned(root):
        report({"unpin": step})
        manager.unpin(step)
    manager.wait_until_finished()
    newest = manager.latest_step()
    assert newest is not None
    manager.pin(newest)
    report({"pin": newest})


def _pinned(root: Path) -> list[int]:
    return [int(path.parent.name) for path in root.glob(f"[0-9]*/{PINNED}")]

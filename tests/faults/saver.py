"""A process whose children save checkpoints and are killed; run with `python -m`.

Reads one JSON order per line from its standard input, forks a child that carries it out, and
prints one JSON line when the child stops or ends. Forking spares importing JAX for every death.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orbit_ckpt as ocp
from orbit_ckpt.testing.write_faults import before_every_write
from tests import preload
from tests.faults import training
from tests.faults.support import LAYOUTS, numbered_tree

assert preload


def signal_at(order: dict[str, Any]) -> Callable[[str], None]:
    """Return a function whose n-th call signals this process, by default with SIGKILL."""
    count = 0

    def act(_: str) -> None:
        nonlocal count
        count += 1
        if count == order.get("nth"):
            os.kill(os.getpid(), signal.Signals[order.get("signal", "SIGKILL")])

    return act


def save_once(order: dict[str, Any]) -> None:
    """Save under a resource limit, or so that the process kills or stops itself before a write."""
    layout = LAYOUTS[order["layout"]]
    for name, limit in order.get("limits", {}).items():
        kind = getattr(resource, name)
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    with before_every_write(signal_at(order), deletions=True):
        layout.save(
            Path(order["path"]),
            numbered_tree(order["number"]),
            overwrite=order["overwrite"],
            in_place=order.get("in_place", False),
        )


def save_forever(order: dict[str, Any]) -> None:
    """Save numbered trees over and over, to one path and to new ones, reporting each."""
    layout = LAYOUTS[order["layout"]]
    root = Path(order["path"])
    for number in range(order["number"], order["number"] + 10_000):
        tree = numbered_tree(number)
        layout.save(root / "latest", tree, overwrite=True)
        print(json.dumps({"latest": number}), flush=True)
        layout.save(root / f"step_{number}", tree)
        print(json.dumps({"step": number}), flush=True)


def convert(order: dict[str, Any]) -> None:
    """Convert a checkpoint, killed before an operation."""
    with before_every_write(signal_at(order), deletions=True, data=True):
        ocp.convert(order["path"], order["to_path"], to=order["to"], max_shard_bytes=order["shard"])


def add_item(order: dict[str, Any]) -> None:
    """Add an item to a step of a run, killed before an operation."""
    run = ocp.CheckpointManager(order["path"], item_names=("model", "tx"))
    with before_every_write(signal_at(order), deletions=True, data=True):
        run.save_item(1, "tx", numbered_tree(2))


def live(order: dict[str, Any]) -> None:
    """Go on with a training run; two of its threads may report, so each line is one write."""

    def tell(report: dict[str, Any]) -> None:
        os.write(sys.stdout.fileno(), json.dumps(report).encode() + b"\n")

    training.live(order, tell)


ACTIONS = {
    "save_once": save_once,
    "save_forever": save_forever,
    "convert": convert,
    "live": live,
    "add_item": add_item,
}


def main() -> None:
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 0
            print(json.dumps({"child": os.getpid()}), flush=True)
            try:
                ACTIONS[order.get("do", "save_once")](order)
            except Exception as error:  # noqa: BLE001 - its type is what the test asks for
                print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
                code = 1
            os._exit(code)
        status = os.waitpid(child, os.WUNTRACED)[1]
        if os.WIFSTOPPED(status):
            print(json.dumps({"stopped": True}), flush=True)
            status = os.waitpid(child, 0)[1]
        print(json.dumps({"exit": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()

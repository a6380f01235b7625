"""Writes runs of `CheckpointManager` with whichever Orbax release is installed.

Usage: `python write_runs.py OUT_DIR`

Each run is a directory below `OUT_DIR`, and one `runs.json` says what the same release lists, ranks
and restores of it. As `write_reference.py`, whose values and encoding it shares, it picks every
call by feature detection. The README beside it describes `runs.json`.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import write_reference as reference  # first: it sets what JAX reads when it is imported
from write_reference import Json, UnavailableError, accepts, build, encode, ocp, require

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip
import numpy as np  # isort: skip

DEFAULT = "default"
LOSSES = (0.5, 0.25, 0.75, 0.125, 0.375, 0.625)
KILLED = 9


@dataclasses.dataclass(frozen=True)
class Item:
    """One kind of item.

    Attributes:
        value: What to save in a step.
        old_handler: Its handler, for releases without arguments.
        save: Makes the arguments of a save from the value.
        restore: Makes the arguments of a restore.
    """

    value: Callable[[int], Any]
    old_handler: Callable[[], Any]
    save: Callable[[Any], Any]
    restore: Callable[[], Any]


@dataclasses.dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        items: What every step holds; one item called `default` is saved without a name.
        options: Those of the manager; `best_metric` stands for `best_fn`.
        steps: The steps to save, in order.
        metadata: What is kept with the run.
        with_checkpointers: Whether the manager gets checkpointers although it knows arguments.
        killed: Whether a process is killed while it saves one step more.
        deleted: Steps that are deleted in the end.
    """

    items: Mapping[str, Callable[[], Item]]
    options: Json = dataclasses.field(default_factory=dict)
    steps: Sequence[int] = (1, 2, 3)
    metadata: Json | None = None
    with_checkpointers: bool = False
    killed: bool = False
    deleted: Sequence[int] = ()


# --------------------------------------------------------------------------------------------------
# Items
# --------------------------------------------------------------------------------------------------


def state(step: int) -> Any:
    """Returns a small train state."""
    kernel = reference.ramp((3, 2), np.float32) + np.float32(step)
    moments = [jnp.asarray(kernel), np.asarray(kernel, np.float64)]
    return {"params": {"w": jnp.asarray(kernel, jnp.bfloat16)}, "opt": moments, "step": step}


def sharded_state(step: int) -> Any:
    """Returns a state of one array on eight devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    return {"w": jax.device_put(reference.ramp((8, 2), np.float32) + np.float32(step), sharding)}


def args() -> Any:
    """Returns the module of arguments of this release."""
    return require(ocp, "args")


def tree(value: Callable[[int], Any] = state, **options: Any) -> Item:
    """Returns a pytree, saved by the handler of pytrees."""
    return Item(
        value,
        lambda: build(ocp.PyTreeCheckpointHandler, **options),
        lambda saved: args().PyTreeSave(saved),
        lambda: args().PyTreeRestore(),
    )


def standard(value: Callable[[int], Any] = state) -> Item:
    """Returns a pytree, saved by the standard handler where there is one."""
    handler = getattr(ocp, "StandardCheckpointHandler", ocp.PyTreeCheckpointHandler)
    return Item(
        value,
        handler,
        lambda saved: args().StandardSave(saved),
        lambda: args().StandardRestore(),
    )


def aggregated() -> Item:
    """Returns a pytree whose leaves are in one msgpack file."""
    build(ocp.SaveArgs, aggregate=True)
    if reference._takes_args():
        raise UnavailableError("releases with arguments write no msgpack files")
    return tree()


def config() -> Item:
    """Returns a JSON document."""
    return Item(
        lambda step: {"name": "orbit", "step": step, "rates": [0.1, None], "on": True},
        ocp.JsonCheckpointHandler,
        lambda saved: args().JsonSave(saved),
        lambda: args().JsonRestore(),
    )


def array() -> Item:
    """Returns a single array."""
    return Item(
        lambda step: jnp.arange(4, dtype=jnp.int32) * step,
        require(ocp, "ArrayCheckpointHandler"),
        lambda saved: args().ArraySave(saved),
        lambda: args().ArrayRestore(),
    )


def random_key(make: Callable[[int], Any]) -> Callable[[], Item]:
    """Returns what makes an item of a key of JAX."""

    def item() -> Item:
        save, restore = require(args(), "JaxRandomKeySave"), args().JaxRandomKeyRestore
        return Item(make, require(ocp, "JaxRandomKeyCheckpointHandler"), save, restore)

    return item


def numpy_key() -> Item:
    """Returns the state of numpy's generator."""
    save, restore = require(args(), "NumpyRandomKeySave"), args().NumpyRandomKeyRestore
    handler = require(ocp, "NumpyRandomKeyCheckpointHandler")
    return Item(lambda _: reference._numpy_random_state(), handler, save, restore)


# --------------------------------------------------------------------------------------------------
# The table of runs
# --------------------------------------------------------------------------------------------------

BEST: Json = {"best_metric": "loss", "best_mode": "min"}
SEVERAL: Mapping[str, Callable[[], Item]] = {"state": tree, "data": config}


def runs() -> Iterator[tuple[str, Run]]:
    """Yields every run by name, whether or not the installed release can write it."""
    trees, documents = {DEFAULT: standard}, {DEFAULT: config}  # documents are smaller to store
    yield "default", Run(trees, steps=(1, 2))
    yield "default-pytree", Run({DEFAULT: tree}, {"max_to_keep": 2}, steps=range(4))
    yield "default-files", Run({DEFAULT: lambda: tree(use_ocdbt=False)}, steps=(1, 2))
    yield "default-aggregated", Run({DEFAULT: aggregated}, steps=(1, 2))
    yield "default-checkpointer", Run({DEFAULT: tree}, steps=(1,), with_checkpointers=True)
    yield "sharded", Run({DEFAULT: lambda: tree(sharded_state)}, steps=(1,))
    named = {"step_prefix": "ckpt", "step_format_fixed_length": 6}
    yield "step-names", Run(documents, named, steps=(0, 7, 1000000))
    yield "prefix-only", Run(documents, {"step_prefix": "my_run"}, steps=(0, 7))
    yield "kept-periods", Run(documents, {"max_to_keep": 1, "keep_period": 2}, steps=range(1, 6))
    yield "best", Run(documents, {**BEST, "max_to_keep": 2}, steps=range(6))
    yield "best-max", Run(documents, {**BEST, "best_mode": "max"}, steps=range(6))
    yield "items", Run(SEVERAL, BEST, steps=(1, 2))
    yield "items-checkpointers", Run(SEVERAL, BEST, steps=(1,), with_checkpointers=True)
    yield "items-array", Run({**SEVERAL, "ema": array, "standard": standard}, steps=(2,))
    keys = {
        "typed": random_key(jax.random.key),
        "legacy": random_key(jax.random.PRNGKey),
        "numpy": numpy_key,
    }
    yield "items-random-keys", Run(keys, BEST, steps=(3,))
    yield "killed", Run(trees, steps=(1,), killed=True)
    yield "killed-items", Run(SEVERAL, BEST, steps=(1,), killed=True)
    yield "root-metadata", Run(documents, metadata={"model": "orbit", "layers": [1, 2]})
    yield "to-delete", Run(documents, {"todelete_subdir": "trash", "max_to_keep": 2})
    yield "deleted", Run(documents, deleted=(2,))


# --------------------------------------------------------------------------------------------------
# Managers
# --------------------------------------------------------------------------------------------------


def manager_of(run: Run, path: Path) -> Any:
    """Opens a manager of the installed release."""
    fields = {name: value for name, value in run.options.items() if name != "best_metric"}
    if "best_metric" in run.options:
        fields["best_fn"] = lambda metrics: metrics[run.options["best_metric"]]
    options = build(ocp.CheckpointManagerOptions, **fields)
    more: Json = {"metadata": run.metadata} if run.metadata else {}
    if takes_checkpointers(run):
        made = {name: ocp.Checkpointer(item().old_handler()) for name, item in run.items.items()}
        given = made.get(DEFAULT, made)
        return ocp.CheckpointManager(path, given, options=options, **more)
    handlers = {name: item().old_handler() for name, item in run.items.items()}
    if accepts(ocp.CheckpointManager, "item_handlers"):
        more["item_handlers"] = handlers.get(DEFAULT, handlers)
    return ocp.CheckpointManager(path, options=options, **more)


def takes_checkpointers(run: Run) -> bool:
    """Whether a run's manager is given checkpointers and not arguments."""
    return run.with_checkpointers or not reference._takes_args()


def save_step(run: Run, manager: Any, step: int, loss: float) -> None:
    """Saves one step."""
    items = {name: item() for name, item in run.items.items()}
    values = {name: item.value(step) for name, item in items.items()}
    extra: Json = {"metrics": {"loss": loss, "step": step}} if "best_metric" in run.options else {}
    if takes_checkpointers(run):
        if run.items.get(DEFAULT) is aggregated:
            one = ocp.SaveArgs(aggregate=True)
            save_args = jax.tree_util.tree_map(lambda _: one, values[DEFAULT])
            extra["save_kwargs"] = {"save_args": save_args}
        manager.save(step, values.get(DEFAULT, values), **extra)
        return
    if accepts(manager.save, "custom_metadata"):
        extra["custom_metadata"] = {"of": step}
    saves = {name: item.save(values[name]) for name, item in items.items()}
    manager.save(step, args=saves.get(DEFAULT) or args().Composite(**saves), **extra)


def restore_step(run: Run, manager: Any, step: int) -> Any:
    """Restores all items of one step, metrics apart."""
    if takes_checkpointers(run):
        restored = manager.restore(step)
    else:
        restores = {name: item().restore() for name, item in run.items.items()}
        wanted = restores.get(DEFAULT) or args().Composite(**restores)
        restored = manager.restore(step, args=wanted)
    if DEFAULT in run.items:
        return {DEFAULT: restored}
    return {name: restored[name] for name in run.items}


def write_run(name: str, run: Run, path: Path) -> None:
    """Saves all steps of a run, one of them perhaps not to the end."""
    manager = manager_of(run, path)
    for position, step in enumerate(run.steps):
        save_step(run, manager, step, LOSSES[position])
        manager.wait_until_finished()
    for step in run.deleted:
        manager.delete(step)
    reference.finish(manager)
    if run.killed:
        command = [sys.executable, __file__, "--killed", name, str(path)]
        code = subprocess.run(command, check=False, capture_output=True, timeout=300).returncode
        if code != KILLED:
            raise RuntimeError(f"the process that was to be killed ended with {code}")


def save_and_die(run: Run, path: Path) -> None:
    """Begins to save one step more, and ends the process once its arrays are written."""

    def die(*_: Any, **__: Any) -> None:
        os._exit(KILLED)

    for handler in (ocp.PyTreeCheckpointHandler, getattr(ocp, "StandardCheckpointHandler", None)):
        if handler is not None and hasattr(handler, "finalize"):
            handler.finalize = die
    utils: Any = importlib.import_module("orbax.checkpoint.utils")
    if hasattr(utils, "ensure_atomic_save"):  # in releases whose checkpointers do not finalize
        utils.ensure_atomic_save = die
    manager = manager_of(run, path)
    save_step(run, manager, max(run.steps) + 1, 0.0)
    manager.wait_until_finished()


# --------------------------------------------------------------------------------------------------
# Recording
# --------------------------------------------------------------------------------------------------


def describe_run(run: Run, path: Path) -> Json:
    """Returns what the installed release says of a run that it has written."""
    manager = manager_of(run, path)
    steps = [int(step) for step in manager.all_steps()]
    entry: Json = {
        "options": dict(run.options),
        "items": sorted(run.items),
        "all_steps": sorted(steps),
        "latest_step": int(manager.latest_step()),
        "best_step": int(manager.best_step()),
        "root_metadata": dict(run.metadata or {}),
        "steps": {},
    }
    for position, step in enumerate(run.steps):
        if step not in steps:
            continue
        restored = restore_step(run, manager, step)
        described: Json = {name: encode(value) for name, value in restored.items()}
        entry["steps"][str(step)] = {"items": described}
        if "best_metric" in run.options:
            entry["steps"][str(step)]["metrics"] = {"loss": LOSSES[position], "step": step}
        if not takes_checkpointers(run) and accepts(manager.save, "custom_metadata"):
            entry["steps"][str(step)]["custom_metadata"] = {"of": step}
    reference.finish(manager)
    return entry


def main(arguments: Sequence[str]) -> int:
    """Writes every run and `runs.json`.

    Args:
        arguments: The output directory.

    Returns:
        The exit status.
    """
    if arguments[:1] == ["--killed"]:
        save_and_die(dict(runs())[arguments[1]], Path(arguments[2]))
        return 1
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    out = Path(arguments[0]).resolve()
    out.mkdir(parents=True)
    written: Json = {}
    not_supported: dict[str, str] = {}
    for name, run in runs():
        started = time.monotonic()
        try:
            (out / name).mkdir()
            write_run(name, run, out / name)
            written[name] = describe_run(run, out / name)
        except Exception as error:  # noqa: BLE001 - any failure is a fact about the release
            shutil.rmtree(out / name, ignore_errors=True)
            not_supported[name] = reference.first_line(error)
        state = "wrote" if name in written else "left out"
        print(f"{state} {name} {time.monotonic() - started:.1f} s", flush=True)
    expected: Json = {
        "orbax": importlib.metadata.version("orbax-checkpoint"),
        "jax": jax.__version__,
        "runs": written,
        "not_supported": not_supported,
    }
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (out / "runs.json").write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One process of a training run that meets with faults.

It goes on from the run's latest step, saves one step well, and meets with the faults of a plan in
the steps after it. With "endless" it saves one step after the other until something happens.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt._src.checkpointer import save as saving
from orbit_ckpt._src.checkpointer.transaction import Barrier, SaveSession
from orbit_ckpt._src.manager.garbage_collection import StepDeleter
from orbit_ckpt._src.manager.writer import StepWriter
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.storage.atomic import AtomicDirectory
from orbit_ckpt._src.storage.objects import ObjectDirectory
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt.errors import CheckpointError, ProcessFailedError, ProcessTimeoutError

PHASES: dict[str, tuple[object, str]] = {
    "before the decision": (StepWriter, "decide"),
    "before 'created'": (SaveSession, "_created"),
    "staging": (saving, "stage_item"),
    "writing": (DatabaseWriter, "close"),
    "before 'written'": (SaveSession, "commit"),
    "finalizing": (Commit, "finalize"),
    "committing": (AtomicDirectory, "commit"),
    "waiting for 'committed'": (SaveSession, "_broadcast"),
    "after the commit": (StepWriter, "_committed"),
    "in a deletion": (StepDeleter, "remove"),
}
"""Before which method a fault comes, by phase."""

OF_PRIMARY = ("finalizing", "committing", "in a deletion")
OF_OTHERS = ("waiting for 'committed'",)

COUNT = 2


_reports: list[Connection] = []


def report(**what: Any) -> None:
    """Let the test know what happens."""
    _reports[0].send(what)


class Fault:
    """Something that happens once to one process, at one phase of a save."""

    def __init__(self, phase: str, action: str, victim: int) -> None:
        self.action = action
        self.victim = victim
        self.is_mine = victim == jax.process_index()
        self.ends_the_run = action == "raise" and phase == "before the decision"
        self._owner, self._name = PHASES[phase]
        self._barrier = Barrier(phase.split("'")[1]) if self._name == "_broadcast" else None

    def arm(self) -> None:
        if not self.is_mine:
            return
        original: Callable[..., Any] = getattr(self._owner, self._name)

        def strike(*args: Any, **given: Any) -> Any:
            if self._barrier not in (None, *args[1:2]):
                return original(*args, **given)
            setattr(self._owner, self._name, original)
            if self.action == "raise":
                raise ValueError("the disk is on fire")
            os.kill(os.getpid(), signal.SIGKILL if self.action == "kill" else signal.SIGSTOP)
            return original(*args, **given)

        setattr(self._owner, self._name, strike)


def tree(step: int) -> dict[str, Any]:
    """Return what is saved as a step, with an array of which every process has a part."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, -1), ("x", "y"))
    values = values_of(step)
    sharding = NamedSharding(mesh, PartitionSpec("x", "y"))
    array = jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
    return {"w": array, "step": step}


def values_of(step: int) -> np.ndarray:
    return np.arange(32 * 64, dtype=np.float32).reshape(32, 64) + step


def check(restored: dict[str, Any], step: int) -> None:
    assert restored["step"] == step
    for shard in restored["w"].addressable_shards:
        np.testing.assert_array_equal(shard.data, values_of(step)[shard.index])


def open_run(root: Path, plan: dict[str, Any]) -> ocp.CheckpointManager:
    processes = ocp.MultiprocessingOptions(timeout_secs=plan["timeout_s"])
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2,
        enable_async_checkpointing=plan["background"],
        multiprocessing_options=processes,
    )
    return ocp.CheckpointManager(root, options=options)


def save(manager: ocp.CheckpointManager, step: int) -> None:
    manager.save(step, tree(step))
    manager.wait_until_finished()
    report(durable=step)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def named(error: BaseException) -> list[int]:
    """Return the processes that an error names."""
    for cause in causes(error):
        if isinstance(cause, ProcessTimeoutError):
            return list(cause.missing)
        if isinstance(cause, ProcessFailedError):
            return [cause.process]
    return []


def report_raised(error: Exception) -> None:
    report(raised=type(error).__name__, text=str(error), named=named(error))


def meet(manager: ocp.CheckpointManager, step: int, fault: Fault) -> Exception | None:
    """Save a step, to which a fault comes; report and return what is raised first."""
    fault.arm()
    first: Exception | None = None
    # what fails at once on one process fails in the background on others: all make both calls
    for call in (lambda: manager.save(step, tree(step)), manager.wait_until_finished):
        try:
            call()
        except Exception as error:  # noqa: BLE001 - reported
            report_raised(error)
            first = first or error
            if fault.action == "stop" and not fault.is_mine:
                report(wake=fault.victim)
            if fault.ends_the_run or fault.action == "kill":
                return first
    if first is None:
        report(durable=step)
    return first


def reopen(
    manager: ocp.CheckpointManager, error: Exception | None, root: Path, plan: dict[str, Any]
) -> ocp.CheckpointManager:
    """Leave a run because of an error of which nobody else knows, and open it again."""
    assert error is not None
    try:
        with manager:
            raise error
    except type(error):
        pass
    for _ in range(3):
        try:
            return open_run(root, plan)
        except ProcessTimeoutError:
            pass  # the other process has not noticed yet
    raise AssertionError("the other process does not open it again")


def settle(manager: ocp.CheckpointManager) -> None:
    """Let all be told what they have not been told yet; the next call is a good one."""
    for _ in range(4):
        try:
            manager.wait_until_finished()
        except (CheckpointError, ValueError) as error:
            report_raised(error)
            continue
        return
    raise AssertionError("errors do not end")


def save_on(manager: ocp.CheckpointManager, step: int) -> NoReturn:
    """Save until it fails."""
    try:
        while True:
            step += 1
            save(manager, step)
    except Exception as error:  # noqa: BLE001 - reported
        report_raised(error)
    os._exit(0)  # JAX would wait for the other one


def live(
    index: int, count: int, port: int, plan: dict[str, Any], reports: Connection, log: Path
) -> None:
    """Be one process of a run.

    Args:
        index: Which one.
        count: How many there are.
        port: Where the first one has JAX's coordination service.
        plan: What to do; `root`, `background`, `timeout_s`, `heartbeat_s`, `faults`, `endless`;
            `environment` has variables to set first.
        reports: Where to report what happens.
        log: Where standard error goes.
    """
    _reports.append(reports)
    with log.open("a") as errors:
        os.dup2(errors.fileno(), 2)
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    os.environ.update(plan["environment"])
    jax.distributed.initialize(
        f"127.0.0.1:{port}", count, index, heartbeat_timeout_seconds=plan["heartbeat_s"]
    )
    root = resolve_path(plan["root"])
    if isinstance(root, StorePath):
        PHASES["committing"] = (ObjectDirectory, "commit")
    run(root, plan)
    jax.distributed.shutdown()


def run(root: Path, plan: dict[str, Any]) -> None:
    manager = open_run(root, plan)
    latest = manager.latest_step()
    report(listed=manager.all_steps())
    if latest is not None:
        check(manager.restore(latest, args=ocp.args.StandardRestore(tree(latest))), latest)
    step = (latest or 0) + 1
    save(manager, step)
    if plan["endless"]:
        save_on(manager, step)
    for phase, action, victim in plan["faults"]:
        step += 1
        fault = Fault(phase, action, victim)
        report(phase=phase, action=action, victim=victim, step=step)
        error = meet(manager, step, fault)
        if action == "kill":
            os._exit(0)  # JAX would wait for the other one
        if fault.ends_the_run:
            manager = reopen(manager, error, root, plan)
        settle(manager)
        manager.reload()  # a step may have been committed though its save has failed
        step = max(step, *manager.all_steps()) + 1
        save(manager, step)
        check(manager.restore(args=ocp.args.StandardRestore(tree(step))), step)
    manager.close()

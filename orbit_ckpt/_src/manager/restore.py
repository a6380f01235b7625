"""Restore a step of a run on all processes, or an older one if it is damaged."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec.msgpack
from msgspec import Struct

from orbit_ckpt._src.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    ProcessFailedError,
    StepNotFoundError,
    VersionError,
)
from orbit_ckpt._src.manager.coordinator import RunCoordinator
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.manager.shared_index import SharedIndex
from orbit_ckpt._src.manager.steps import StepNames, as_step

_logger = logging.getLogger(__name__)

_MAX_TEXT = 10_000
"""Characters of an error that is sent to the other processes."""


def restore_step(
    shared: SharedIndex,
    step: int | None,
    read: Callable[[int, Path], Any],
    coordinator: RunCoordinator,
    *,
    root: Path,
    fallback: bool,
    note_damage: Callable[[], object] = lambda: None,
) -> Any:  # what `read` returns
    """Restore a step on all processes.

    Args:
        shared: The steps of the run.
        step: Its number, None for the newest.
        read: Restores a step from its directory.
        coordinator: The processes.
        root: The run's directory, for messages.
        fallback: Whether to restore an older step if this one is damaged.
        note_damage: Called on all processes when a step is found to be damaged.

    Raises:
        StepNotFoundError: The step does not exist, or no step can be restored.
        CheckpointError: `read` failed.
    """
    index = shared.view
    steps = index.steps()
    if step is None and not steps:
        raise StepNotFoundError(
            f"No steps found in {root}. Check the directory and how its steps are named, or begin "
            "without a checkpoint if latest_step() is None."
        )
    first = steps[-1] if step is None else as_step(step)
    index.path(first)  # raises if it does not exist

    def restore_one(number: int) -> Any:  # as above
        try:
            return restore_on_all(coordinator, number, lambda: read(number, index.path(number)))
        except Exception as error:
            if _fault_of(error) is _Fault.DAMAGED:
                note_damage()
            raise

    if not fallback:
        return restore_one(first)
    older = [number for number in reversed(steps) if number <= first]
    return restore_newest_intact(older, restore_one, shared.refuse)


def index_of_other_run(root: Path, names: StepNames, coordinator: RunCoordinator) -> SharedIndex:
    """Return the steps of another run, not yet read by any process."""
    return SharedIndex(coordinator, StepIndex(root, names, reads=False))


class _Fault(IntEnum):
    """The cause of a failed restore; the highest of all processes counts."""

    ELSEWHERE = -1  # another process failed, and reports why
    ABSENT = 0
    DAMAGED = 1
    OTHER = 2  # an older step would fail too


class _FailedElsewhereError(ProcessFailedError):
    """Another process could not restore a step."""

    def __init__(self, message: str, *, process: int, fault: _Fault) -> None:
        super().__init__(message, process=process)
        self.fault = fault


class _Failure(Struct, frozen=True):
    process: int
    fault: _Fault
    text: str


def restore_on_all(
    coordinator: RunCoordinator, step: int, restore: Callable[[], Any]
) -> Any:  # what `restore` returns
    """Restore a step; a failure on one process fails on all.

    Args:
        coordinator: The processes.
        step: Its number, for messages.
        restore: Restores this process's part of it.

    Raises:
        ProcessFailedError: It failed on another process only, or for a worse cause there.
        CheckpointError: `restore` failed.
    """
    if coordinator.has_left:
        return restore()
    restored, error = None, None
    with coordinator.round(f"restore of step {step}") as current:
        try:
            restored = restore()
        except Exception as mine:  # noqa: BLE001 - raised on all processes once all know, see below
            error = mine
        report = None if error is None else (int(_fault_of(error)), str(error)[:_MAX_TEXT])
        reports = current.gather(msgspec.msgpack.encode(report))
        worst = current.broadcast(lambda: _worst(coordinator.names, reports), _Failure | None)
    if worst is None:
        return restored
    if error is not None and _fault_of(error) is worst.fault:
        raise error
    raise _FailedElsewhereError(
        f"Restoring step {step} failed on process {worst.process}: {worst.text}",
        process=worst.process,
        fault=worst.fault,
    ) from error


def _worst(names: Sequence[int], reports: Sequence[bytes]) -> _Failure | None:
    found: list[_Failure] = []
    for name, data in zip(names, reports, strict=True):
        report = msgspec.msgpack.decode(data, type=tuple[int, str] | None)
        if report is not None:
            found.append(_Failure(name, _Fault(report[0]), report[1]))
    return max(found, key=lambda failure: failure.fault, default=None)


def restore_newest_intact(
    steps: Sequence[int],
    restore: Callable[[int], Any],
    refuse: Callable[[int, Exception], object],
) -> Any:  # what `restore` returns
    """Restore the first step that is intact and has what is requested.

    Damaged steps before it are refused once it has been restored. An error that any step would
    cause is raised: an unsuitable target, an unknown version, too many open files.

    Args:
        steps: Candidates, in order.
        restore: Restores one.
        refuse: Called with each damaged step and its error.

    Raises:
        StepNotFoundError: No step can be restored.
    """
    damaged: dict[int, Exception] = {}
    reasons: list[str] = []
    last: Exception | None = None
    for step in steps:
        try:
            restored = restore(step)
        except Exception as error:  # raised again unless it is about this step
            fault = _fault_of(error)
            if fault in (_Fault.OTHER, _Fault.ELSEWHERE):
                raise
            if fault is _Fault.DAMAGED:
                damaged[step] = error
            reasons.append(f"Step {step}: {error}")
            last = error
        else:
            for number, reason in damaged.items():
                refuse(number, reason)
            for reason in reasons:
                _logger.warning("An older step, %d, is restored. %s", step, reason)
            return restored
    raise StepNotFoundError(" ".join(["No step can be restored.", *reasons])) from last


def _fault_of(error: Exception) -> _Fault:
    """Return whether an error concerns one step only, so that another may be restored."""
    if isinstance(error, _FailedElsewhereError):
        return error.fault
    if isinstance(error, ProcessFailedError):
        return _Fault.ELSEWHERE
    if isinstance(error, OSError) and error.errno == errno.EIO:
        return _Fault.DAMAGED
    if isinstance(error, VersionError):
        return _Fault.OTHER
    if isinstance(error, CheckpointNotFoundError):
        return _Fault.ABSENT
    about_step = CorruptionError | FormatError | IncompleteCheckpointError
    return _Fault.DAMAGED if isinstance(error, about_step) else _Fault.OTHER

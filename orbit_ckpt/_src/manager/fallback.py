"""Restore a step on all processes, and an older one if it is damaged."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from enum import IntEnum
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
from orbit_ckpt._src.manager.council import Council

_logger = logging.getLogger(__name__)

_MAX_TEXT = 10_000
"""Characters of an error that others are told."""


class _Fault(IntEnum):
    """What a restore has failed with; the highest of all processes holds for all."""

    ABSENT = 0  # it is not there
    DAMAGED = 1
    OTHER = 2  # an older step would not do either


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
    council: Council, step: int, restore: Callable[[], Any]
) -> Any:  # what `restore` returns
    """Restore a step; if that fails on one process, it fails on all.

    Args:
        council: The processes.
        step: Which, for messages.
        restore: Restores what this process has of it.

    Raises:
        ProcessFailedError: It has failed on another process only, or worse than here.
        CheckpointError: What `restore` raises.
    """
    if council.has_left:
        return restore()
    restored, error = None, None
    with council.meeting(f"restore of step {step}") as meeting:
        try:
            restored = restore()
        except Exception as mine:  # noqa: BLE001 - raised by all once all know, see below
            error = mine
        report = None if error is None else (int(_fault_of(error)), str(error)[:_MAX_TEXT])
        reports = meeting.collect(msgspec.msgpack.encode(report))
        worst = meeting.share(lambda: _worst(council.names, reports), _Failure | None)
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
    """Restore the first of some steps that is intact and has what is asked for.

    Damaged steps before it are refused once it has been restored. What would be wrong with any step
    is raised: a target that does not fit, a version not known here, too many open files.

    Args:
        steps: In the order in which to try them.
        restore: Restores one.
        refuse: Told of steps that are damaged, and how.

    Raises:
        StepNotFoundError: There is none.
    """
    damaged: dict[int, Exception] = {}
    reasons: list[str] = []
    last: Exception | None = None
    for step in steps:
        try:
            restored = restore(step)
        except Exception as error:  # raised again unless it is about this step
            fault = _fault_of(error)
            if fault is _Fault.OTHER:
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
    """Return whether an error is about one step, so that another may be restored."""
    if isinstance(error, _FailedElsewhereError):
        return error.fault
    if isinstance(error, OSError) and error.errno == errno.EIO:
        return _Fault.DAMAGED
    if isinstance(error, VersionError):
        return _Fault.OTHER
    if isinstance(error, CheckpointNotFoundError):
        return _Fault.ABSENT
    about_step = CorruptionError | FormatError | IncompleteCheckpointError
    return _Fault.DAMAGED if isinstance(error, about_step) else _Fault.OTHER

"""Make faults."""

from __future__ import annotations

import errno

from orbit_ckpt.testing.hook.faults import Action, Fault
from orbit_ckpt.testing.hook.phases import Phase


def kill(
    at: int = 1,
    *,
    phase: Phase | str | None = None,
    kind: str | None = None,
    path: str | None = None,
) -> Fault:
    """Return a fault that kills the process before an operation.

    Args:
        at: Which of the selected operations, from 1.
        phase: Select only operations of one phase of a save.
        kind: Select only operations of one kind.
        path: Select only paths that match a pattern, such as `*/manifest.ocdbt`.

    Raises:
        ValueError: There is no such phase, or `at` is below 1.
    """
    return Fault(Action.KILL, at, _phase(phase), kind, path)


def tear(
    at: int = 1,
    *,
    phase: Phase | str | None = None,
    kind: str | None = None,
    path: str | None = None,
) -> Fault:
    """Return a fault that performs half of a write, and then kills the process.

    Operations that write no bytes are not performed at all. The arguments are those of `kill`.

    Raises:
        ValueError: There is no such phase, or `at` is below 1.
    """
    return Fault(Action.TEAR, at, _phase(phase), kind, path)


def fail(
    at: int = 1,
    code: int = errno.EIO,
    *,
    phase: Phase | str | None = None,
    kind: str | None = None,
    path: str | None = None,
) -> Fault:
    """Return a fault that raises an `OSError` instead of performing an operation.

    The other arguments are those of `kill`.

    Args:
        at: Which of the selected operations, from 1.
        code: The error number.
        phase: Select only operations of one phase of a save.
        kind: Select only operations of one kind.
        path: Select only paths that match a pattern.

    Raises:
        ValueError: There is no such phase, or `at` is below 1.
    """
    return Fault(Action.FAIL, at, _phase(phase), kind, path, code=code)


def lie(
    at: int = 1,
    *,
    phase: Phase | str | None = None,
    kind: str | None = None,
    path: str | None = None,
) -> Fault:
    """Return a fault that reports success of an operation, and does nothing.

    Bytes are lost, a sync does not happen, a name stays as it was; only a file is opened, because
    there is no other result to return. The arguments are those of `kill`.

    Raises:
        ValueError: There is no such phase, or `at` is below 1.
    """
    return Fault(Action.LIE, at, _phase(phase), kind, path)


def stall(
    at: int = 1,
    seconds: float | None = None,
    *,
    phase: Phase | str | None = None,
    kind: str | None = None,
    path: str | None = None,
) -> Fault:
    """Return a fault that waits before an operation; other threads of the process go on.

    Args:
        at: Which of the selected operations, from 1.
        seconds: How long at most; by default until `RunningScript.release`.
        phase: Select only operations of one phase of a save.
        kind: Select only operations of one kind.
        path: Select only paths that match a pattern.

    Raises:
        ValueError: There is no such phase, or `at` is below 1.
    """
    return Fault(Action.STALL, at, _phase(phase), kind, path, seconds=seconds)


def fill_disk(nbytes: int, *, path: str | None = None) -> Fault:
    """Return a fault that lets writes fail as on a full disk; it does not end.

    Args:
        nbytes: How many bytes still fit.
        path: Select only paths that match a pattern.
    """
    return Fault(Action.FILL, path=path, nbytes=nbytes)


def _phase(phase: Phase | str | None) -> Phase | None:
    return None if phase is None else Phase(phase)

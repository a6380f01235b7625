"""Report completed saves and restores to the log and to listeners of `jax.monitoring`.

The event names are those of T5X and Orbax.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Generator

import jax.monitoring

from orbit_ckpt._src.progress import Progress, reporting
from orbit_ckpt._src.runtime.read_count import counting_reads
from orbit_ckpt._src.storage.path import is_gcs_path
from orbit_ckpt._src.text import human_bytes

_logger = logging.getLogger(__name__)

_T5X_WRITE = "/jax/checkpoint/write/durations_sec"
_T5X_READ = "/jax/checkpoint/read/durations_sec"
_ORBAX = "/jax/orbax"
_ORBAX_OLD = "/jax/checkpoint"
_TOTAL, _BLOCKING = "total_duration_secs", "blocking_duration_secs"
_GBYTE = 1 << 30
"""What Orbax counts its gigabytes in."""


def report_save(
    path: str | os.PathLike[str],
    began: float,
    *,
    nbytes: int,
    blocked_s: float | None,
    shared: int = 0,
) -> None:
    """Report that a checkpoint is durable.

    Args:
        path: Where it is.
        began: The `time.monotonic()` at the start of the save.
        nbytes: What this process has written, as it is in memory.
        blocked_s: How long the caller was blocked, None if until now.
        shared: Bytes of it, as stored, in files that it shares with an earlier checkpoint.
    """
    seconds = time.monotonic() - began
    blocked = "" if blocked_s is None else f", blocked for {_seconds(blocked_s)}"
    linked = f", {human_bytes(shared)} in shared files" if shared else ""
    _logger.info("Saved %s: %s%s%s", path, _rate(nbytes, seconds), blocked, linked)
    durations = {_T5X_WRITE: seconds}
    if blocked_s is None:
        blocked_s = seconds
        durations[f"{_ORBAX}/write/{_TOTAL}"] = durations[f"{_ORBAX}/write/{_BLOCKING}"] = seconds
    else:
        for root in (_ORBAX, _ORBAX_OLD):
            durations[f"{root}/write/async/{_TOTAL}"] = seconds
            durations[f"{root}/write/async/{_BLOCKING}"] = blocked_s
    scalars = {
        f"{_ORBAX}/write/gbytes": nbytes / _GBYTE,
        f"{_ORBAX}/write/gbytes_per_sec": nbytes / _GBYTE / max(seconds, 1e-9),
        f"{_ORBAX}/write/blocking_gbytes_per_sec": nbytes / _GBYTE / max(blocked_s, 1e-9),
    }
    _record(path, durations, scalars, f"{_ORBAX}/write/success")


@contextlib.contextmanager
def reported_restore(
    path: str | os.PathLike[str], progress: bool | Progress | None = None
) -> Generator[None]:
    """Report a restore once the `with` block succeeds.

    Args:
        path: What is restored.
        progress: What to report its progress to, see `reporting`.
    """
    began = time.monotonic()
    with (
        reporting(progress, "Loading") as report,
        counting_reads(wants_total=report is not None) as count,
    ):
        if report is not None:
            report(count.measure)
        yield
    seconds, nbytes = time.monotonic() - began, count.nbytes
    _logger.info("Restored %s: %s", path, _rate(nbytes, seconds))
    durations = {
        _T5X_READ: seconds,
        f"{_ORBAX}/read/{_TOTAL}": seconds,
        f"{_ORBAX}/read/{_BLOCKING}": seconds,
    }
    scalars = {
        f"{_ORBAX_OLD}/read/gbytes": nbytes / _GBYTE,
        f"{_ORBAX_OLD}/read/gbytes_per_sec": nbytes / _GBYTE / max(seconds, 1e-9),
    }
    _record(path, durations, scalars, f"{_ORBAX}/read/success")


def _rate(nbytes: int, seconds: float) -> str:
    rate = f"{nbytes / 1e6 / seconds:.3g} MB/s" if seconds else "at once"
    return f"{human_bytes(nbytes)} in {_seconds(seconds)} ({rate})"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


class _LastSave:
    """Start of the last recorded save; before the first one, the time of the import."""

    def __init__(self) -> None:
        self.began = time.time()


_last_save = _LastSave()
"""Process-wide, as the listeners are."""


def record_saved_duration(checkpoint_start_time: float) -> None:
    """Report the time since the last save to listeners of `jax.monitoring`, under Orbax's name.

    Args:
        checkpoint_start_time: The `time.time()` at which the save began.
    """
    event = "/jax/checkpoint/write/duration_since_last_checkpoint_secs"
    jax.monitoring.record_event_duration_secs(event, checkpoint_start_time - _last_save.began)
    _last_save.began = checkpoint_start_time


def record_preemption() -> None:
    """Report that the job is about to end to listeners of `jax.monitoring`, under Orbax's name."""
    with _listeners_logged("preemption"):
        jax.monitoring.record_event("/jax/orbax/write/preemption")


def _record(
    path: str | os.PathLike[str],
    durations: dict[str, float],
    scalars: dict[str, float],
    success: str,
) -> None:
    storage = "gcs" if is_gcs_path(path) else "other"
    with _listeners_logged(path):
        for event, seconds in durations.items():
            about = {} if event in (_T5X_WRITE, _T5X_READ) else {"storage_type": storage}
            jax.monitoring.record_event_duration_secs(event, seconds, **about)
        for event, value in scalars.items():
            jax.monitoring.record_scalar(event, value)
        jax.monitoring.record_event(success)


@contextlib.contextmanager
def _listeners_logged(path: str | os.PathLike[str]) -> Generator[None]:
    """Log an error of a listener; the operation itself has succeeded."""
    try:
        yield
    except Exception:  # whatever a listener raises
        _logger.exception("%s: a listener of jax.monitoring failed", path)

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

from orbit_ckpt._src.storage.path import is_gcs_path

_logger = logging.getLogger(__name__)

_T5X_WRITE = "/jax/checkpoint/write/durations_sec"
_T5X_READ = "/jax/checkpoint/read/durations_sec"
_WRITE = ("/jax/orbax/write/total_duration_secs",)
_WRITE_ASYNC = (
    "/jax/orbax/write/async/total_duration_secs",
    "/jax/checkpoint/write/async/total_duration_secs",
)
_READ = ("/jax/orbax/read/total_duration_secs",)


def report_save(path: str | os.PathLike[str], began: float, *, in_background: bool) -> None:
    """Report that a checkpoint is durable.

    Args:
        path: Where it is.
        began: The `time.monotonic()` at the start of the save.
        in_background: Whether the save ran in the background.
    """
    _logger.info("Saved %s", path)
    _record(_T5X_WRITE, _WRITE_ASYNC if in_background else _WRITE, path, began)


@contextlib.contextmanager
def reported_restore(path: str | os.PathLike[str]) -> Generator[None]:
    """Report a restore once the `with` block succeeds."""
    began = time.monotonic()
    yield
    _logger.info("Restored %s", path)
    _record(_T5X_READ, _READ, path, began)


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


def _record(
    event: str, others: tuple[str, ...], path: str | os.PathLike[str], began: float
) -> None:
    seconds = time.monotonic() - began
    storage = "gcs" if is_gcs_path(path) else "other"
    try:
        jax.monitoring.record_event_duration_secs(event, seconds)
        for other in others:
            jax.monitoring.record_event_duration_secs(other, seconds, storage_type=storage)
    except Exception:  # of a listener; the operation itself has succeeded
        _logger.exception("%s: a listener of jax.monitoring failed", path)

"""Restore an older step if a newer one is damaged."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from typing import Any

from orbit_ckpt.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    StepNotFoundError,
    VersionError,
)
from orbit_ckpt.manager.index import StepIndex

_logger = logging.getLogger(__name__)


def restore_newest_intact(
    steps: Sequence[int], restore: Callable[[int], Any], index: StepIndex
) -> Any:  # what `restore` returns
    """Restore the first of some steps that is intact and has what is asked for.

    Damaged steps before it are refused once it has been restored. What would be wrong with any step
    is raised: a target that does not fit, a version not known here, too many open files.

    Args:
        steps: In the order in which to try them.
        restore: Restores one.
        index: Where to refuse steps.

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
            if not _is_of_step(error):
                raise
            if not isinstance(error, CheckpointNotFoundError):
                damaged[step] = error
            reasons.append(f"Step {step}: {error}")
            last = error
        else:
            for number, reason in damaged.items():
                index.refuse(number, reason)
            for reason in reasons:
                _logger.warning("An older step, %d, is restored. %s", step, reason)
            return restored
    raise StepNotFoundError(" ".join(["No step can be restored.", *reasons])) from last


def _is_of_step(error: Exception) -> bool:
    """Whether an error is about one step, and another may be restored."""
    if isinstance(error, OSError) and error.errno == errno.EIO:
        return True
    about_step = CheckpointNotFoundError | CorruptionError | FormatError | IncompleteCheckpointError
    return isinstance(error, about_step) and not isinstance(error, VersionError)

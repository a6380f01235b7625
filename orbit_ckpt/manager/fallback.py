"""Restore an older step if a newer one is damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from orbit_ckpt.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    StepNotFoundError,
)
from orbit_ckpt.manager.index import StepIndex

_DAMAGE = (
    CheckpointNotFoundError,
    CorruptionError,
    FormatError,
    IncompleteCheckpointError,
    OSError,
)
"""Errors that say that a step is not intact, rather than that it is asked for wrongly."""

_logger = logging.getLogger(__name__)


def restore_newest_intact(
    steps: Sequence[int], restore: Callable[[int], Any], index: StepIndex
) -> Any:  # what `restore` returns
    """Restore the first of some steps whose data is intact; refuse those before it.

    Args:
        steps: In the order in which to try them.
        restore: Restores one.
        index: Where to refuse steps.

    Raises:
        StepNotFoundError: There is none.
    """
    refused: list[str] = []
    last: Exception | None = None
    for step in steps:
        try:
            return restore(step)
        except _DAMAGE as error:
            _logger.warning("Step %d is refused, an older one is restored: %s", step, error)
            index.refuse(step, error)
            refused.append(f"Step {step}: {error}")
            last = error
    raise StepNotFoundError(" ".join(["No step can be restored.", *refused])) from last

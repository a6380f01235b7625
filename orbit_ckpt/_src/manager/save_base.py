"""Choose the step that an incremental save shares files with."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from orbit_ckpt._src.errors import StepNotFoundError
from orbit_ckpt._src.manager.step_store import StepStore

_logger = logging.getLogger(__name__)


class BaseChoice:
    """Chooses the base of each save; all processes choose the same.

    A damaged file may be part of several steps. Once a step is found to be damaged, saves share
    files only with steps saved since.
    """

    def __init__(self, store: StepStore) -> None:
        self._store = store
        self._trusted: set[int] | None = None
        """The steps saved since one was found to be damaged; None before that."""

    def distrust_steps(self) -> None:
        """Note that a step is damaged."""
        self._trusted = set()

    def base_of(self, step: int) -> Path | None:
        """Return the newest durable step that a save may share files with; None without one.

        Args:
            step: The step that is about to be saved, once the previous save has ended.
        """
        trusted = self._trusted
        if trusted is not None:
            self._trusted = trusted | {step}
        for number in reversed(self._store.steps()):
            if number == step or (trusted is not None and number not in trusted):
                continue
            with contextlib.suppress(StepNotFoundError):  # its save has failed
                return self._store.durable_path(number)
        if trusted is not None:
            _logger.debug("Step %d is written in full: an earlier step is damaged", step)
        return None

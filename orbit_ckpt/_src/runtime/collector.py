"""Pause Python's cycle collector while a tree is planned or rebuilt."""

from __future__ import annotations

import gc
import os

from orbit_ckpt._src.runtime.forking import reset_in_child

PAUSE_VARIABLE = "ORBIT_CKPT_GC_PAUSE_MS"
"""Environment variable with the longest pause in milliseconds; 0 disables pauses."""

_DEFAULT_MS = 200


class CollectorPause:
    """A short pause of the cycle collector, unless it was off before.

    Planning and rebuilding a tree create many objects, none of them garbage. Their number triggers
    collections of all objects of the process, which in a process with JAX take longer than the work
    itself. The pause applies to all threads, hence its limit.

    A context manager for a thread that no signal interrupts; any thread may end the pause earlier.

    Attributes:
        limit_s: The longest pause, in seconds; the thread that waits for the work then ends it.
    """

    def __init__(self) -> None:
        self.limit_s = _limit_s()
        self._is_paused = False

    def __enter__(self) -> None:
        if self.limit_s and gc.isenabled():
            self._is_paused = True
            reset_in_child(self)
            gc.disable()

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Re-enable the collector if this pause disabled it."""
        if self._is_paused:
            gc.enable()
            self._is_paused = False

    def after_fork_in_child(self) -> None:
        """End the pause: the thread that would end it is not in the child."""
        self.end()


def _limit_s() -> float:
    given = os.environ.get(PAUSE_VARIABLE, "")
    return (int(given) if given.isdecimal() else _DEFAULT_MS) / 1000

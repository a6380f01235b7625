"""Keep Python's cycle collector from running while a tree is planned or rebuilt."""

from __future__ import annotations

import gc
import os

from orbit_ckpt._src.runtime.forking import reset_in_child

PAUSE_VARIABLE = "ORBIT_CKPT_GC_PAUSE_MS"
"""Environment variable with the longest pause in milliseconds; 0 switches pauses off."""

_DEFAULT_MS = 200


class CollectorPause:
    """A short time in which the collector does not run, unless it was off before.

    Planning and rebuilding a tree makes many objects, none of them garbage. Their number makes the
    collector visit all objects of the process, which in one that has JAX takes longer than the work
    itself. The pause applies to all threads, hence its limit.

    A context manager for a thread that no signal interrupts; any thread may end it earlier.

    Attributes:
        limit_s: The longest pause, in seconds; the thread that waits for the work ends it then.
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
        """Switch the collector on again if this switched it off."""
        if self._is_paused:
            gc.enable()
            self._is_paused = False

    def after_fork_in_child(self) -> None:
        """End it: the thread that would is not in the child."""
        self.end()


def _limit_s() -> float:
    given = os.environ.get(PAUSE_VARIABLE, "")
    return (int(given) if given.isdecimal() else _DEFAULT_MS) / 1000

"""Keep Python's cycle collector from running while a tree is planned or rebuilt."""

from __future__ import annotations

import gc

from orbit_ckpt._src.runtime.forking import reset_in_child


class CollectorPause:
    """A time in which the collector does not run, unless it was off before.

    Planning and rebuilding a tree makes many objects, none of them garbage. The collector takes
    their number for a reason to go through all objects of the process, which in one that has JAX
    takes longer than the work itself. The pause holds for all threads, so it has to be short.

    A context manager for a thread that no signal interrupts; any thread may end it earlier.
    """

    def __init__(self) -> None:
        self._is_paused = False

    def __enter__(self) -> None:
        if gc.isenabled():
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

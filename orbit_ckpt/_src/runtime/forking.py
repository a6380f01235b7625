"""Reset saves and locks that a forked child inherits and must not use.

Only the forking thread exists in the child: work of the other threads never finishes there, and a
lock that one of them held is never released. Objects to which that matters register here and are
reset in the child before anything else runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Protocol

from typing_extensions import override


class Inheritable(Protocol):
    """An object whose state a child must not share with its parent."""

    def after_fork_in_child(self) -> None:
        """Reset it. Other threads are gone, so waiting for a lock would deadlock."""
        ...


_inheritables: weakref.WeakSet[Inheritable] = weakref.WeakSet()
"""Process-wide, as forking is."""


def reset_in_child(inheritable: Inheritable) -> None:
    """Reset an object in every child forked during the object's lifetime."""
    _inheritables.add(inheritable)


def _reset_all() -> None:
    for inheritable in list(_inheritables):
        inheritable.after_fork_in_child()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_reset_all)


class ForkSafeLock(Inheritable):
    """A reentrant lock that is free in a forked child, whichever thread held it in the parent."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        reset_in_child(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # in the child of a fork inside the block
            self._lock.release()

    @override
    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()

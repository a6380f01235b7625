"""What a forked child inherits of its parent's saves and locks, and must not use.

Of the threads of a process only the one that forks exists in the child: what the others were doing
is never finished there, and a lock that one of them held is never released. Objects for which that
matters register here and are reset in the child before anything else runs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import Protocol

from typing_extensions import override


class Inheritable(Protocol):
    """Something whose state a child must not share with its parent."""

    def after_fork_in_child(self) -> None:
        """Reset it. Other threads are gone; no lock may be waited for."""
        ...


_inheritables: weakref.WeakSet[Inheritable] = weakref.WeakSet()
"""Process-wide, as forking is."""


def reset_in_child(inheritable: Inheritable) -> None:
    """Reset an object in every child that is forked while the object exists."""
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
        with contextlib.suppress(RuntimeError):  # the block has forked, and this is the child
            self._lock.release()

    @override
    def after_fork_in_child(self) -> None:
        self._lock = threading.RLock()

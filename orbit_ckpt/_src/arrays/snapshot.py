"""How background saves take arrays from their caller."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from contextvars import ContextVar
from enum import StrEnum

import jax

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.references import view_of_output


class SnapshotMode(StrEnum):
    """What a background save does with arrays before it returns."""

    AUTO = "auto"
    REFERENCE = "reference"
    COPY = "copy"


class Snapshots:
    """Takes arrays for the background saves of one checkpointer, one save after the other."""

    def __init__(self, mode: SnapshotMode = SnapshotMode.AUTO) -> None:
        """Make one that has taken nothing.

        Args:
            mode: What to do with arrays.
        """
        self._mode = mode

    def reference(self, array: jax.Array) -> HostArray | None:
        """Return a view of an array on one CPU device to save instead of a copy.

        Returns:
            None if it must be copied.
        """
        return None if self._mode is SnapshotMode.COPY else view_of_output(array)

    @contextlib.contextmanager
    def taking(self) -> Generator[None]:
        """Take the arrays of the save that is staged in the block."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Snapshots | None] = ContextVar("orbit_ckpt_snapshots", default=None)


def current_snapshots() -> Snapshots:
    """Return what takes the arrays of the save being staged."""
    return _current.get() or Snapshots(SnapshotMode.COPY)

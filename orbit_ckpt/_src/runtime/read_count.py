"""Counts the bytes that one operation reads, through whatever handlers it reads them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar


class ReadCount:
    """The bytes that one operation has read from storage.

    Attributes:
        wants_total: Whether somebody asks how many there will be, which has to be computed.
        total: How many there will be, as far as known.
    """

    def __init__(self, *, wants_total: bool = False) -> None:
        self.wants_total = wants_total
        self.total = 0
        self._readers: list[Callable[[], int]] = []

    def add(self, bytes_read: Callable[[], int]) -> None:
        """Add a reader, as a function that returns how much it has read."""
        self._readers.append(bytes_read)

    @property
    def nbytes(self) -> int:
        """Bytes read so far, as stored."""
        return sum(bytes_read() for bytes_read in self._readers)

    def measure(self) -> tuple[int, int]:
        """Return the bytes read so far, and the total."""
        return self.nbytes, self.total


_current: ContextVar[ReadCount | None] = ContextVar("orbit_ckpt_read_count", default=None)
"""That of the operation in progress, in its threads and coroutines."""


def current_read_count() -> ReadCount | None:
    """Return the count of the operation in progress, None if nobody counts."""
    return _current.get()


@contextlib.contextmanager
def counting_reads(*, wants_total: bool = False) -> Generator[ReadCount]:
    """Count the bytes read in a `with` block."""
    count = ReadCount(wants_total=wants_total)
    token = _current.set(count)
    try:
        yield count
    finally:
        _current.reset(token)

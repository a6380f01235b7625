"""The second phase of a save, which runs after the data has been copied."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple, replace


class Progress(Struct, frozen=True):
    """The part of a save that is written.

    Attributes:
        leaves: Arrays written completely.
        total_leaves: Arrays to write.
        nbytes: Bytes written, counted as in memory.
        total_nbytes: Bytes to write.
    """

    leaves: int = 0
    total_leaves: int = 0
    nbytes: int = 0
    total_nbytes: int = 0

    def __add__(self, other: Progress) -> Progress:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Progress(*(mine + yours for mine, yours in pairs))


class ProgressCounter:
    """Progress that threads report and others read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = Progress()

    def plan(self, leaves: int, nbytes: int) -> None:
        """Set the totals."""
        with self._lock:
            self._now = replace(self._now, total_leaves=leaves, total_nbytes=nbytes)

    def add(self, leaves: int, nbytes: int) -> None:
        """Add to what is written."""
        with self._lock:
            now = self._now
            self._now = replace(now, leaves=now.leaves + leaves, nbytes=now.nbytes + nbytes)

    def now(self) -> Progress:
        """Return the current progress."""
        return self._now


class Commit:
    """The second phase of a save; runs once.

    Creating one (staging) copies what the caller may change; running it makes that durable.
    """

    def __init__(
        self,
        write: Callable[[], Awaitable[None]],
        finalize: Callable[[], None] | None = None,
        progress: Callable[[], Progress] = Progress,
        recorded_as: Mapping[str, str] | None = None,
    ) -> None:
        """Create a commit.

        Args:
            write: Writes the part of each process.
            finalize: Finishes on one process after all have written.
            progress: Returns the progress of `write`.
            recorded_as: Typestrs of the handlers of several items by name, which the checkpoint
                records instead of that of the handler that made this.
        """
        self.recorded_as = recorded_as
        self._write: Callable[[], Awaitable[None]] | None = write
        self._finalize = finalize
        self._progress = progress

    @property
    def progress(self) -> Progress:
        """How much is written."""
        return self._progress()

    async def run(self) -> None:
        """Write everything.

        Raises:
            RuntimeError: It has already run.
        """
        if self._write is None:
            raise RuntimeError("This commit has been run; stage a new one.")
        write, self._write = self._write, None
        await write()

    def finalize(self) -> None:
        """Complete the directory after all processes have written."""
        if self._finalize is not None:
            finalize, self._finalize = self._finalize, None
            finalize()


class ItemToSave(Struct, frozen=True):
    """An item of one save.

    Attributes:
        stage: Takes the directory to write and whether the caller may change the item before the
            commit has run; copies what may change and returns the commit.
        typestr: The type that the checkpoint records for the item.
        values: A tree of the values to save, or arguments that hold it.
    """

    stage: Callable[[Path, bool], Coroutine[object, object, Commit]]
    typestr: str
    values: object

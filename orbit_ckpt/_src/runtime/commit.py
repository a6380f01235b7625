"""What remains to be done of a save after its data has been taken from the caller."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import astuple, replace


class Progress(Struct, frozen=True):
    """How much of a save has been written.

    Attributes:
        leaves: Arrays written completely.
        total_leaves: Arrays to write.
        nbytes: Bytes of them that have been written, as they are in memory.
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
    """Progress that threads report and others ask for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = Progress()

    def plan(self, leaves: int, nbytes: int) -> None:
        """Say what has to be written."""
        with self._lock:
            self._now = replace(self._now, total_leaves=leaves, total_nbytes=nbytes)

    def add(self, leaves: int, nbytes: int) -> None:
        """Add to what has been written."""
        with self._lock:
            now = self._now
            self._now = replace(now, leaves=now.leaves + leaves, nbytes=now.nbytes + nbytes)

    def now(self) -> Progress:
        """The progress at this moment."""
        return self._now


class Commit:
    """The second phase of a save, to be run once.

    Making one (staging) copies what the caller may change; running it makes that durable.
    """

    def __init__(
        self,
        write: Callable[[], Awaitable[None]],
        finalize: Callable[[], None] | None = None,
        progress: Callable[[], Progress] = Progress,
        recorded_as: Mapping[str, str] | None = None,
    ) -> None:
        """Make a commit.

        Args:
            write: Writes what every process writes.
            finalize: Does what one process does when all have written.
            progress: Returns how far `write` is.
            recorded_as: Typestrs of the handlers of several items by name, which the checkpoint
                records instead of that of the handler that made this.
        """
        self.recorded_as = recorded_as
        self._write: Callable[[], Awaitable[None]] | None = write
        self._finalize = finalize
        self._progress = progress

    @property
    def progress(self) -> Progress:
        """How much has been written."""
        return self._progress()

    async def run(self) -> None:
        """Write everything.

        Raises:
            RuntimeError: It has been run before.
        """
        if self._write is None:
            raise RuntimeError("This commit has been run; stage a new one.")
        write, self._write = self._write, None
        await write()

    def finalize(self) -> None:
        """Finish what all processes have written; the directory is then complete."""
        if self._finalize is not None:
            finalize, self._finalize = self._finalize, None
            finalize()


class ItemToSave(Struct, frozen=True):
    """The item of one save.

    Attributes:
        stage: Takes the directory to write and whether the caller may change the item before the
            commit has run; copies what must not change and returns the commit.
        typestr: What the checkpoint records of the item.
        values: A tree of what is saved, or arguments that hold it.
    """

    stage: Callable[[Path, bool], Coroutine[object, object, Commit]]
    typestr: str
    values: object

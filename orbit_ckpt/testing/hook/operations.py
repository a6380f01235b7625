"""Operations that change the file system, and what can become of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the storage.

    Attributes:
        kind: `open` (for writing), `write`, `truncate`, `fsync`, `mkdir`, `rename`, `exchange`,
            `link`, `unlink` or `rmdir`; `put` or `delete` in an object store; `snapshot` for the
            moment at which a save begins to copy the program's values.
        path: What it changes; of a rename, the new name.
        source: Of a rename, an exchange or a link, the other name.
        nbytes: Of a write, how many bytes.
        phase: The phase of the save, None outside of saves; see `Phase`.
        number: Position among the operations of its process, from 1.
    """

    kind: str
    path: str
    source: str | None = None
    nbytes: int | None = None
    phase: str | None = None
    number: int = 0

    def __str__(self) -> str:
        size = "" if self.nbytes is None else f" of {self.nbytes} bytes"
        source = "" if self.source is None else f"{self.source} -> "
        phase = "" if self.phase is None else f", phase {self.phase!r}"
        return f"operation {self.number}: {self.kind}{size} {source}{self.path}{phase}"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A call that is about to change the storage.

    Attributes:
        operation: What it changes.
        perform: Makes the change.
        pretend: Returns what `perform` would, and changes nothing.
        write_only: Performs a write up to this number of bytes.
    """

    operation: Operation
    perform: Callable[[], T]
    pretend: Callable[[], T]
    write_only: Callable[[int], object] | None = None


class Interceptor(Protocol):
    """Decides what becomes of the calls that change the storage."""

    def wants(self, path: str) -> bool:
        """Return whether changes of a path are of interest."""
        ...

    def __call__(self, call: Call[T], /) -> T:
        """Return the result of a call, performed or not.

        Raises:
            OSError: The call is to fail.
        """
        ...

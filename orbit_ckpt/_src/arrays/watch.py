"""Report what a save does with the data of a leaf."""

from __future__ import annotations

import threading
from typing import Any, Protocol


class SerializationStatusCallback(Protocol):
    """Orders the transfers of a save's arrays, and is notified of their progress.

    Its methods run on several threads at once. Paths are tuples of JAX's keys.
    """

    def key_priority(self, keypath: Any) -> object:
        """Return the `TransferPriority` of a leaf."""
        ...

    def on_transfer_start(self, keypath: Any) -> None:
        """Note that the data of a leaf are about to be copied to host memory."""
        ...

    def on_transfer_end(self, keypath: Any) -> None:
        """Note that all data of a leaf that this process writes are in host memory."""
        ...

    def on_write_start(self, keypath: Any) -> None:
        """Note that the data of a leaf are about to be written."""
        ...

    def on_write_end(self, keypath: Any) -> None:
        """Note that all data of a leaf that this process writes are written."""
        ...


class LeafWatch:
    """Reports the transfer and the write of one leaf to a callback, each once.

    Attributes:
        priority: Position of the leaf in the order of writes: leaves with a smaller one come first.
    """

    def __init__(
        self,
        callback: SerializationStatusCallback | None,
        keypath: object,
        size: int,
        priority: int = 0,
    ) -> None:
        """Make a watch.

        Args:
            callback: Receives the reports; None for no reports.
            keypath: The path of the leaf.
            size: Number of elements that this process writes.
            priority: See the attribute.
        """
        self.priority = priority
        self._callback = callback
        self._keypath = keypath
        self._pending = {"transfer": size, "write": size}
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._lock = threading.Lock()

    def begin_transfer(self) -> None:
        """Report the start of the transfer."""
        self._begin("transfer")

    def transferred(self, size: int) -> None:
        """Count transferred elements; report the end after the last one."""
        self._end("transfer", size)

    def begin_write(self) -> None:
        """Report the start of the write, and of the transfer if the write includes it."""
        self._begin("transfer")
        self._begin("write")

    def written(self, size: int) -> None:
        """Count written elements; report the end after the last one."""
        if "transfer" not in self._ended:
            self._end("transfer", size)
        self._end("write", size)

    def _begin(self, what: str) -> None:
        with self._lock:
            is_first = what not in self._begun
            self._begun.add(what)
        if is_first and self._callback is not None:
            getattr(self._callback, f"on_{what}_start")(self._keypath)

    def _end(self, what: str, size: int) -> None:
        with self._lock:
            self._pending[what] -= size
            is_last = self._pending[what] <= 0 and what not in self._ended
            if is_last:
                self._ended.add(what)
        if is_last and self._callback is not None:
            getattr(self._callback, f"on_{what}_end")(self._keypath)

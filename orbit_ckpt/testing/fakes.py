"""Stand-ins for what tests cannot have, or cannot have quickly."""

from __future__ import annotations

import threading
import time

from orbit_ckpt._src.runtime.meetings import KeyValueGroup
from orbit_ckpt._src.runtime.process import Process, ProcessGroup


def fake_processes(count: int) -> list[ProcessGroup]:
    """Return a process group as each of some processes would see it.

    Use each in a thread of its own. What they do is what processes of `jax.distributed` do, except
    that they meet in memory.
    """
    store = MemoryKeyValues()
    return [KeyValueGroup(store, Process(index, count)) for index in range(count)]


class MemoryKeyValues:
    """A key-value store in memory, shared by threads; behaves as JAX's does."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._counters: dict[str, int] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        """See `KeyValues`."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def put_new(self, key: str, value: bytes) -> bool:
        """See `KeyValues`."""
        with self._changed:
            if key in self._values:
                return False
            self.put(key, value)
            return True

    def get(self, key: str, timeout_s: float) -> bytes | None:
        """See `KeyValues`."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while key not in self._values:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)
            return self._values[key]

    def list(self, folder: str) -> dict[str, bytes]:
        """See `KeyValues`."""
        with self._changed:
            return {
                k.removeprefix(folder): v for k, v in self._values.items() if k.startswith(folder)
            }

    def add(self, key: str, amount: int) -> int:
        """See `KeyValues`."""
        with self._changed:
            self._counters[key] = self._counters.get(key, 0) + amount
            return self._counters[key]

    def delete(self, key: str) -> None:
        """See `KeyValues`."""
        with self._changed:
            for held in (self._values, self._counters):
                for name in [k for k in held if k == key or k.startswith(f"{key}/")]:
                    del held[name]

    @property
    def keys(self) -> set[str]:
        """All keys that there are."""
        with self._changed:
            return {*self._values, *self._counters}

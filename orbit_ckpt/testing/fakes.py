"""Fakes for tests: several JAX processes in one, and an object store in memory."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable

from typing_extensions import override

from orbit_ckpt._src.runtime.process import Process, ProcessGroup
from orbit_ckpt._src.runtime.rendezvous import KeyValueGroup, KeyValueStore
from orbit_ckpt.stores import ObjectClient


def fake_processes(count: int) -> list[ProcessGroup]:
    """Return one process group per process, connected by a store in memory.

    They behave like the processes of `jax.distributed`. Use each in its own thread.
    """
    store = MemoryKeyValueStore()
    return [KeyValueGroup(store, Process(index, count)) for index in range(count)]


class MemoryKeyValueStore(KeyValueStore):
    """A key-value store in memory that threads share and that behaves like JAX's."""

    @override
    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._counters: dict[str, int] = {}
        self._changed = threading.Condition()

    @override
    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    @override
    def put_new(self, key: str, value: bytes) -> bool:
        with self._changed:
            if key in self._values:
                return False
            self.put(key, value)
            return True

    @override
    def get(self, key: str, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while key not in self._values:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return None
                self._changed.wait(remaining)
            return self._values[key]

    @override
    def list(self, folder: str) -> dict[str, bytes]:
        with self._changed:
            return {
                k.removeprefix(folder): v for k, v in self._values.items() if k.startswith(folder)
            }

    @override
    def add(self, key: str, amount: int) -> int:
        with self._changed:
            self._counters[key] = self._counters.get(key, 0) + amount
            self._changed.notify_all()
            return self._counters[key]

    @override
    def delete(self, key: str) -> None:
        with self._changed:
            for held in (self._values, self._counters):
                for name in [k for k in held if k == key or k.startswith(f"{key}/")]:
                    del held[name]

    def wait_for_key(self, matches: Callable[[str], bool], timeout_s: float = 60) -> None:
        """Wait until a key matches, in a thread that has to come after another one.

        Raises:
            TimeoutError: None matches in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: any(map(matches, self.keys)), timeout_s):
                raise TimeoutError(f"no key matches within {timeout_s} s: {sorted(self.keys)}")

    @property
    def keys(self) -> set[str]:
        """All keys in the store."""
        with self._changed:
            return {*self._values, *self._counters}


class MemoryClient(ObjectClient):
    """The objects of one bucket in memory; for `register_store`, a bucket per name."""

    def __init__(self, name: str = "") -> None:
        """Make an empty bucket.

        Args:
            name: Its name, which `register_store` gives.
        """
        self.name = name
        self._objects: dict[str, tuple[bytes, bytes]] = {}
        self._versions = itertools.count()

    @override
    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        found = self._objects.get(key)
        return None if found is None else found[0][start:stop]

    @override
    def size(self, key: str) -> int | None:
        found = self._objects.get(key)
        return None if found is None else len(found[0])

    @override
    def version(self, key: str) -> bytes | None:
        found = self._objects.get(key)
        return None if found is None else found[1]

    @override
    def write(self, key: str, data: bytes) -> None:
        self._objects[key] = data, str(next(self._versions)).encode()

    @override
    def delete(self, key: str) -> None:
        self._objects.pop(key, None)

    @override
    def list(self, prefix: str) -> Iterable[str]:
        return [key for key in self._objects.copy() if key.startswith(prefix)]

"""A store in memory, for tests of programs and of stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from typing_extensions import override

from orbit_ckpt.stores import ObjectClient


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

"""Write values into object stores: collected in memory, then sent as whole objects."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable

from typing_extensions import Buffer

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.manifest import ValueChecksums
from orbit_ckpt._src.storage.store_path import StorePath

DEFAULT_OBJECT_BYTES = 1 << 26
"""Size at which an object is sent; each thread holds as much."""

_MAX_UPLOADS = 16
_MAX_UPLOAD_BYTES = 4 * DEFAULT_OBJECT_BYTES
"""Limits of concurrent uploads, by number and bytes; a single object may exceed the latter."""

_ABORT_S = 60.0
"""Maximum wait for all uploads in progress."""


class Uploads:
    """Uploads in progress to a store; for many threads."""

    def __init__(self, root: StorePath) -> None:
        self._root = root
        self._pending: deque[tuple[str, object, int]] = deque()
        self._held = 0
        self._lock = threading.Lock()

    def begin(self, name: str, data: bytes) -> None:
        """Begin to send an object; waits while too many uploads are in progress.

        Raises:
            StorageError: An earlier one could not be written.
        """
        key = f"{self._root.prefix}{name}"
        future = self._root.bucket.begin_write(key, data)
        with self._lock:
            self._pending.append((key, future, len(data)))
            self._held += len(data)
        while oldest := self._pop_oldest(is_full=True):
            self._root.bucket.end_write(*oldest)

    def wait(self) -> None:
        """Wait until all objects are durable.

        Raises:
            StorageError: One could not be written.
        """
        while oldest := self._pop_oldest():
            self._root.bucket.end_write(*oldest)

    def abort(self) -> None:
        """Wait until no upload is in progress: objects that arrive later would be left behind.

        If the store does not answer they may still arrive; the next save removes them.
        """
        deadline = time.monotonic() + _ABORT_S
        while oldest := self._pop_oldest():
            remaining = max(0.0, deadline - time.monotonic())
            with contextlib.suppress(StorageError):
                self._root.bucket.end_write(*oldest, deadline_s=remaining)

    def _pop_oldest(self, *, is_full: bool = False) -> tuple[str, object] | None:
        """Return the oldest upload in progress; with `is_full`, None while there are few."""
        with self._lock:
            is_few = len(self._pending) <= _MAX_UPLOADS and self._held <= _MAX_UPLOAD_BYTES
            if not self._pending or (is_full and is_few):
                return None
            key, future, nbytes = self._pending.popleft()
            self._held -= nbytes
            return key, future


class DataObject:
    """A data file of a database: values held in memory until they are sent."""

    def __init__(self, uploads: Uploads, name: str, sums: ValueChecksums) -> None:
        self.name = name
        self.nbytes = 0
        self.sums = sums
        self._uploads = uploads
        self._parts: list[memoryview] = []

    def append(self, parts: Iterable[Buffer], *, ends_in_checksum: bool) -> Extent:
        """Add a value in parts, which must not change until they are sent.

        Args:
            parts: The value's bytes.
            ends_in_checksum: Whether the last part is the crc32c of the others.
        """
        offset = self.nbytes
        for view in self.sums.views(parts, ends_in_checksum=ends_in_checksum):
            self._parts.append(view)
            self.nbytes += view.nbytes
        return Extent(self.name, offset, self.nbytes - offset, self.sums.last)

    def close(self) -> None:
        """Begin to send it, unless already sent."""
        parts, self._parts = self._parts, []
        if parts:
            self._uploads.begin(self.name, b"".join(parts))

    def abort(self) -> None:
        """Give up."""
        self._parts = []

"""Write values into object stores: collected in memory, then sent as whole objects."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, Self

from typing_extensions import Buffer

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.storage.bucket import Parts
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.manifest import ValueChecksums
from orbit_ckpt._src.storage.store_path import StorePath, map_requests

DEFAULT_OBJECT_BYTES = 1 << 26
"""Size at which an object is sent; each thread holds as much."""

_PARTS_TO_DIVIDE = 2
"""Number of parts from which an object is sent in parts, with two more requests."""

_MAX_UPLOADS = 32
_MAX_UPLOAD_BYTES = 4 * DEFAULT_OBJECT_BYTES
"""Limits of concurrent uploads, by number and bytes; a single object may exceed the latter."""

_ABORT_S = 60.0
"""Maximum wait for all uploads in progress."""


class Uploads:
    """Uploads in progress to a store; for many threads."""

    def __init__(self, root: StorePath) -> None:
        self._root = root
        self._pending: deque[_Pending] = deque()
        self._held = 0
        self._in_parts: list[Parts] = []
        self._lock = threading.Lock()

    @property
    def part_bytes(self) -> int:
        """Size of the parts in which to send large objects; 0 if the store takes none."""
        return self._root.bucket.part_bytes

    def begin(self, name: str, data: bytes) -> None:
        """Begin to send an object; waits while too many uploads are in progress.

        Raises:
            StorageError: An earlier one could not be written.
        """
        key = f"{self._root.prefix}{name}"
        bucket = self._root.bucket
        pending = bucket.begin_write(key, data)
        self._add(_Pending(partial(bucket.end_write, key, pending), len(data)))

    def begin_parts(self, name: str) -> Parts:
        """Begin an object in parts, which exists once `wait` has returned."""
        parts = self._root.bucket.begin_parts(f"{self._root.prefix}{name}")
        with self._lock:
            self._in_parts.append(parts)
        return parts

    def begin_part(self, parts: Parts, data: bytes) -> None:
        """Begin to send a part; waits while too many uploads are in progress.

        Raises:
            StorageError: An earlier one could not be written.
        """
        self._add(_Pending(partial(parts.end, parts.begin(data)), len(data)))

    def _add(self, pending: _Pending) -> None:
        with self._lock:
            self._pending.append(pending)
            self._held += pending.nbytes
        while oldest := self._pop_oldest(is_full=True):
            oldest.end()

    def wait(self) -> None:
        """Wait until all objects are durable.

        Raises:
            StorageError: One could not be written.
        """
        while oldest := self._pop_oldest():
            oldest.end()
        if self._in_parts:
            map_requests(lambda parts: parts.complete(), self._in_parts)
        self._in_parts = []

    def abort(self) -> None:
        """Wait until no upload is in progress: objects that arrive later would be left behind.

        If the store does not answer they may still arrive; the next save removes them.
        """
        deadline = time.monotonic() + _ABORT_S

        def remaining() -> float:
            return max(0.0, deadline - time.monotonic())

        while oldest := self._pop_oldest():
            with contextlib.suppress(StorageError):
                oldest.end(deadline_s=remaining())
        in_parts, self._in_parts = self._in_parts, []
        for parts in in_parts:
            with contextlib.suppress(StorageError):
                parts.abort(deadline_s=remaining())

    def _pop_oldest(self, *, is_full: bool = False) -> _Pending | None:
        """Return the oldest upload in progress; with `is_full`, None while there are few."""
        with self._lock:
            is_few = len(self._pending) <= _MAX_UPLOADS and self._held <= _MAX_UPLOAD_BYTES
            if not self._pending or (is_full and is_few):
                return None
            oldest = self._pending.popleft()
            self._held -= oldest.nbytes
            return oldest


class _Pending(NamedTuple):
    """An upload in progress, or a part of one.

    Attributes:
        end: Waits for it.
        nbytes: Its size.
    """

    end: Callable[..., None]
    nbytes: int


class DataObject:
    """A data file of a database: values held in memory until they are sent."""

    def __init__(self, uploads: Uploads, name: str, sums: ValueChecksums) -> None:
        self.name = name
        self.nbytes = 0
        self.sums = sums
        self._uploads = uploads
        self._part_bytes = uploads.part_bytes
        self._sent: Parts | None = None
        self._held: deque[memoryview] = deque()
        self._held_bytes = 0

    def append(self, parts: Iterable[Buffer], *, ends_in_checksum: bool) -> Extent:
        """Add a value in parts, which must not change until they are sent.

        Args:
            parts: The value's bytes. The first part, if it is a bytearray, may change until the
                last one.
            ends_in_checksum: Whether the last part is the crc32c of the others.
        """
        offset = self.nbytes
        may_change = False
        for view in self.sums.views(parts, ends_in_checksum=ends_in_checksum):
            if self.nbytes == offset and isinstance(view.obj, bytearray):
                may_change = True
            if view.nbytes:  # one of none cannot be cast
                self._held.append(view.cast("B"))
                self._held_bytes += view.nbytes
                self.nbytes += view.nbytes
            if not may_change:
                self._send_parts()
        self._send_parts()
        return Extent(self.name, offset, self.nbytes - offset, self.sums.last)

    def close(self) -> None:
        """Begin to send the rest, unless already sent."""
        if self._held and self._sent is None:
            self._uploads.begin(self.name, self._take(self._held_bytes))
        while self._held and self._sent is not None:
            size = min(self._part_bytes, self._held_bytes)
            self._uploads.begin_part(self._sent, self._take(size))

    def abort(self) -> None:
        """Give up."""
        self._held.clear()

    def _send_parts(self) -> None:
        """Send what is held in parts once it is large, but keep a part for the end."""
        if not self._part_bytes or self._held_bytes < _PARTS_TO_DIVIDE * self._part_bytes:
            return
        if self._sent is None:
            self._sent = self._uploads.begin_parts(self.name)
        while self._held_bytes >= _PARTS_TO_DIVIDE * self._part_bytes:
            self._uploads.begin_part(self._sent, self._take(self._part_bytes))

    def _take(self, nbytes: int) -> bytes:
        """Return the first bytes that are held, and drop them."""
        found: list[memoryview] = []
        missing = nbytes
        while missing:
            view = self._held.popleft()
            if view.nbytes > missing:
                self._held.appendleft(view[missing:])
                view = view[:missing]
            found.append(view)
            missing -= view.nbytes
        self._held_bytes -= nbytes
        return b"".join(found)


class NewObject:
    """An object written from its beginning to its end; as a context manager, or until `finish`.

    It exists once it is finished; until then nothing does.
    """

    def __init__(self, path: StorePath) -> None:
        self._uploads = Uploads(path.parent)
        self._name = path.name
        self._data = DataObject(self._uploads, path.name, ValueChecksums(whole_file=False))
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.finish()
        self.close()

    def write(self, data: bytes) -> None:
        """Add bytes."""
        self._data.append([data], ends_in_checksum=False)

    def finish(self) -> None:
        """Wait until the object is durable.

        Raises:
            StorageError: It could not be written.
        """
        if not self._data.nbytes:
            self._uploads.begin(self._name, b"")
        self._data.close()
        self._uploads.wait()
        self._is_open = False

    def close(self) -> None:
        """Discard what was sent, unless it is finished."""
        if self._is_open:
            self._is_open = False
            self._uploads.abort()

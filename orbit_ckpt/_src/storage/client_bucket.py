"""Buckets of stores that have a client in Python: that of S3, of a plug-in or of the program."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from typing_extensions import override

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.runtime.process import reset_in_child
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.bucket import (
    Bucket,
    FoundObject,
    ObjectClient,
    OpenClient,
    Parts,
    PartsClient,
)
from orbit_ckpt._src.storage.reachable import FirstAnswer
from orbit_ckpt._src.storage.scatter import even_size, scatter, views_between
from orbit_ckpt._src.storage.store_errors import NotInTensorStoreError, explain_failure

T = TypeVar("T")

_DEADLINE_S = 300.0
"""Maximum wait for a request with its repetitions."""

_REQUESTS = 16
"""Maximum concurrent requests to one bucket."""

PART_BYTES = 1 << 23
"""Size of the parts of large objects; a store takes at most 10,000 of 5 MiB to 5 GiB."""

_MAX_PARTS = 10_000

_READ_BYTES = 1 << 23
_READS = 8
"""Size of the ranges into which larger reads are cut, about, and the number in flight at once."""


class ClientBucket(Bucket):
    """The objects of a bucket, through an `ObjectClient`; requests run on threads of its own."""

    def __init__(
        self,
        url: str,
        client: ObjectClient,
        *,
        spec: dict[str, Any] | None = None,
        server: str = "",
    ) -> None:
        """Open a bucket.

        Args:
            url: Its URL, without a slash at the end.
            client: What sends the requests.
            spec: TensorStore's spec of the same bucket; None if it has no driver for the store.
            server: The URL of the server, if known.
        """
        self.url = url
        self._first_answer = FirstAnswer(server)
        self.part_bytes = PART_BYTES if isinstance(client, PartsClient) else 0
        self._client = client
        self._able = client if isinstance(client, PartsClient) else None
        self._spec = spec
        self._workers = Workers(_REQUESTS, "orbit_ckpt-client")
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Use threads of this process."""
        self._workers = Workers(_REQUESTS, "orbit_ckpt-client")

    @override
    def spec(self, prefix: str) -> dict[str, Any]:
        if self._spec is not None:
            return {**self._spec, "path": prefix}
        raise NotInTensorStoreError(
            f"{self.url}/{prefix}: this form of checkpoint is read through TensorStore, which has "
            "no driver for this store. Copy the checkpoint to a disk."
        )

    @override
    def read(self, key: str, *, deadline_s: float | None = None) -> bytes | None:
        found = self.wait("reading", key, self.begin(self._client.read, key), deadline_s)
        return None if found is None else self._checked(found, bytes)

    @override
    def generation(self, key: str) -> bytes | None:
        found = self.wait("reading", key, self.begin(self._client.version, key))
        return None if found is None else self._checked(found, bytes)

    @override
    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        nbytes = sum(buffer.nbytes for buffer in buffers)
        step = even_size(nbytes, _READ_BYTES)
        starts = range(0, max(1, nbytes), step)
        parts = [(offset + s, views_between(buffers, s, s + step)) for s in starts]
        futures = deque(self.begin(self._read_views, key, *part) for part in parts[:_READS])
        done = 0
        for number, (_, views) in enumerate(parts):
            count = self.wait("reading", key, futures.popleft())
            if number + _READS < len(parts):
                futures.append(self.begin(self._read_views, key, *parts[number + _READS]))
            if count is None:
                raise self._missing(key)
            done += count
            if count < sum(view.nbytes for view in views):
                break
        return done

    def _read_views(self, key: str, start: int, views: Sequence[memoryview]) -> int | None:
        """Fill several views by one request, which costs more than a copy."""
        if len(views) == 1:
            return self._read_part(key, start, views[0])
        joined = memoryview(bytearray(sum(view.nbytes for view in views)))
        count = self._read_part(key, start, joined)
        return None if count is None else scatter(joined[:count], views)

    def _read_part(self, key: str, start: int, buffer: memoryview) -> int | None:
        if self._able is not None:
            return self._able.read_into(key, start, buffer)
        found = self._client.read(key, start, start + buffer.nbytes)
        if found is None:
            return None
        data = self._checked(found, bytes)
        if len(data) > buffer.nbytes:
            raise _ClientError(
                f"the store's client returned {len(data)} bytes for a read of {buffer.nbytes}. "
                "Tell its authors."
            )
        buffer[: len(data)] = data
        return len(data)

    @override
    def size(self, key: str, guess: int = 0) -> int:
        found = self.wait("reading", key, self.begin(self._client.size, key))
        if found is None:
            raise self._missing(key)
        return self._checked(found, int)

    @override
    def begin_write(self, key: str, data: bytes) -> Future[None]:
        return self.begin(self._client.write, key, data)

    @override
    def end_write(self, key: str, pending: Any, *, deadline_s: float | None = None) -> None:
        self.wait("writing", key, cast("Future[None]", pending), deadline_s)

    @override
    def begin_parts(self, key: str) -> Parts:
        if self._able is None:
            return super().begin_parts(key)
        return PartsUpload(self, self._able, key)

    @override
    def delete(self, key: str, *, deadline_s: float | None = None) -> None:
        self.wait("deleting", key, self.begin(self._client.delete, key), deadline_s)

    @override
    def delete_below(self, prefix: str, *, last: str, deadline_s: float | None = None) -> None:
        names = self.list_below(prefix)
        keys = [f"{prefix}{name}" for name in names if name != last]
        futures = [self.begin(self._client.delete, key) for key in keys]
        for key, future in zip(keys, futures, strict=True):
            self.wait("deleting", key, future, deadline_s)
        if self._able is not None:  # they cost as much as objects, and no listing shows them
            for upload in self._ask("listing", prefix, self._able.uploads_below, prefix):
                self._ask("deleting", upload[0], self._able.abort_parts, *upload)
        if last in names:
            self.delete(f"{prefix}{last}", deadline_s=deadline_s)

    @override
    def list_below(self, prefix: str) -> list[str]:
        future = self.begin(lambda: list(self._client.list(prefix)))
        keys = self.wait("listing", prefix, future)
        wrong = [key for key in keys if not (isinstance(key, str) and key.startswith(prefix))]  # pyright: ignore[reportUnnecessaryIsInstance] - anybody's
        if wrong:
            raise StorageError(
                f"{self.url}/{prefix}: the store's client listed {wrong[0]!r}, expected keys that "
                "begin with the prefix. Tell its authors."
            )
        return sorted(key[len(prefix) :] for key in keys)

    @override
    def list_page(
        self, prefix: str, delimiter: str = "", start: str = ""
    ) -> tuple[list[FoundObject], bool] | None:
        if self._able is None:
            return None
        return self._ask("listing", prefix, self._able.list_page, prefix, delimiter, start)

    @override
    def list_directory(self, prefix: str) -> tuple[list[str], list[str]]:
        if self._able is None:
            return super().list_directory(prefix)
        return self._ask("listing", prefix, self._able.list_directory, prefix)

    def _ask(self, doing: str, key: str, request: Callable[..., T], *args: object) -> T:
        return self.wait(doing, key, self.begin(request, *args))

    def begin(self, request: Callable[..., T], *args: object) -> Future[T]:
        """Begin a request on a thread."""
        return self._workers.submit(request, *args)

    def wait(self, doing: str, key: str, future: Future[T], deadline_s: float | None = None) -> T:
        """Wait for a request; return its result.

        Raises:
            StorageError: It failed, or took too long.
        """
        where = f"{self.url}/{key}"
        deadline_s = _DEADLINE_S if deadline_s is None else deadline_s
        try:
            return self._first_answer.wait(future.result, where, deadline_s)
        except TimeoutError as error:
            if future.done():  # an error of the client
                raise _failure(where, doing, error) from error
            future.cancel()
            raise StorageError(
                f"{where}: {doing}: the store has not answered within {deadline_s:g} s. Check that "
                "it can be reached (endpoint, HTTPS_PROXY, network) and try again."
            ) from None
        except StorageError as error:
            raise _failure(where, doing, error) from None
        except Exception as error:
            raise _failure(where, doing, error) from error

    def _checked(self, value: object, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise _ClientError(
                f"the store's client returned {show(value)}, expected {kind.__name__}. Tell its "
                "authors."
            )
        return value

    def _missing(self, key: str) -> FileNotFoundError:
        return FileNotFoundError(2, "No such object", f"{self.url}/{key}")


class PartsUpload(Parts):
    """An upload in parts; the first request is sent with the first part.

    Attributes:
        url: That of the object.
        nbytes: Size of the parts so far.
    """

    def __init__(self, bucket: ClientBucket, client: PartsClient, key: str) -> None:
        self.url = f"{bucket.url}/{key}"
        self.nbytes = 0
        self._bucket = bucket
        self._client = client
        self._key = key
        self._upload: Future[str] | None = None
        self._parts: list[Future[object]] = []
        self._lock = threading.Lock()

    @override
    def begin(self, data: bytes) -> object:
        with self._lock:
            if len(self._parts) >= _MAX_PARTS:
                raise StorageError(
                    f"{self._bucket.url}/{self._key}: more than {_MAX_PARTS} parts of {len(data)} "
                    "bytes in one object, which no store takes. Save with smaller chunks "
                    "(SaveArgs.chunk_byte_size)."
                )
            if self._upload is None:
                self._upload = self._bucket.begin(self._client.begin_parts, self._key)
            self.nbytes += len(data)
            number = len(self._parts) + 1
            self._parts.append(self._bucket.begin(self._write, self._upload, number, data))
            return self._parts[-1]

    def _write(self, upload: Future[str], number: int, data: bytes) -> object:
        # begun before, so that a thread has taken it or does now
        return self._client.write_part(self._key, upload.result(), number, data)

    @override
    def end(self, pending: Any, *, deadline_s: float | None = None) -> None:
        self._bucket.wait("writing", self._key, cast("Future[object]", pending), deadline_s)

    @override
    def complete(self) -> None:
        upload = self._identity()
        if upload is not None:
            parts = [part.result() for part in self._parts]
            request = self._bucket.begin(self._client.complete_parts, self._key, upload, parts)
            self._bucket.wait("writing", self._key, request)

    @override
    def abort(self, *, deadline_s: float | None = None) -> None:
        upload = self._identity()
        if upload is not None:
            request = self._bucket.begin(self._client.abort_parts, self._key, upload)
            self._bucket.wait("deleting", self._key, request, deadline_s)

    def _identity(self) -> str | None:
        if self._upload is None:
            return None
        return self._bucket.wait("writing", self._key, self._upload)


class _ClientError(StorageError):
    """The client of a plug-in is wrong."""


def _failure(where: str, doing: str, error: Exception) -> StorageError:
    if isinstance(error, _ClientError):
        return StorageError(f"{where}: {error}")
    if isinstance(error, StorageError):  # of the client of S3, which says no more than it should
        return explain_failure(where, doing, str(error))
    return StorageError(f"{where}: {doing} failed: {type(error).__name__}: {error}")


@functools.cache
def open_client_bucket(scheme: str, name: str, open_client: OpenClient) -> ClientBucket:
    """Open a bucket through the client of a plug-in or the program.

    Raises:
        StorageError: The client cannot be made, or is none.
    """
    url = f"{scheme}://{name}"
    try:
        client = cast(object, open_client(name))
    except Exception as error:
        raise _failure(url, "opening", error) from error
    if not isinstance(client, ObjectClient):
        raise StorageError(
            f"{url}: opening returned {show(client)}, expected an object with the methods of "
            "orbit_ckpt.stores.ObjectClient. Tell the authors of the store."
        )
    return ClientBucket(url, client)

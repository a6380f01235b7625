"""Buckets of stores whose client a plug-in or the program provides."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from typing_extensions import override

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.runtime.checks import show
from orbit_ckpt._src.runtime.process import reset_in_child
from orbit_ckpt._src.runtime.workers import Workers
from orbit_ckpt._src.storage.bucket import Bucket, ObjectClient, OpenClient

T = TypeVar("T")

_DEADLINE_S = 300.0
_REQUESTS = 16
"""Maximum concurrent requests to one bucket."""

_READ_BYTES = 1 << 23
_READS = 8
"""Size of the ranges into which larger reads are cut, and the number in flight at once."""


class NotInTensorStoreError(StorageError):
    """TensorStore has no driver for a store."""


class ClientBucket(Bucket):
    """The objects of a bucket, through an `ObjectClient`; requests run on threads of its own."""

    def __init__(self, url: str, client: ObjectClient) -> None:
        self.url = url
        self._client = client
        self._workers = Workers(_REQUESTS, "orbit_ckpt-client")
        reset_in_child(self)

    def after_fork_in_child(self) -> None:
        """Use threads of this process."""
        self._workers = Workers(_REQUESTS, "orbit_ckpt-client")

    @override
    def spec(self, prefix: str) -> dict[str, Any]:
        raise NotInTensorStoreError(
            f"{self.url}/{prefix}: this form of checkpoint is read through TensorStore, which has "
            "no driver for this store. Copy the checkpoint to a disk."
        )

    @override
    def read(self, key: str, *, deadline_s: float | None = None) -> bytes | None:
        found = self._wait("reading", key, self._begin(self._client.read, key), deadline_s)
        return None if found is None else self._checked(key, found, bytes)

    @override
    def generation(self, key: str) -> bytes | None:
        found = self._wait("reading", key, self._begin(self._client.version, key))
        return None if found is None else self._checked(key, found, bytes)

    @override
    def read_into(self, key: str, offset: int, buffer: memoryview) -> int:
        starts = range(0, max(1, buffer.nbytes), _READ_BYTES)
        parts = [(offset + s, offset + min(s + _READ_BYTES, buffer.nbytes)) for s in starts]
        futures = deque(self._begin(self._client.read, key, *p) for p in parts[:_READS])
        done = 0
        for number, (start, stop) in enumerate(parts):
            found = self._wait("reading", key, futures.popleft())
            if number + _READS < len(parts):
                futures.append(self._begin(self._client.read, key, *parts[number + _READS]))
            if found is None:
                raise self._missing(key)
            data = self._checked(key, found, bytes)
            if len(data) > stop - start:
                raise StorageError(
                    f"{self.url}/{key}: the store's client returned {len(data)} bytes for a read "
                    f"of {stop - start}. Tell its authors."
                )
            buffer[done : done + len(data)] = data
            done += len(data)
            if len(data) < stop - start:
                break
        return done

    @override
    def size(self, key: str, guess: int = 0) -> int:
        found = self._wait("reading", key, self._begin(self._client.size, key))
        if found is None:
            raise self._missing(key)
        return self._checked(key, found, int)

    @override
    def begin_write(self, key: str, data: bytes) -> Future[None]:
        return self._begin(self._client.write, key, data)

    @override
    def end_write(self, key: str, pending: Any, *, deadline_s: float | None = None) -> None:
        self._wait("writing", key, cast("Future[None]", pending), deadline_s)

    @override
    def delete(self, key: str, *, deadline_s: float | None = None) -> None:
        self._wait("deleting", key, self._begin(self._client.delete, key), deadline_s)

    @override
    def delete_below(self, prefix: str, *, last: str, deadline_s: float | None = None) -> None:
        names = self.list_below(prefix)
        keys = [f"{prefix}{name}" for name in names if name != last]
        futures = [self._begin(self._client.delete, key) for key in keys]
        for key, future in zip(keys, futures, strict=True):
            self._wait("deleting", key, future, deadline_s)
        if last in names:
            self.delete(f"{prefix}{last}", deadline_s=deadline_s)

    @override
    def list_below(self, prefix: str) -> list[str]:
        future = self._begin(lambda: list(self._client.list(prefix)))
        keys = self._wait("listing", prefix, future)
        wrong = [key for key in keys if not (isinstance(key, str) and key.startswith(prefix))]  # pyright: ignore[reportUnnecessaryIsInstance] - anybody's
        if wrong:
            raise StorageError(
                f"{self.url}/{prefix}: the store's client listed {wrong[0]!r}, expected keys that "
                "begin with the prefix. Tell its authors."
            )
        return sorted(key[len(prefix) :] for key in keys)

    def _begin(self, request: Callable[..., T], *args: object) -> Future[T]:
        return self._workers.submit(request, *args)

    def _wait(self, doing: str, key: str, future: Future[T], deadline_s: float | None = None) -> T:
        """Wait for a request.

        Raises:
            StorageError: It failed, or took too long.
        """
        where = f"{self.url}/{key}"
        deadline_s = _DEADLINE_S if deadline_s is None else deadline_s
        try:
            return future.result(timeout=deadline_s)
        except TimeoutError as error:
            if future.done():  # an error of the client
                raise _failure(where, doing, error) from error
            future.cancel()
            raise StorageError(
                f"{where}: {doing}: the store has not answered within {deadline_s:g} s. Check that "
                "it can be reached and try again."
            ) from None
        except Exception as error:
            raise _failure(where, doing, error) from error

    def _checked(self, key: str, value: object, kind: type[T]) -> T:
        if not isinstance(value, kind):
            raise StorageError(
                f"{self.url}/{key}: the store's client returned {show(value)}, expected "
                f"{kind.__name__}. Tell its authors."
            )
        return value

    def _missing(self, key: str) -> FileNotFoundError:
        return FileNotFoundError(2, "No such object", f"{self.url}/{key}")


def _failure(where: str, doing: str, error: Exception) -> StorageError:
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

"""Requests to object stores: TensorStore's drivers, with retries, a deadline and plain errors.

Where a store is, and who asks, is said the way the store's own tools have it: for S3 by the
variables `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_DEFAULT_REGION`,
`AWS_ACCESS_KEY_ID` and so on; for Google's by `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's files or
the machine's account. No message has a credential, nor what a server says beside its code.
"""

from __future__ import annotations

import functools
import os
import re
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorstore as ts

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.storage.reachable import check_reachable

T = TypeVar("T")

MAX_OBJECT_BYTES = 5 * 2**30
"""Most bytes that S3 takes in one request; TensorStore makes one for an object."""

_DEADLINE_S = 300.0
_RETRIES = {"max_retries": 8, "initial_delay": "500ms", "max_delay": "20s"}
"""Of one request; these come to about a minute of waiting."""

_READ_BYTES = 1 << 23
_READS = 8
"""Larger reads are cut into ranges of so many bytes, so many of which are under way at once."""

_PROBED_BYTES = 1 << 16
_MAX_SIZE_BITS = 43
_READS_OF_SIZE = 16
"""How the size of an object is found: what is read at once, the largest one, requests at once."""

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class Bucket:
    """The objects of one bucket by key."""

    def __init__(self, scheme: str, name: str, store: ts.KvStore, spec: dict[str, Any]) -> None:
        self.url = f"{scheme}://{name}"
        self._store = store
        self._spec = spec

    def spec(self, prefix: str) -> dict[str, Any]:
        """Return TensorStore's specification of the objects below a prefix."""
        return {**self._spec, "path": self._spec.get("path", "") + prefix}

    def read(self, key: str, *, deadline_s: float | None = None) -> bytes | None:
        """Return the contents of an object, None if there is none."""
        found = self._wait("reading", key, lambda: self._store.read(key), deadline_s)
        return found.value if found.state == "value" else None

    def generation(self, key: str) -> bytes | None:
        """Return what changes whenever an object is written, None if there is none."""
        found = self._wait("reading", key, lambda: self._store.read(key, byte_range=slice(0, 0)))
        return found.stamp.generation if found.state == "value" else None

    def read_range(self, key: str, offset: int, nbytes: int) -> bytes:
        """Return bytes of an object, fewer if it ends early.

        Raises:
            FileNotFoundError: There is no such object.
        """
        buffer = memoryview(bytearray(nbytes))
        return bytes(buffer[: self.read_into(key, offset, buffer)])

    def read_into(self, key: str, offset: int, buffer: memoryview) -> int:
        """Fill a buffer with bytes of an object; return how many there were.

        Raises:
            FileNotFoundError: There is no such object.
        """
        starts = range(0, buffer.nbytes, _READ_BYTES)
        ranges = [(offset + s, offset + min(s + _READ_BYTES, buffer.nbytes)) for s in starts]
        # what has been copied is dropped; a future holds what was read
        futures = deque(self._begin_read(key, *part) for part in ranges[:_READS])
        done = 0
        for number, (start, stop) in enumerate(ranges):
            data = self._end_read(key, start, futures.popleft())
            if number + _READS < len(ranges):
                futures.append(self._begin_read(key, *ranges[number + _READS]))
            buffer[done : done + len(data)] = data
            done += len(data)
            if len(data) < stop - start:
                break
        return done

    def size(self, key: str, guess: int = 0) -> int:
        """Return how many bytes an object has, which stores do not tell through TensorStore.

        Takes two requests if it has as many as guessed, or few; else some dozens, many at once.

        Raises:
            FileNotFoundError: There is no such object.
        """
        if guess and len(self.read_range(key, guess - 1, 2)) == 1:
            return guess
        low = len(self.read_range(key, 0, _PROBED_BYTES))  # all bytes before are there
        if low < _PROBED_BYTES:
            return low
        ends = [1 << power for power in range(_PROBED_BYTES.bit_length(), _MAX_SIZE_BITS)]
        while True:
            found = [self._begin_read(key, end, end + 1) for end in ends]
            there = [bool(self._end_read(key, end, f)) for end, f in zip(ends, found, strict=True)]
            count = sum(there)
            high = ends[count] if count < len(ends) else ends[-1]
            low = ends[count - 1] if count else low
            if high - low <= _PROBED_BYTES:
                return low + len(self.read_range(key, low, high - low + 1))
            step = -(-(high - low) // _READS_OF_SIZE)
            ends = [*range(low + step, high, step), high]

    def write(self, key: str, data: bytes) -> None:
        """Write an object; once this returns it is durable and everybody sees it."""
        self.end_write(key, self.begin_write(key, data))

    def begin_write(self, key: str, data: bytes) -> ts.Future[Any]:
        """Begin to write an object; `end_write` tells whether that went well.

        Raises:
            StorageError: It is larger than stores take.
        """
        if len(data) > MAX_OBJECT_BYTES:
            raise StorageError(
                f"{self.url}/{key}: {len(data)} bytes in one piece, a store takes at most "
                f"{MAX_OBJECT_BYTES}. Save with smaller chunks (SaveArgs.chunk_byte_size)."
            )
        return self._store.write(key, data)

    def end_write(
        self, key: str, future: ts.Future[Any], *, deadline_s: float | None = None
    ) -> None:
        """Wait until an object is written."""
        self._wait("writing", key, lambda: future, deadline_s)

    def delete(self, key: str, *, deadline_s: float | None = None) -> None:
        """Delete an object if there is one."""
        self._wait("deleting", key, lambda: self._store.write(key, None), deadline_s)

    def delete_below(self, prefix: str, *, last: str, deadline_s: float | None = None) -> None:
        """Delete all objects whose keys begin with a prefix, many at a time.

        Args:
            prefix: The prefix.
            last: What follows it in the key of the object that is deleted once the others are.
            deadline_s: Longest to wait for each of these requests.
        """
        keys, kept = _below(prefix), f"{prefix}{last}".encode()
        parts = (_range(keys.inclusive_min, kept), _range(kept + b"\0", keys.exclusive_max))
        for part in (*parts, keys):
            self._wait("deleting", prefix, lambda: self._store.delete_range(part), deadline_s)  # noqa: B023 - runs at once

    def list_below(self, prefix: str) -> list[str]:
        """Return the keys of all objects that begin with a prefix, without it, in order."""
        strip = len(prefix.encode())
        found = self._wait("listing", prefix, lambda: self._store.list(_below(prefix), strip))
        return sorted(key.decode("utf-8", "surrogateescape") for key in found)

    def _begin_read(self, key: str, start: int, stop: int) -> ts.Future[Any]:
        return self._store.read(key, byte_range=slice(start, stop))

    def _end_read(self, key: str, start: int, future: ts.Future[Any]) -> bytes:
        try:
            found = self._wait("reading", key, lambda: future)
        except _BeyondEndError:
            try:  # the driver returns nothing of a range that is not all there
                rest = slice(start, None)
                found = self._wait("reading", key, lambda: self._store.read(key, byte_range=rest))
            except _BeyondEndError:
                return b""
        if found.state != "value":
            raise FileNotFoundError(2, "No such object", f"{self.url}/{key}")
        return found.value

    def _wait(
        self,
        doing: str,
        key: str,
        begin: Callable[[], ts.Future[T]],
        deadline_s: float | None = None,
    ) -> T:
        """Wait for a request.

        Raises:
            StorageError: It failed, as often as it was tried, or took too long.
        """
        where = f"{self.url}/{key}"
        deadline_s = _DEADLINE_S if deadline_s is None else deadline_s
        future = begin()
        try:
            return future.result(timeout=deadline_s)
        except TimeoutError:
            future.cancel()  # pyright: ignore[reportUnknownMemberType] - tensorstore stubs
            raise StorageError(
                f"{where}: {doing}: the store has not answered within {deadline_s:g} s. Check that "
                f"it can be reached (AWS_ENDPOINT_URL of s3://, network) and try again."
            ) from None
        except (ValueError, NotImplementedError) as error:
            # not as its cause, which quotes the server's answer, and that the access key
            raise _explain(where, doing, str(error)) from None


class _BeyondEndError(StorageError):
    """A range of bytes that an object does not have."""


def open_bucket(scheme: str, name: str) -> Bucket:
    """Return a bucket; no request is made for it, but the first time a connection is opened.

    Raises:
        StorageError: The settings of the environment are not understood, or the store cannot be
            reached.
    """
    if scheme == "memory":
        return _open_memory(name)
    if scheme == "gs":
        endpoint = _setting("TENSORSTORE_GCS_HTTP_URL") or "https://storage.googleapis.com"
        return _open_google(name, endpoint)
    endpoint = _setting("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    region = _setting("AWS_REGION", "AWS_DEFAULT_REGION")
    credentials = tuple(os.environ.get(name) for name in _CREDENTIALS)
    return _open_s3(name, endpoint, region, credentials)


@functools.lru_cache(maxsize=16)
def _open_s3(
    name: str, endpoint: str | None, region: str | None, credentials: tuple[str | None, ...]
) -> Bucket:
    spec: dict[str, Any] = {
        "driver": "s3",
        "bucket": name,
        "context": {"s3_request_retries": _RETRIES},
    }
    if endpoint is not None:  # the driver looks at no variable but those of credentials
        spec |= {"endpoint": endpoint.rstrip("/"), "aws_region": region or "us-east-1"}
    elif region is not None:
        spec["aws_region"] = region
    server = "s3.amazonaws.com" if region is None else f"s3.{region}.amazonaws.com"
    check_reachable(f"s3://{name}", endpoint or f"https://{server}")
    if all(credentials):  # else the driver complains on stderr of every place that has none
        spec["aws_credentials"] = {"type": "environment"}
    return Bucket("s3", name, _open(spec, f"s3://{name}", None), spec)


@functools.lru_cache(maxsize=16)
def _open_google(name: str, endpoint: str) -> Bucket:
    check_reachable(f"gs://{name}", endpoint)
    retries = {"gcs_request_retries": _RETRIES}
    spec = {"driver": "gcs", "bucket": name, "context": retries}
    return Bucket("gs", name, _open(spec, f"gs://{name}", None), spec)


@functools.lru_cache(maxsize=64)
def _open_memory(name: str) -> Bucket:
    spec = {"driver": "memory", "path": f"{name}/"}
    return Bucket("memory", name, _open(spec, f"memory://{name}", shared_context()), spec)


@functools.cache
def shared_context() -> ts.Context:
    """Return the context that holds what is in `memory://`."""
    return ts.Context()


def _open(spec: dict[str, Any], where: str, context: ts.Context | None) -> ts.KvStore:
    try:
        return ts.KvStore.open(spec, context=context).result(timeout=_DEADLINE_S)
    except (ValueError, NotImplementedError) as error:
        raise _explain(where, "opening", str(error)) from None


def _setting(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _below(prefix: str) -> ts.KvStore.KeyRange:
    key = prefix.encode()
    end = key[:-1] + bytes([key[-1] + 1]) if key else b""
    return _range(key, end)


def _range(start: bytes, end: bytes) -> ts.KvStore.KeyRange:
    return cast(Any, ts.KvStore.KeyRange)(start, end)


_ANNOTATIONS = re.compile(r" \[[\w-]+='.*", re.DOTALL)

_REFUSED = (
    "PERMISSION_DENIED|UNAUTHENTICATED|InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied"
    "|[Cc]redential"
)
_UNREACHABLE = "ABORTED|UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED"
_FAILURES = (_REFUSED, _UNREACHABLE)
_LOCAL_FAILURES = "PERMISSION_DENIED|RESOURCE_EXHAUSTED"  # of rights, and of open files
_REASONS = {
    "NoSuchBucket|^NOT_FOUND": (
        "There is no such bucket: create it, or check its name and the endpoint."
    ),
    _REFUSED: (
        "The store refuses the credentials, or they give no right to this: check "
        "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE (s3://), "
        "GOOGLE_APPLICATION_CREDENTIALS (gs://) and the bucket's policy."
    ),
    _UNREACHABLE: (
        "The store cannot be reached, or is overloaded: check the endpoint, try again later."
    ),
}


def store_failure(where: str, error: Exception, *, is_remote: bool) -> StorageError | None:
    """Return what an error of TensorStore says of the storage, None if it is about the data.

    Args:
        where: What was read.
        error: The error.
        is_remote: Whether that is in an object store.
    """
    if not is_remote:
        is_failure = re.match(_LOCAL_FAILURES, str(error)) is not None
        return StorageError(f"{where}: reading failed: {error}") if is_failure else None
    is_failure = any(re.match(pattern, str(error)) for pattern in _FAILURES)
    return _explain(where, "reading", str(error)) if is_failure else None


def _explain(where: str, doing: str, text: str) -> StorageError:
    """Return an error that says what went wrong, without what a server answered."""
    short = _ANNOTATIONS.sub("", text)
    if text.startswith("OUT_OF_RANGE"):
        return _BeyondEndError(f"{where}: {doing}: {short}")
    advice = [advice for pattern, advice in _REASONS.items() if re.search(pattern, short)]
    return StorageError(f"{where}: {doing} failed: {' '.join([short, *advice[:1]])}")

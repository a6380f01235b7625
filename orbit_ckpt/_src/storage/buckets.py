"""Buckets of built-in stores: S3 through botocore if it is installed, else TensorStore's drivers.

Endpoints and credentials are configured as for the stores' own tools: S3 by the variables
`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_DEFAULT_REGION`, `AWS_ACCESS_KEY_ID`
and so on; Google's by `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's files or the machine's account. No
message contains a credential, nor anything of a server's answer other than its code.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import tensorstore as ts
from typing_extensions import override

from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.storage.bucket import Bucket, find_store
from orbit_ckpt._src.storage.client_bucket import ClientBucket, open_client_bucket
from orbit_ckpt._src.storage.reachable import FirstAnswer, check_reachable
from orbit_ckpt._src.storage.s3_client import S3Client
from orbit_ckpt._src.storage.scatter import even_size, scatter, views_between
from orbit_ckpt._src.storage.store_errors import BeyondEndError, explain_failure

T = TypeVar("T")

MAX_OBJECT_BYTES = 5 * 2**30
"""Maximum bytes of one S3 request; TensorStore writes an object in one."""

_DEADLINE_S = 300.0
"""Maximum wait for a request with its repetitions."""

_RETRIES = {"max_retries": 8, "initial_delay": "500ms", "max_delay": "20s"}
"""Retries of one request, which amount to about a minute of waiting."""

_READ_BYTES = 1 << 23
_READS = 8
"""Size of the ranges into which larger reads are cut, and the number in flight at once."""

_PROBED_BYTES = 1 << 16
_MAX_SIZE_BITS = 43
_READS_OF_SIZE = 16
"""Parameters for finding the size of an object: first read, largest read, concurrent requests."""

_CREDENTIALS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"),
    *("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"),
)
"""What says who asks; the first two suffice."""


class TensorStoreBucket(Bucket):
    """The objects of one bucket, through a driver of TensorStore."""

    def __init__(
        self, scheme: str, name: str, store: ts.KvStore, spec: dict[str, Any], server: str = ""
    ) -> None:
        self.url = f"{scheme}://{name}"
        self._store = store
        self._spec = spec
        self._first_answer = FirstAnswer(server)

    @override
    def spec(self, prefix: str) -> dict[str, Any]:
        return {**self._spec, "path": self._spec.get("path", "") + prefix}

    @override
    def read(self, key: str, *, deadline_s: float | None = None) -> bytes | None:
        found = self._wait("reading", key, lambda: self._store.read(key), deadline_s)
        return found.value if found.state == "value" else None

    @override
    def generation(self, key: str) -> bytes | None:
        found = self._wait("reading", key, lambda: self._store.read(key, byte_range=slice(0, 0)))
        return found.stamp.generation if found.state == "value" else None

    @override
    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        nbytes = sum(buffer.nbytes for buffer in buffers)
        step = even_size(nbytes, _READ_BYTES)
        ranges = [(offset + s, offset + min(s + step, nbytes)) for s in range(0, nbytes, step)]
        # a future holds the bytes read, so drop it once they are copied
        futures = deque(self._begin_read(key, *part) for part in ranges[:_READS])
        done = 0
        for number, (start, stop) in enumerate(ranges):
            data = self._end_read(key, start, futures.popleft())
            if number + _READS < len(ranges):
                futures.append(self._begin_read(key, *ranges[number + _READS]))
            done += scatter(data, views_between(buffers, done, done + len(data)))
            if len(data) < stop - start:
                break
        return done

    @override
    def size(self, key: str, guess: int = 0) -> int:
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

    @override
    def begin_write(self, key: str, data: bytes) -> ts.Future[Any]:
        if len(data) > MAX_OBJECT_BYTES:
            raise StorageError(
                f"{self.url}/{key}: {len(data)} bytes in one piece, a store takes at most "
                f"{MAX_OBJECT_BYTES}. Save with smaller chunks (SaveArgs.chunk_byte_size)."
            )
        return self._store.write(key, data)

    @override
    def end_write(self, key: str, pending: Any, *, deadline_s: float | None = None) -> None:
        self._wait("writing", key, lambda: pending, deadline_s)

    @override
    def delete(self, key: str, *, deadline_s: float | None = None) -> None:
        self._wait("deleting", key, lambda: self._store.write(key, None), deadline_s)

    @override
    def delete_below(self, prefix: str, *, last: str, deadline_s: float | None = None) -> None:
        keys, kept = _below(prefix), f"{prefix}{last}".encode()
        parts = (_range(keys.inclusive_min, kept), _range(kept + b"\0", keys.exclusive_max))
        for part in (*parts, keys):
            self._wait("deleting", prefix, lambda: self._store.delete_range(part), deadline_s)  # noqa: B023 - runs at once

    @override
    def list_below(self, prefix: str) -> list[str]:
        strip = len(prefix.encode())
        found = self._wait("listing", prefix, lambda: self._store.list(_below(prefix), strip))
        return sorted(key.decode("utf-8", "surrogateescape") for key in found)

    def _begin_read(self, key: str, start: int, stop: int) -> ts.Future[Any]:
        return self._store.read(key, byte_range=slice(start, stop))

    def _end_read(self, key: str, start: int, future: ts.Future[Any]) -> bytes:
        try:
            found = self._wait("reading", key, lambda: future)
        except BeyondEndError:
            try:  # the driver returns nothing of a range that is not all there
                rest = slice(start, None)
                found = self._wait("reading", key, lambda: self._store.read(key, byte_range=rest))
            except BeyondEndError:
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
            StorageError: It failed on every retry, or took too long.
        """
        where = f"{self.url}/{key}"
        deadline_s = _DEADLINE_S if deadline_s is None else deadline_s
        future = begin()
        try:
            return self._first_answer.wait(
                lambda limit_s: future.result(timeout=limit_s), where, deadline_s
            )
        except TimeoutError:
            future.cancel()  # pyright: ignore[reportUnknownMemberType] - tensorstore stubs
            raise StorageError(
                f"{where}: {doing}: the store has not answered within {deadline_s:g} s. Check that "
                "it can be reached (AWS_ENDPOINT_URL of s3://, HTTPS_PROXY, network) and try again."
            ) from None
        except (ValueError, NotImplementedError) as error:
            # no cause: it would quote the server's answer, which contains the access key
            raise explain_failure(where, doing, str(error)) from None


def open_bucket(scheme: str, name: str) -> Bucket:
    """Return a bucket; makes no request, but checks the connection the first time.

    Raises:
        PluginConflictError: Several plug-ins have a store of this scheme.
        StorageError: The environment's settings are not understood, the store cannot be reached, or
            the plug-in for it failed.
    """
    open_client = find_store(scheme)
    if open_client is not None:
        return open_client_bucket(scheme, name, open_client)
    if scheme == "memory":
        return _open_memory(name)
    if scheme == "gs":
        endpoint = _setting("TENSORSTORE_GCS_HTTP_URL") or "https://storage.googleapis.com"
        return _open_google(name, endpoint)
    endpoint = _setting("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    region = _setting("AWS_REGION", "AWS_DEFAULT_REGION")
    settings = tuple(os.environ.get(name) for name in _CREDENTIALS)
    return _open_s3(name, endpoint, region, settings)


@functools.lru_cache(maxsize=16)
def _open_s3(
    name: str, endpoint: str | None, region: str | None, settings: tuple[str | None, ...]
) -> Bucket:
    """Open a bucket of S3, once for all settings that its client reads from the environment."""
    spec: dict[str, Any] = {
        "driver": "s3",
        "bucket": name,
        "context": {"s3_request_retries": _RETRIES},
    }
    if endpoint is not None:  # the driver reads only the variables for credentials
        spec |= {"endpoint": endpoint.rstrip("/"), "aws_region": region or "us-east-1"}
    elif region is not None:
        spec["aws_region"] = region
    server = "s3.amazonaws.com" if region is None else f"s3.{region}.amazonaws.com"
    url = endpoint or f"https://{server}"
    check_reachable(f"s3://{name}", url)
    if all(settings[:2]):  # else the driver logs on stderr every place without credentials
        spec["aws_credentials"] = {"type": "environment"}
    if find_spec("botocore") is not None:
        client = S3Client(name, endpoint=endpoint, region=region)
        return ClientBucket(f"s3://{name}", client, spec=spec, server=url)
    return TensorStoreBucket("s3", name, _open(spec, f"s3://{name}", None), spec, url)


@functools.lru_cache(maxsize=16)
def _open_google(name: str, endpoint: str) -> TensorStoreBucket:
    check_reachable(f"gs://{name}", endpoint)
    retries = {"gcs_request_retries": _RETRIES}
    spec = {"driver": "gcs", "bucket": name, "context": retries}
    return TensorStoreBucket("gs", name, _open(spec, f"gs://{name}", None), spec, endpoint)


@functools.lru_cache(maxsize=64)
def _open_memory(name: str) -> TensorStoreBucket:
    spec = {"driver": "memory", "path": f"{name}/"}
    return TensorStoreBucket(
        "memory", name, _open(spec, f"memory://{name}", shared_context()), spec
    )


@functools.cache
def shared_context() -> ts.Context:
    """Return the context that holds the contents of `memory://`."""
    return ts.Context()


def get_ts_context(
    *,
    use_ocdbt: bool = True,
    file_io_concurrency_limit: int | None = None,
    data_copy_concurrency_limit: int | None = None,
) -> ts.Context:
    """Return a new context for code that opens arrays with TensorStore itself.

    Each call returns a new one, so that no cached node of a database hides later damage. All
    contexts from here share the contents of `memory://`.

    Args:
        use_ocdbt: Whether to add the cache of database nodes that Orbax's specs refer to.
        file_io_concurrency_limit: Maximum concurrent operations on files.
        data_copy_concurrency_limit: Maximum threads that compress and copy; None for TensorStore's
            default.

    Raises:
        ValueError: A limit is not positive.
    """
    files = 128 if file_io_concurrency_limit is None else file_io_concurrency_limit
    spec: dict[str, Any] = {"file_io_concurrency": {"limit": files}}
    if data_copy_concurrency_limit is not None:
        spec["data_copy_concurrency"] = {"limit": data_copy_concurrency_limit}
    if use_ocdbt:
        spec["cache_pool#ocdbt"] = {"total_bytes_limit": 100_000_000}
    return ts.Context(spec, shared_context())


def _open(spec: dict[str, Any], where: str, context: ts.Context | None) -> ts.KvStore:
    try:
        return ts.KvStore.open(spec, context=context).result(timeout=_DEADLINE_S)
    except (ValueError, NotImplementedError) as error:
        raise explain_failure(where, "opening", str(error)) from None


def _setting(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


def _below(prefix: str) -> ts.KvStore.KeyRange:
    key = prefix.encode()
    end = key[:-1] + bytes([key[-1] + 1]) if key else b""
    return _range(key, end)


def _range(start: bytes, end: bytes) -> ts.KvStore.KeyRange:
    return cast(Any, ts.KvStore.KeyRange)(start, end)

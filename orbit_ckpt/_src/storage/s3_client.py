"""The client of S3: botocore's requests, repeated at a pace that all of them share.

botocore retries each request by itself, waits a fixed time for answers and knows nothing of what
other threads were told; here a slow-down pauses all of them, and the wait for an answer follows the
times that the store took before.
"""

from __future__ import annotations

import base64
import functools
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from typing_extensions import override

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.storage import pace as pacing
from orbit_ckpt._src.storage.bucket import FoundObject, PartsClient
from orbit_ckpt._src.storage.pace import Pace

T = TypeVar("T")

MAX_RETRIES = 8
"""Repetitions of a request that failed, with about a minute of pauses between them."""

DEADLINE_S = 300.0
"""Time after which nobody waits for an answer."""

_CONNECTIONS = 16
MAX_PART_BYTES = 5 * 2**30
_BLOCK_BYTES = 1 << 20
_SLOW_DOWN = frozenset({"SlowDown", "503", "429", "TooManyRequests", "RequestLimitExceeded"})
_PASSING = frozenset({"RequestTimeout", "InternalError", "ServiceUnavailable"})
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_REFUSED = frozenset({"403", "Forbidden", "401", "AccessDenied", "ExpiredToken", "InvalidToken"})


class S3Client(PartsClient):
    """Requests to one bucket of S3."""

    def __init__(self, bucket: str, *, endpoint: str | None, region: str | None) -> None:
        """Make a client; sends no request.

        Args:
            bucket: Name of the bucket.
            endpoint: URL of the server; None for Amazon's.
            region: Its region; None for what AWS's settings say.
        """
        self._bucket = bucket
        self._endpoint = endpoint
        self._region = region
        self._pace = Pace()
        self._session = importlib.import_module("botocore.session").get_session()
        models = _loader(self._session.get_config_variable("data_path"))
        self._session.register_component("data_loader", models)
        self._config: Callable[..., Any] = importlib.import_module("botocore.config").Config
        self._errors: Any = importlib.import_module("botocore.exceptions")
        self._clients: dict[int, Any] = {}
        self._lock = threading.Lock()

    @override
    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        if stop is not None:
            buffer = bytearray(max(0, stop - start))
            count = self.read_into(key, start, memoryview(buffer))
            return None if count is None else bytes(buffer[:count])

        def get(client: Any) -> bytes:
            ranged = {"Range": f"bytes={start}-"} if start else {}
            with client.get_object(Bucket=self._bucket, Key=key, **ranged)["Body"] as body:
                return body.read()

        return self._if_any(lambda: self._ask(get), beyond=b"")

    @override
    def read_into(self, key: str, start: int, buffer: memoryview) -> int | None:
        if not buffer.nbytes:
            return None if self._head(key) is None else 0
        view, done, failures = buffer.cast("B"), 0, 0
        while True:
            place = f"bytes={start + done}-{start + view.nbytes - 1}"
            answer = self._if_any(lambda: self._get(key, place), beyond={})  # noqa: B023 - runs at once
            if not answer:
                return done if answer == {} else None
            end = min(view.nbytes, done + int(answer["ContentLength"]))
            try:
                with answer["Body"] as body:
                    while done < end and (
                        count := body.readinto(view[done : min(end, done + _BLOCK_BYTES)])
                    ):
                        done += count
            except Exception as error:  # noqa: BLE001 - sorted there
                failures += 1
                if self._sort(error) is None or failures > MAX_RETRIES:
                    raise _described(error, failures) from None
            if done == end:  # else the connection was lost
                return done

    def _get(self, key: str, place: str) -> dict[str, Any]:
        return self._ask(
            lambda client: client.get_object(Bucket=self._bucket, Key=key, Range=place)
        )

    @override
    def size(self, key: str) -> int | None:
        found = self._head(key)
        return None if found is None else int(found["ContentLength"])

    @override
    def version(self, key: str) -> bytes | None:
        found = self._head(key)
        return None if found is None else _version(found)

    @override
    def write(self, key: str, data: bytes) -> None:
        sums = {"ChecksumCRC32C": _checksum(data)}
        self._ask(
            lambda client: client.put_object(Bucket=self._bucket, Key=key, Body=data, **sums),
            len(data),
        )

    @override
    def delete(self, key: str) -> None:
        self._ask(lambda client: client.delete_object(Bucket=self._bucket, Key=key))

    @override
    def list(self, prefix: str) -> Iterator[str]:
        for page in self._pages(prefix):
            yield from (found["Key"] for found in page.get("Contents", ()))

    @override
    def list_page(self, prefix: str, delimiter: str, start: str) -> tuple[list[FoundObject], bool]:
        more = {"Delimiter": delimiter} if delimiter else {}
        if start:
            more["StartAfter"] = f"{prefix}{start}"
        page = next(self._pages(prefix, **more))
        return _objects(page, prefix), not page["IsTruncated"]

    @override
    def list_directory(self, prefix: str) -> tuple[list[str], list[str]]:
        objects: list[str] = []
        names: list[str] = []
        for page in self._pages(prefix, Delimiter="/"):
            objects += [found.key for found in _objects(page, prefix)]
            names += [p["Prefix"][len(prefix) : -1] for p in page.get("CommonPrefixes", ())]
        return objects, sorted(names)

    @override
    def begin_parts(self, key: str) -> str:
        more = {"ChecksumAlgorithm": "CRC32C"}
        answer: Any = self._ask(
            lambda client: client.create_multipart_upload(Bucket=self._bucket, Key=key, **more)
        )
        return answer["UploadId"]

    @override
    def write_part(self, key: str, upload: str, number: int, data: bytes) -> object:
        sums = {"ChecksumCRC32C": _checksum(data)}
        answer: Any = self._ask(
            lambda client: client.upload_part(
                Bucket=self._bucket, Key=key, UploadId=upload, PartNumber=number, Body=data, **sums
            ),
            len(data),
        )
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    @override
    def complete_parts(self, key: str, upload: str, parts: Sequence[object]) -> None:
        given = {"MultipartUpload": {"Parts": parts}, "UploadId": upload}
        try:
            self._ask(
                lambda client: client.complete_multipart_upload(
                    Bucket=self._bucket, Key=key, **given
                )
            )
        except _RequestError as error:
            # a repeated request finds no upload if only the first one's answer was lost
            if error.code != "NoSuchUpload" or self._head(key) is None:
                raise

    @override
    def abort_parts(self, key: str, upload: str) -> None:
        try:
            self._ask(
                lambda client: client.abort_multipart_upload(
                    Bucket=self._bucket, Key=key, UploadId=upload
                )
            )
        except _RequestError as error:
            if error.code != "NoSuchUpload":
                raise

    @override
    def uploads_below(self, prefix: str) -> list[tuple[str, str]]:
        answer: Any = self._ask(
            lambda client: client.list_multipart_uploads(Bucket=self._bucket, Prefix=prefix)
        )
        return [(found["Key"], found["UploadId"]) for found in answer.get("Uploads", ())]

    def _pages(self, prefix: str, **more: str) -> Iterator[Any]:
        while True:
            page: Any = self._ask(
                lambda client: client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **more)
            )
            yield page
            if not page["IsTruncated"]:
                return
            more["ContinuationToken"] = page["NextContinuationToken"]

    def _head(self, key: str) -> Any:
        return self._if_any(
            lambda: self._ask(lambda client: client.head_object(Bucket=self._bucket, Key=key)),
            beyond=None,
        )

    def _if_any(self, request: Callable[[], T], *, beyond: T) -> T | None:
        """Return an answer, None without an object, and another value of a range behind its end."""
        try:
            return request()
        except _RequestError as error:
            if error.code in _MISSING:
                return None
            if error.code in {"InvalidRange", "416"}:
                return beyond
            raise

    def _ask(self, request: Callable[[Any], T], sent_bytes: int = 0) -> T:
        """Send a request, and again if it fails in passing.

        Raises:
            _RequestError: The store refused it, or kept failing.
        """
        if sent_bytes > MAX_PART_BYTES:
            raise StorageError(
                f"{sent_bytes} bytes in one piece, a store takes at most {MAX_PART_BYTES}. Save "
                "with smaller chunks (SaveArgs.chunk_byte_size)."
            )
        failures, patience_s = 0, 0.0
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self._pace.wait()
            patience_s = max(patience_s, self._pace.patience_s(sent_bytes))
            began = time.monotonic()
            try:
                answer = request(self._client(patience_s))
            except Exception as error:  # noqa: BLE001 - sorted there
                failures += 1
                failure = self._sort(error)
                is_over = failures > MAX_RETRIES or time.monotonic() > deadline
                if failure is None or is_over:
                    raise _described(error, failures) from None
                if failure == "slow":
                    self._pace.slow_down()
                if failure == "silent":  # it may have been sent to a server that is gone
                    patience_s = min(pacing.MAX_PATIENCE_S, 2 * patience_s)
                else:
                    time.sleep(pacing.pause_after(failures - 1))
            else:
                self._pace.answered(time.monotonic() - began, sent_bytes)
                return answer

    def _sort(self, error: Exception) -> str | None:
        """Return how a request failed; None if it is not worth repeating."""
        errors = self._errors
        if isinstance(error, errors.ClientError):
            code, status = _code_and_status(error)
            if code in _SLOW_DOWN or status in {429, 503}:
                return "slow"
            return "passing" if code in _PASSING or status >= 500 else None
        if isinstance(error, (errors.ReadTimeoutError, errors.ConnectTimeoutError)):
            return "silent"
        if isinstance(error, (errors.HTTPClientError, errors.IncompleteReadError)):
            return "passing"
        return "passing" if isinstance(error, ConnectionError) else None

    def _client(self, patience_s: float) -> Any:
        """Return botocore's client that waits as long for an answer, rounded up."""
        seconds = 1 << max(0, int(patience_s * 0.999)).bit_length()
        with self._lock:
            if seconds not in self._clients:
                self._clients[seconds] = self._connect(patience_s if patience_s < 1 else seconds)
            return self._clients[seconds]

    def _connect(self, timeout_s: float) -> Any:
        style = {"addressing_style": "path"} if self._endpoint else {}
        config = self._config(
            connect_timeout=timeout_s,  # applies to sending too
            read_timeout=timeout_s,
            max_pool_connections=_CONNECTIONS,
            retries={"total_max_attempts": 1},
            request_checksum_calculation="when_required",  # ours is sent in any case
            response_checksum_validation="when_required",  # chunks have their own
            s3={"payload_signing_enabled": False, **style},
        )
        region = self._region or ("us-east-1" if self._endpoint else None)
        return self._session.create_client(
            "s3", endpoint_url=self._endpoint, region_name=region, config=config
        )


class _RequestError(StorageError):
    """A request that failed for good; the text has nothing of the server's answer but its code."""

    code: str = ""


@functools.cache
def _loader(data_path: str | None) -> Any:
    """Return what loads botocore's descriptions of services, and keeps them for the next bucket."""
    return importlib.import_module("botocore.loaders").create_loader(data_path)


def _described(error: Exception, attempts: int) -> _RequestError:
    code, status = _code_and_status(error)
    kind = type(error).__name__
    if isinstance(getattr(error, "response", None), dict):
        is_refused = code in _REFUSED or status in {401, 403}
        kind = "PERMISSION_DENIED" if is_refused else "UNAVAILABLE" if status >= 429 else "REFUSED"
        kind = f"{kind}: {code} ({status})"
    elif "Credential" not in kind:
        kind = f"UNAVAILABLE: {kind}"
    repeated = f": {attempts - 1} retry attempts failed" if attempts > 1 else ""
    described = _RequestError(f"{kind}{repeated}")
    described.code = code
    return described


def _code_and_status(error: Exception) -> tuple[str, int]:
    answer = cast("dict[str, Any]", getattr(error, "response", None) or {})
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return str(answer.get("Error", {}).get("Code", "")), int(status)


def _objects(page: Any, prefix: str) -> list[FoundObject]:
    found = page.get("Contents", ())
    return [FoundObject(each["Key"][len(prefix) :], _version(each)) for each in found]


def _version(found: Any) -> bytes:
    return str(found["ETag"]).encode()


def _checksum(data: bytes) -> str:
    return base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()

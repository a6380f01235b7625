"""A proxy in front of an object store's server, as slow and as unreliable as real stores are."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, cast
from urllib.parse import urlsplit

from typing_extensions import override

Failure = Literal["503", "reset", "silence", "403", "late", "lost"]
"""How a request fails: an answer 503 or 403, a closed connection, no answer at all; `late` passes
the request on after `Proxy.pass_late`, and `lost` at once, but neither passes on the answer."""

Choice = Callable[[str, str, int], Failure | None]
"""Returns how a request fails by its method, path and number from 1, None if it does not."""

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_NO_KEY = (
    b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message>"
    b"<AWSAccessKeyId>test-key-id</AWSAccessKeyId></Error>"
)
_HOP_BY_HOP = {"transfer-encoding", "connection", "content-length"}
_LATE_S = 60
_BLOCK_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Link:
    """How fast a store is.

    Attributes:
        latency_s: Time from the end of a request to the beginning of its answer, in seconds.
        bytes_per_s: Bandwidth of each connection, in both directions; None for no limit.
        requests_per_s: Requests above this rate are answered with 503; None for no limit.
    """

    latency_s: float = 0.0
    bytes_per_s: float | None = None
    requests_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that was answered.

    Attributes:
        method: Its method.
        path: Its path and query.
        headers: Its headers; names in lower case.
        sent_bytes: Size of its body.
        received_bytes: Size of the answer's body.
        round: One more than the greatest round of the requests that were answered before it came.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    sent_bytes: int
    received_bytes: int
    round: int


class Proxy:
    """The proxy; use it as a context manager.

    Attributes:
        endpoint: Its own address.
        fails: Decides how each request fails; by default none does.
        link: How fast it is; by default as fast as the server.
        requests: Method and path of every request.
        passed: Every request that was answered, see `rounds`.
        nbytes: The number of bytes in answers.
    """

    def __init__(self, upstream: str, *, link: Link | None = None) -> None:
        """Make a proxy.

        Args:
            upstream: Address of the server, such as `http://127.0.0.1:9000`.
            link: How fast it is.

        Raises:
            ValueError: The address is none of a server without encryption.
        """
        address = urlsplit(upstream)
        if address.scheme != "http" or not address.netloc:
            raise ValueError(
                f"{upstream!r} is no address of a server such as http://127.0.0.1:9000"
            )
        self.upstream = address.netloc
        self.fails: Choice = _never
        self.link = link or Link()
        self.passed: list[Passed] = []
        self._sent_at: deque[float] = deque()
        self._lock = threading.Lock()
        self.requests: list[tuple[str, str]] = []
        self.nbytes = 0
        self.end = threading.Event()
        self.late = threading.Event()
        self.late_passed = threading.Semaphore(0)
        self._server = _Server(self)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def take_away(self, first: int = 1, last: int | None = None, failure: Failure = "503") -> None:
        """Let requests fail.

        Args:
            first: The first that fails, counted from now.
            last: The last that fails, None for all from `first` on.
            failure: How they fail.
        """
        before = len(self.requests)

        def fails(_method: str, _path: str, number: int) -> Failure | None:
            is_away = first <= number - before and (last is None or number - before <= last)
            return failure if is_away else None

        self.fails = fails

    def give_back(self) -> None:
        """Let no request fail any more."""
        self.fails = _never

    def pass_late(self) -> None:
        """Pass on the requests that are late; return when the first has its answer.

        Raises:
            TimeoutError: There is none.
        """
        self.late.set()
        if not self.late_passed.acquire(timeout=_LATE_S):
            raise TimeoutError(f"No late request within {_LATE_S} s: {self.requests}")

    def clear(self) -> None:
        """Forget the requests so far."""
        with self._lock:
            self.requests.clear()
            self.passed.clear()
            self.nbytes = 0

    @property
    def rounds(self) -> int:
        """The length of the longest chain of requests that waited for one another's answers."""
        with self._lock:
            return max((passed.round for passed in self.passed), default=0)

    def is_too_fast(self) -> bool:
        """Note a request; return whether it exceeds the rate of the link."""
        rate = self.link.requests_per_s
        if rate is None:
            return False
        with self._lock:
            now = time.monotonic()
            while self._sent_at and now - self._sent_at[0] > 1.0:
                self._sent_at.popleft()
            if len(self._sent_at) >= rate:
                return True
            self._sent_at.append(now)
            return False

    def note(self, passed: Passed) -> None:
        """Note a request that is being answered."""
        with self._lock:
            self.passed.append(passed)
            self.nbytes += passed.received_bytes

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.set()
        self.late.set()
        self._server.shutdown()
        self._server.server_close()


def _never(_method: str, _path: str, _number: int) -> None:
    return None


class _Throttle:
    """Sleeps so that bytes pass no faster than a bandwidth."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._began = 0.0

    def __enter__(self) -> _Throttle:
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def wait(self, nbytes: int) -> None:
        """Sleep until a number of bytes may have passed."""
        ahead = nbytes / self._bytes_per_s - (time.monotonic() - self._began)
        if ahead > 0:
            time.sleep(ahead)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a client that finds it full waits a second

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _handle_any(self) -> None:
        proxy = cast(_Server, self.server).proxy
        number = 1 + proxy.rounds
        body = self._receive(int(self.headers.get("Content-Length") or 0), proxy.link)
        proxy.requests.append((self.command, self.path))
        failure = proxy.fails(self.command, self.path, len(proxy.requests))
        if failure is None and proxy.is_too_fast():
            failure = "503"
        if failure is None:
            time.sleep(proxy.link.latency_s)
            self._forward(proxy, body, number)
            return
        self.close_connection = True
        if failure == "silence":
            proxy.end.wait()
        elif failure == "late":
            proxy.late.wait()
            self._ask(proxy, body)
            proxy.late_passed.release()
            self._reset()
        elif failure == "lost":
            self._ask(proxy, body)
            self._reset()
        elif failure == "reset":
            self._reset()
        else:
            self._refuse(failure)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST = _handle_any  # noqa: N815 - so the server finds them

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    def _ask(self, proxy: Proxy, body: bytes) -> tuple[HTTPResponse, bytes]:
        upstream = HTTPConnection(proxy.upstream)
        upstream.request(self.command, self.path, body, dict(self.headers))
        answer = upstream.getresponse()
        data = answer.read()
        upstream.close()
        return answer, data

    def _receive(self, nbytes: int, link: Link) -> bytes:
        """Read a body at the speed of the link."""
        if link.bytes_per_s is None:
            return self.rfile.read(nbytes)
        body = bytearray()
        with _Throttle(link.bytes_per_s) as throttle:
            while len(body) < nbytes and (
                part := self.rfile.read(min(_BLOCK_BYTES, nbytes - len(body)))
            ):
                body += part
                throttle.wait(len(body))
        return bytes(body)

    def _send(self, data: bytes, link: Link) -> None:
        """Write a body at the speed of the link."""
        if link.bytes_per_s is None:
            self.wfile.write(data)
            return
        with _Throttle(link.bytes_per_s) as throttle:
            for start in range(0, len(data), _BLOCK_BYTES):
                part = memoryview(data)[start : start + _BLOCK_BYTES]
                self.wfile.write(part)
                throttle.wait(start + len(part))

    def _forward(self, proxy: Proxy, body: bytes, number: int) -> None:
        answer, data = self._ask(proxy, body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        proxy.note(Passed(self.command, self.path, headers, len(body), len(data), number))
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self._send(data, proxy.link)

    def _reset(self) -> None:
        linger = struct.pack("ii", 1, 0)  # closing then resets the connection
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def _refuse(self, status: Literal["503", "403"]) -> None:
        answer = _SLOW_DOWN if status == "503" else _NO_KEY
        self.send_response_only(int(status))
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

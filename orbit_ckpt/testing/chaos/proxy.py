"""A proxy in front of an object store's server, which fails requests as real stores do."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
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


class Proxy:
    """The proxy; use it as a context manager.

    Attributes:
        endpoint: Its own address.
        fails: Decides how each request fails; by default none does.
        requests: Method and path of every request.
        nbytes: The number of bytes in answers.
    """

    def __init__(self, upstream: str) -> None:
        """Make a proxy.

        Args:
            upstream: Address of the server, such as `http://127.0.0.1:9000`.

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
        self.requests: list[tuple[str, str]] = []
        self.nbytes = 0
        self.end = threading.Event()
        self.late = threading.Event()
        self.passed = threading.Semaphore(0)
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
        if not self.passed.acquire(timeout=_LATE_S):
            raise TimeoutError(f"No late request within {_LATE_S} s: {self.requests}")

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
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.requests.append((self.command, self.path))
        failure = proxy.fails(self.command, self.path, len(proxy.requests))
        if failure is None:
            self._forward(proxy, body)
            return
        self.close_connection = True
        if failure == "silence":
            proxy.end.wait()
        elif failure == "late":
            proxy.late.wait()
            self._ask(proxy, body)
            proxy.passed.release()
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

    def _forward(self, proxy: Proxy, body: bytes) -> None:
        answer, data = self._ask(proxy, body)
        proxy.nbytes += len(data)
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        self.wfile.write(data)

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

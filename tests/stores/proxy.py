"""A proxy in front of an S3 server that answers 503, hangs up, keeps silent or passes on late.

`late` passes a request on when it is told to, and `lost` at once, but loses the answer.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Failure = Literal["503", "reset", "silence", "403", "late", "lost"]
Choice = Callable[[str, str, int], Failure | None]

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_NO_KEY = (
    b"<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist.</Message>"
    b"<AWSAccessKeyId>test-key-id</AWSAccessKeyId></Error>"
)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # a client that finds it full waits a second


class Proxy:
    """The proxy.

    Attributes:
        fails: Called with method, path and number of every request; says how to fail it.
        requests: Method and path of every request.
        nbytes: How many bytes were sent in answers.
    """

    def __init__(self, port: int) -> None:
        self.fails: Choice = lambda *_: None
        self.requests: list[tuple[str, str]] = []
        self.nbytes = 0
        self._silence = threading.Event()
        self._late = threading.Event()
        self._passed = threading.Semaphore(0)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                proxy.requests.append((self.command, self.path))
                failure = proxy.fails(self.command, self.path, len(proxy.requests))
                if failure is None:
                    self._forward(body)
                elif failure == "late":
                    proxy._late.wait()
                    self._ask(body)
                    proxy._passed.release()
                    self._fail("reset")
                elif failure == "lost":
                    self._ask(body)
                    self._fail("reset")
                else:
                    self._fail(failure)

            do_GET = do_PUT = do_DELETE = do_HEAD = handle_any  # noqa: N815 - so the server finds them

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its signature
                """Say nothing."""

            def _ask(self, body: bytes) -> tuple[HTTPResponse, bytes]:
                upstream = HTTPConnection("127.0.0.1", port)
                upstream.request(self.command, self.path, body, dict(self.headers))
                answer = upstream.getresponse()
                data = answer.read()
                upstream.close()
                return answer, data

            def _forward(self, body: bytes) -> None:
                answer, data = self._ask(body)
                proxy.nbytes += len(data)
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                        self.send_header(name, value)
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _fail(self, failure: Failure) -> None:
                self.close_connection = True
                if failure == "silence":
                    proxy._silence.wait()
                elif failure == "reset":
                    linger = struct.pack("ii", 1, 0)  # closing then resets the connection
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                else:
                    answer = _SLOW_DOWN if failure == "503" else _NO_KEY
                    self.send_response_only(int(failure))
                    self.send_header("Content-Length", str(len(answer)))
                    self.send_header("Connection", "close")
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(answer)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def pass_late(self) -> None:
        """Pass on what is late; return when the first one has its answer."""
        self._late.set()
        assert self._passed.acquire(timeout=60)

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._silence.set()
        self._late.set()
        self._server.shutdown()
        self._server.server_close()

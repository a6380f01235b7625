"""A server of the page on this machine, which follows a run while it is trained."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from typing_extensions import override

from orbit_ckpt._src.cli.output import echo
from orbit_ckpt._src.cli.report.document import PageSource, ReportOptions
from orbit_ckpt._src.cli.report.measure import Progress, no_progress
from orbit_ckpt._src.cli.report.page import render
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.progress import progress_bar

_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class LivePage:
    """The page of a run, rendered anew when its steps change.

    Attributes:
        version: A text that changes with the page.
        page: The page.
    """

    def __init__(self, source: PageSource) -> None:
        self.version = ""
        self.page = b""
        self._source = source

    def refresh(self, progress: Progress = no_progress) -> bool:
        """Render the page if the run has changed; return whether it has.

        Raises:
            CheckpointError: There is no run any more.
        """
        state = hashlib.sha256(repr(self._source.fingerprint()).encode()).hexdigest()[:16]
        if state == self.version:
            return False
        self.page = render(self._source.collect(progress), version=state)
        self.version = state
        return True

    def follow(self, interval_s: float, stopped: threading.Event) -> None:
        """Refresh the page until the event is set; what fails is tried again."""
        while not stopped.wait(interval_s):
            try:
                self.refresh()
            except (CheckpointError, OSError) as error:
                echo(f"not updated: {error}", style="yellow")


class PageServer(ThreadingHTTPServer):
    """Serves a page at `/` and its version at `/version`."""

    daemon_threads = True

    def __init__(self, host: str, port: int, live: LivePage) -> None:
        """Bind to an address.

        Raises:
            ValueError: It is not an address of this machine, or its port is taken.
        """
        self.live = live
        self.host = host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ValueError(
                f"{host}, port {port}: cannot listen there ({error.strerror or error}). Give "
                "another --port, 0 for any that is free, or another --host."
            ) from error

    def __enter__(self) -> Self:
        return self

    @property
    def url(self) -> str:
        """The address to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.server_address[1]}/"

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can reach it."""
        return ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def accepts(self, host: str) -> bool:
        """Return whether a request may name this host.

        A page of another site that has its name point at this machine must not read ours.
        """
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        return not self.is_local or name.strip("[]") in {*_LOCAL_NAMES, self.host}


class _Handler(BaseHTTPRequestHandler):
    server_version = "orbit-ckpt"
    sys_version = ""

    def do_GET(self) -> None:
        server = self.server
        if not isinstance(server, PageServer):
            raise TypeError(f"expected a PageServer, found {type(server).__name__}")
        if not server.accepts(self.headers.get("Host", "")):
            self._answer(HTTPStatus.FORBIDDEN, b"Open the page as localhost.", "text/plain")
        elif self.path == "/":
            self._answer(HTTPStatus.OK, server.live.page, "text/html")
        elif self.path == "/version":
            self._answer(HTTPStatus.OK, server.live.version.encode(), "text/plain")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"Only / is served.", "text/plain")

    def _answer(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing; a page asks for its version every two seconds."""


def serve(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    host: str,
    port: int,
    interval_s: float,
    stats: bool,
    steps: int,
    verify: bool,
    memory: int,
) -> None:
    """Serve the page of a checkpoint or a run until Ctrl+C."""
    options = ReportOptions(stats, steps, verify, memory)
    live = LivePage(PageSource(path, options))
    with PageServer(host, port, live) as server:  # before the values are read, which takes long
        with progress_bar("Reading") as progress:
            live.refresh(progress)
        stopped = threading.Event()
        follower = threading.Thread(target=live.follow, args=(interval_s, stopped), daemon=True)
        follower.start()
        try:
            echo(f"{server.url} (Ctrl+C ends)")
            if not server.is_local:
                echo("Everyone who can reach this machine can read the page.", style="yellow")
            sys.stdout.flush()
            server.serve_forever()
        except KeyboardInterrupt:
            echo()
        finally:
            stopped.set()

"""An S3 server with latency, limited bandwidth and limited rate, in processes of its own.

`python -m benchmarks.store_server` prints the address of the server, then, for every line that it
reads, a JSON object of the requests since the last one. It is moto's server behind the proxy of
`orbit_ckpt.testing`, which also counts for the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import IO

from orbit_ckpt.testing.chaos.proxy import Link, Passed, Proxy


@contextlib.contextmanager
def running_s3() -> Generator[str]:
    """Run moto's server in a process of its own; yield its endpoint."""
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("s3_server.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield f"http://127.0.0.1:{int(_pipe(process.stdout).readline())}"
        finally:
            process.kill()


def make_bucket(endpoint: str) -> str:
    """Make a bucket on a server; return its name."""
    bucket = f"test-{uuid.uuid4().hex}"
    connection = HTTPConnection(endpoint.removeprefix("http://"))
    connection.request("PUT", f"/{bucket}")
    status = connection.getresponse().status
    connection.close()
    if status != HTTPStatus.OK:
        raise OSError(f"{endpoint} answered {status}, expected a new bucket")
    return bucket


def _pipe(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise ValueError("the process was started without this pipe")
    return pipe


@dataclass(frozen=True)
class Requests:
    """Requests to a server.

    Attributes:
        methods: Number of requests by method.
        sent_bytes: Bytes of their bodies.
        received_bytes: Bytes of the answers' bodies.
        rounds: Length of the longest chain of requests that waited for one another.
    """

    methods: dict[str, int]
    sent_bytes: int
    received_bytes: int
    rounds: int

    @property
    def count(self) -> int:
        """Number of all requests."""
        return sum(self.methods.values())


def summarize(passed: list[Passed]) -> Requests:
    """Summarize what a proxy has passed on."""
    return Requests(
        dict(Counter(one.method for one in passed)),
        sum(one.sent_bytes for one in passed),
        sum(one.received_bytes for one in passed),
        max((one.round for one in passed), default=0)
        - min((one.round for one in passed), default=1)
        + 1,
    )


class SlowServer:
    """A server with a link, in other processes than this.

    Attributes:
        endpoint: Its address.
        bucket: The name of an empty bucket.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._lines, self._commands = _pipe(process.stdout), _pipe(process.stdin)
        self.endpoint, self.bucket = self._lines.readline().split()

    def requests(self) -> Requests:
        """Return the requests since the last call."""
        self._commands.write("\n")
        self._commands.flush()
        return Requests(**json.loads(self._lines.readline()))


@contextlib.contextmanager
def slow_server(link: Link) -> Generator[SlowServer]:
    """Run a server in other processes.

    Args:
        link: How fast it is.
    """
    arguments = [
        *("--latency-ms", str(link.latency_s * 1000)),
        *("--megabytes-per-s", str((link.bytes_per_s or 0) / 1e6)),
        *("--requests-per-s", str(link.requests_per_s or 0)),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.store_server", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield SlowServer(process)
        finally:
            _pipe(process.stdin).close()  # ends it, and it moto's server
            process.wait(10)


def main() -> None:
    """Run a server until the end of the input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store_server")
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--megabytes-per-s", type=float, default=0, help="Of each connection.")
    parser.add_argument("--requests-per-s", type=float, default=0)
    args = parser.parse_args()
    link = Link(
        args.latency_ms / 1000, args.megabytes_per_s * 1e6 or None, args.requests_per_s or None
    )
    with running_s3() as upstream, Proxy(upstream, link=link) as proxy:
        print(proxy.endpoint, make_bucket(upstream), flush=True)
        for _ in sys.stdin:
            found = summarize(proxy.passed)
            proxy.clear()
            print(json.dumps(vars(found)), flush=True)


if __name__ == "__main__":
    main()

"""Object stores to test with: servers of S3 and Google's protocol on loopback, and memory."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Generator, Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from orbit_ckpt._src.storage import buckets
from tests.stores.proxy import Proxy

_START_S = 60


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 server that lives as long as the tests."""
    with _running("-m", "moto.server", "-H", "127.0.0.1", "-p") as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def google_server() -> Iterator[str]:
    """The endpoint of a server that speaks the protocol of Google's store."""
    pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed")
    with _running(str(Path(__file__).with_name("google_server.py"))) as endpoint:
        yield endpoint


@contextlib.contextmanager
def _running(*arguments: str) -> Generator[str]:
    """Run a server in Python, which is given the number of a free port; yield its endpoint."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, *arguments, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)  # the server is another program, which tells nobody
    raise RuntimeError("the server did not start")


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket, which the environment says how to reach."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-value")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    bucket = f"test-{uuid.uuid4().hex}"
    connection = HTTPConnection(s3_server.removeprefix("http://"))
    connection.request("PUT", f"/{bucket}")
    assert connection.getresponse().status == 200
    connection.close()
    return f"s3://{bucket}"


@pytest.fixture
def gs(google_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket of Google's protocol."""
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", google_server)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "test-secret-value")
    bucket = f"test-{uuid.uuid4().hex}"
    connection = HTTPConnection(google_server.removeprefix("http://"))
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/storage/v1/b?project=p", f'{{"name": "{bucket}"}}', headers)
    assert connection.getresponse().status == 200
    connection.close()
    return f"gs://{bucket}"


@pytest.fixture(params=["s3", "gs", "memory"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty bucket of each kind of store."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return request.getfixturevalue(request.param)


@pytest.fixture
def proxy(s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What stands between us and the S3 server, and fails if told to; retries are quick."""
    assert s3
    quick = {"max_retries": 4, "initial_delay": "10ms", "max_delay": "50ms"}
    monkeypatch.setattr(buckets, "_RETRIES", quick)
    with Proxy(int(s3_server.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy

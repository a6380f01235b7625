"""Object stores to test with: servers of S3 and Google's protocol on loopback, and memory."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from benchmarks.store_server import make_bucket, running_s3
from orbit_ckpt._src.storage import pace, s3_client
from orbit_ckpt.stores import register_store
from orbit_ckpt.testing.chaos.proxy import Proxy
from orbit_ckpt.testing.fakes import MemoryClient

HERE = Path(__file__).parent
PROTOCOLS = ("s3", "gs")
"""Stores that a server of their own stands for."""


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 server that lives as long as the tests."""
    with running_s3() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def google_server() -> Iterator[str]:
    """The endpoint of a server that speaks the protocol of Google's store."""
    pytest.importorskip("gcp_storage_emulator", reason="gcp-storage-emulator is not installed")
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("google_server.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a new bucket, which the environment says how to reach."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret-value")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return f"s3://{make_bucket(s3_server)}"


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


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty bucket of a store that the program has registered."""
    monkeypatch.setattr("orbit_ckpt._src.storage.bucket._registered", {})
    register_store("client", MemoryClient)
    return f"client://{uuid.uuid4().hex}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the protocols to one broad file, and to tests that are about them, in a usual run."""
    for item in items:
        call = getattr(item, "callspec", None)
        parameters = call.params if call else {}
        is_broad = item.path.parent != HERE or item.path.name == "test_checkpoints.py"
        if parameters.get("store") in PROTOCOLS and not is_broad:
            item.add_marker(pytest.mark.matrix)


@pytest.fixture(params=[*PROTOCOLS, "memory", "client"])
def store(request: pytest.FixtureRequest) -> str:
    """The URL of an empty bucket of each kind of store."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}"
    return request.getfixturevalue(request.param)


@pytest.fixture
def proxy(s3: str, s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What stands between us and the S3 server, and fails if told to; retries are quick."""
    assert s3
    monkeypatch.setattr(s3_client, "MAX_RETRIES", 4)
    monkeypatch.setattr(pace, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(pace, "MAX_PAUSE_S", 0.05)
    with Proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy

"""A store that cannot be reached is reported within seconds."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import buckets, client_bucket, reachable
from orbit_ckpt._src.storage.reachable import check_reachable
from orbit_ckpt.errors import StorageError


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "TENSORSTORE_GCS_HTTP_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(reachable, "_DEADLINE_S", 0.05)
    monkeypatch.setattr(reachable, "_PAUSE_S", 0.01)


def fail(monkeypatch: pytest.MonkeyPatch, error: OSError, times: int = 10**6) -> list[Any]:
    """Let connections fail some times; return the addresses that were asked for."""
    asked: list[Any] = []

    def connect(address: tuple[str, int], timeout: float) -> socket.socket:
        assert timeout > 0
        asked.append(address)
        if len(asked) <= times:
            raise error
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    return asked


UNKNOWN = socket.gaierror(-2, "Name or service not known")


@pytest.mark.parametrize(
    ("url", "server"),
    [("s3://no-such-store/x", "s3.amazonaws.com"), ("gs://no-such-store/x", "storage.googleapis")],
)
@pytest.mark.parametrize(
    "call",
    [ocp.load, ocp.metadata, ocp.verify, ocp.CheckpointManager, lambda p: ocp.save(p, {"a": 1})],
    ids=["load", "metadata", "verify", "manager", "save"],
)
def test_a_store_without_a_server_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    call: Callable[[str], object],
    url: str,
    server: str,
) -> None:
    fail(monkeypatch, UNKNOWN)
    with pytest.raises(StorageError, match=rf"{url[:5]}no-such-store.*connect to {server}.*check"):
        call(url)
    assert capfd.readouterr().err == ""


def test_a_server_that_is_there_a_moment_later_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fail(monkeypatch, ConnectionRefusedError(111, "Connection refused"), times=1)
    monkeypatch.setattr(reachable, "_DEADLINE_S", 60)
    check_reachable("s3://b", "http://127.0.0.1:9000")
    assert asked == [("127.0.0.1", 9000)] * 2


def test_a_proxy_connects_in_our_place(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fail(monkeypatch, UNKNOWN, times=0)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy:3128")
    check_reachable("s3://b", "https://s3.amazonaws.com")
    assert asked == [("proxy", 3128)]
    fail(monkeypatch, UNKNOWN)
    with pytest.raises(StorageError, match=r"proxy proxy:3128 .*HTTPS_PROXY") as caught:
        check_reachable("s3://b", "https://s3.amazonaws.com")
    assert "secret" not in str(caught.value)


def test_a_proxy_that_never_answers_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")  # else the driver looks for them
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setattr(reachable, "_SILENT_S", 0.05)
    for module in (buckets, client_bucket):  # with and without botocore
        monkeypatch.setattr(module, "_DEADLINE_S", 0.1)
    monkeypatch.setattr(reachable, "_DEADLINE_S", 10)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(StorageError, match=r"not answered within 0\.1 s.*HTTPS_PROXY"):
            ocp.metadata("s3://behind-a-silent-proxy/run")
    record, *_ = [record for record in caplog.records if "no answer" in record.getMessage()]
    assert re.search(
        r"^s3://behind-a-silent-proxy/.* no answer from https://s3\.amazonaws\.com through "
        r"the proxy http://127\.0\.0\.1:\d+ of HTTPS_PROXY for 0\.05 s",
        record.getMessage(),
    )

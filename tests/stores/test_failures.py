"""Stores that fail, throttle, hang up, keep silent or refuse."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import buckets, client_bucket, objects, reachable, s3_client
from orbit_ckpt._src.storage.client_bucket import ClientBucket
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, MANIFEST, OCDBT_MANIFEST
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    StorageError,
)
from orbit_ckpt.testing.chaos.proxy import Failure, Proxy
from tests.support import free_port

SECRETS = re.compile("test-key-id|test-secret-value")


def below(url: str) -> list[str]:
    path = resolve_path(url)
    assert isinstance(path, StorePath)
    return path.keys_below()


@pytest.mark.parametrize("failure", ["503", "reset"])
def test_every_request_may_fail_twice(s3: str, proxy: Proxy, failure: Failure) -> None:
    seen: dict[tuple[str, str], int] = {}

    def fails(method: str, path: str, _: int) -> Failure | None:
        seen[method, path] = seen.get((method, path), 0) + 1
        return failure if seen[method, path] <= 2 else None

    proxy.fails = fails
    tree = {"a": np.arange(10_000), "b": 1}
    ocp.save(f"{s3}/1", tree)
    seen.clear()
    np.testing.assert_array_equal(ocp.load(f"{s3}/1")["a"], tree["a"])


@pytest.mark.parametrize("failure", ["503", "reset"])
def test_a_store_that_keeps_failing_is_told(s3: str, proxy: Proxy, failure: Failure) -> None:
    ocp.save(f"{s3}/1", {"a": 1})
    proxy.fails = lambda *_: failure
    with pytest.raises(StorageError, match=r"retry attempts failed.*overloaded"):
        ocp.save(f"{s3}/2", {"a": 2})
    with pytest.raises(StorageError, match=r"retry attempts failed.*overloaded"):
        ocp.load(f"{s3}/1")
    proxy.fails = lambda *_: None
    assert below(f"{s3}/2") == []
    assert ocp.load(f"{s3}/1") == {"a": 1}


def test_a_save_that_fails_in_the_middle_removes_what_it_wrote(s3: str, proxy: Proxy) -> None:
    proxy.fails = lambda method, path, _: "503" if method == "PUT" and "manifest" in path else None
    with pytest.raises(StorageError, match=r"manifest\.ocdbt: writing failed"):
        ocp.save(f"{s3}/1", {"a": np.arange(10_000)})
    assert below(s3) == []


def test_a_store_that_keeps_silent_is_told_within_the_deadline(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(f"{s3}/1", {"a": 1})
    monkeypatch.setattr(client_bucket, "_DEADLINE_S", 0.5)
    proxy.fails = lambda *_: "silence"
    with pytest.raises(StorageError, match=r"has not answered within 0\.5 s"):
        ocp.load(f"{s3}/1")
    with pytest.raises(StorageError, match=r"has not answered within 0\.5 s"):
        ocp.save(f"{s3}/2", {"a": 1})


def test_cleaning_up_in_a_store_that_keeps_silent_has_a_deadline_of_its_own(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(objects, "_CLEANUP_S", 0.2)
    begin_write = ClientBucket.begin_write

    def silenced(bucket: ClientBucket, key: str, data: bytes) -> Any:
        if key.endswith(OCDBT_MANIFEST):
            proxy.fails = lambda *_: "silence"
            monkeypatch.setattr(client_bucket, "_DEADLINE_S", 0.5)
        return begin_write(bucket, key, data)

    monkeypatch.setattr(ClientBucket, "begin_write", silenced)
    with caplog.at_level(logging.WARNING), pytest.raises(StorageError, match=r"0\.5 s"):
        ocp.save(f"{s3}/1", {"a": 1})
    assert re.search(r"/1: what a failed save .* has not answered within 0\.2 s", caplog.text)


def fail_marker(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, failure: Failure) -> None:
    """Let the next commit marker fail, for which there is little time."""
    begin_write = ClientBucket.begin_write

    def hurried(bucket: ClientBucket, key: str, data: bytes) -> Any:
        is_marker = key.endswith(COMMIT_MARKER)
        monkeypatch.setattr(client_bucket, "_DEADLINE_S", 0.5 if is_marker else 300)
        return begin_write(bucket, key, data)

    def fails(method: str, path: str, _: int) -> Failure | None:
        return failure if method == "PUT" and COMMIT_MARKER in path else None

    monkeypatch.setattr(ClientBucket, "begin_write", hurried)
    proxy.fails = fails


def test_a_marker_that_arrives_late_stands_for_a_whole_checkpoint(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_marker(proxy, monkeypatch, "late")
    with pytest.raises(StorageError, match=r"/1: it is not known whether .* committed.*0\.5 s"):
        ocp.save(f"{s3}/1", {"a": np.arange(10_000)})
    with pytest.raises(IncompleteCheckpointError):
        ocp.load(f"{s3}/1")
    proxy.pass_late()
    np.testing.assert_array_equal(ocp.load(f"{s3}/1")["a"], np.arange(10_000))
    assert ocp.verify(f"{s3}/1")


@pytest.mark.parametrize("failure", ["silence", "503", "403"])
def test_what_is_left_without_a_marker_is_removed_by_the_next_save(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, failure: Failure
) -> None:
    fail_marker(proxy, monkeypatch, failure)
    with pytest.raises(StorageError, match=r"it is not known whether .* save there again") as error:
        ocp.save(f"{s3}/1", {"a": np.arange(10_000)})
    assert not SECRETS.search(everything_said(error.value))
    left = {key for key in below(f"{s3}/1") if key.startswith("d/")}
    assert left
    proxy.fails = lambda *_: None
    ocp.save(f"{s3}/1", {"b": 1})
    assert ocp.load(f"{s3}/1") == {"b": 1}
    assert left.isdisjoint(below(f"{s3}/1"))


def test_a_marker_whose_answer_is_lost_is_looked_for(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_marker(proxy, monkeypatch, "lost")
    ocp.save(f"{s3}/1", {"a": 1})
    assert ocp.load(f"{s3}/1") == {"a": 1}


@pytest.mark.parametrize(
    ("what", "has_manifest"), [(MANIFEST, True), ("/w/c/", True), ("/w/c/", False)]
)
def test_a_store_that_fails_a_check_is_no_damage(
    s3: str, proxy: Proxy, what: str, has_manifest: bool
) -> None:
    handler = ocp.PyTreeHandler(use_ocdbt=False)
    ocp.Checkpointer(handler).save(f"{s3}/1", {"w": np.arange(10_000)})
    if not has_manifest:
        (resolve_path(f"{s3}/1") / MANIFEST).unlink()
    assert ocp.verify(f"{s3}/1").is_intact == has_manifest
    proxy.fails = lambda _, path, __: "503" if what in path else None
    with pytest.raises(StorageError, match="overloaded"):
        ocp.verify(f"{s3}/1")


def test_an_unreachable_store_is_told(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proxy.endpoint
    monkeypatch.setattr(reachable, "_DEADLINE_S", 0.1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StorageError, match=r"connect.*check the endpoint"):
        ocp.load(f"{s3}/1")


def test_a_missing_bucket_is_told(s3: str) -> None:
    assert s3
    with pytest.raises(StorageError, match=r"s3://no-such-bucket.*no such bucket"):
        ocp.save("s3://no-such-bucket/1", {"a": 1})
    with pytest.raises(StorageError, match=r"s3://no-such-bucket.*no such bucket"):
        ocp.load("s3://no-such-bucket/1")


def test_a_missing_bucket_of_google_is_told(gs: str) -> None:
    assert gs
    with pytest.raises(StorageError, match=r"gs://no-such-bucket.*no such bucket"):
        resolve_path("gs://no-such-bucket/a").write_bytes(b"1")


def test_googles_store_that_cannot_be_reached_is_told(
    gs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gs
    monkeypatch.setattr(reachable, "_DEADLINE_S", 0.1)
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StorageError, match=r"gs://unreachable.*connect.*check the endpoint"):
        ocp.load("gs://unreachable/1")


def test_a_file_of_another_program_has_to_be_copied_first(s3: str) -> None:
    resolve_path(f"{s3}/model.index").write_bytes(b"whatever")
    with pytest.raises(CheckpointNotFoundError, match="from a local file system only"):
        ocp.load(f"{s3}/model.index")


def test_wrong_credentials_are_told_and_never_shown(
    s3: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.fails = lambda *_: "403"
    with caplog.at_level(logging.DEBUG):
        with pytest.raises(StorageError, match="check AWS_ACCESS_KEY_ID") as saving:
            ocp.save(f"{s3}/1", {"a": 1})
        with pytest.raises(StorageError, match="check AWS_ACCESS_KEY_ID") as loading:
            ocp.load(f"{s3}/1")
    for caught in (saving, loading):
        assert not SECRETS.search(everything_said(caught.value))
    assert not SECRETS.search(logged(caplog))


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Return what was logged; what botocore logs names the key, which is no secret."""
    assert "test-secret-value" not in caplog.text
    ours = [record for record in caplog.records if not record.name.startswith("botocore")]
    return "\n".join(record.getMessage() for record in ours)


def everything_said(error: BaseException | None) -> str:
    """Return the texts and notes of an error and those behind it that a traceback shows."""
    if error is None:
        return ""
    notes = getattr(error, "__notes__", [])
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return f"{error!r} {error} {notes} {everything_said(behind)}"


def test_no_credentials_are_told(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        ocp.save(f"{s3}/1", {"a": 1})


def test_a_save_that_fails_shows_no_credentials_in_any_log(
    s3: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        ocp.save(f"{s3}/1", {"a": 1})
        assert ocp.load(f"{s3}/1") == {"a": 1}
        with pytest.raises(CheckpointNotFoundError):
            ocp.load(f"{s3}/2")
    assert not SECRETS.search(logged(caplog))
    assert not SECRETS.search(repr(resolve_path(s3)))


def test_loading_asks_for_few_things(s3: str, proxy: Proxy) -> None:
    ocp.save(f"{s3}/1", {f"leaf{i}": np.full(2000, i) for i in range(300)})
    proxy.requests.clear()
    ocp.load(f"{s3}/1")
    assert len(proxy.requests) < 40, proxy.requests


def test_neighbours_are_read_together(s3: str, proxy: Proxy) -> None:
    tree = {f"leaf{i}": np.random.default_rng(i).bytes(100_000) for i in range(200)}
    ocp.save(f"{s3}/1", tree)
    proxy.requests.clear()
    assert ocp.load(f"{s3}/1") == tree
    assert len(proxy.requests) < 60, proxy.requests


def test_saving_asks_for_few_things(s3: str, proxy: Proxy) -> None:
    ocp.save(f"{s3}/1", {f"leaf{i}": np.full(2000, i) for i in range(300)})
    assert len(proxy.requests) < 40, proxy.requests


@pytest.mark.parametrize("method", ["PUT", "GET"])
def test_objects_of_a_save_are_written_and_measured_several_at_a_time(
    s3: str, proxy: Proxy, method: str
) -> None:
    all_there = threading.Barrier(4)

    def fails(found: str, path: str, _: int) -> None:
        if found == method and "/c/0" in path:
            all_there.wait(60)  # for ever if one came after the other

    proxy.fails = fails
    tree = {name: np.arange(10_000) for name in "abcd"}
    ocp.Checkpointer(ocp.PyTreeHandler(use_ocdbt=False)).save(f"{s3}/1", tree)


@pytest.mark.parametrize("what", ["/.zarray", "/zarr.json", "/c/0"])
def test_objects_of_a_load_are_asked_for_several_at_a_time(
    s3: str, proxy: Proxy, what: str
) -> None:
    tree = {name: np.full(10, ord(name)) for name in "abcdefgh"}
    handler = ocp.PyTreeHandler(use_ocdbt=False, use_zarr3="zarr.json" in what or "/c" in what)
    ocp.Checkpointer(handler).save(f"{s3}/1", tree)
    all_there = threading.Barrier(8)

    def fails(method: str, path: str, _: int) -> None:
        if method == "GET" and what in path and not all_there.broken:
            with contextlib.suppress(threading.BrokenBarrierError):
                all_there.wait(10)  # broken if one came after the other

    proxy.fails = fails
    loaded = ocp.load(f"{s3}/1")
    assert not all_there.broken
    assert {name: value.tolist() for name, value in loaded.items()} == {
        name: value.tolist() for name, value in tree.items()
    }


@pytest.mark.parametrize("what", ["/zarr.json", "/c/0"])
def test_once_an_object_cannot_be_had_no_others_are_asked_for(
    s3: str, proxy: Proxy, what: str
) -> None:
    tree = {f"leaf{i}": np.full(10, i) for i in range(60)}
    ocp.Checkpointer(ocp.PyTreeHandler(use_ocdbt=False)).save(f"{s3}/1", tree)
    proxy.requests.clear()
    proxy.fails = lambda _, path, __: "503" if what in path else None
    with pytest.raises(StorageError, match="overloaded"):
        ocp.load(f"{s3}/1")
    assert len({path for _, path in proxy.requests if what in path}) < 40


@pytest.mark.parametrize("store", ["s3", "gs", "memory"], indirect=True)
def test_an_object_that_is_too_large_is_told(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "MAX_OBJECT_BYTES", 50_000)
    monkeypatch.setattr(s3_client, "MAX_PART_BYTES", 50_000)
    with pytest.raises(CheckpointError, match="chunk_byte_size"):
        ocp.save(f"{store}/1", {"a": np.random.default_rng(0).random(100_000)})
    assert below(store) == []

"""Paths into stores."""

from __future__ import annotations

import copy
import os
import pickle
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orbit_ckpt._src.storage import buckets
from orbit_ckpt._src.storage.buckets import TensorStoreBucket
from orbit_ckpt._src.storage.fingerprint import checkpoint_fingerprint
from orbit_ckpt._src.storage.path import describe_directory, resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import StorageError


def at(url: str) -> StorePath:
    path = resolve_path(url)
    assert isinstance(path, StorePath)
    return path


def test_a_url_stays_what_it_is() -> None:
    path = at("s3://bucket//run/./step_1/")
    assert str(path) == os.fspath(path) == f"{path}" == "s3://bucket/run/step_1"
    assert (path.name, path.key, path.prefix) == ("step_1", "run/step_1", "run/step_1/")
    assert str(path / "d" / "x") == "s3://bucket/run/step_1/d/x"
    assert path.parent == at("s3://bucket/run")
    assert path.parent.parent.prefix == ""
    assert path.with_name("step_2") == at("s3://bucket/run/step_2")
    assert isinstance(path / "a", StorePath)
    assert resolve_path(path) == path


def by_pickle(path: StorePath) -> StorePath:
    return pickle.loads(pickle.dumps(path))  # noqa: S301 - our own


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, by_pickle])
def test_copies_are_equal(again: Callable[[StorePath], StorePath]) -> None:
    path = at("s3://bucket/run")
    assert again(path) == path
    assert isinstance(again(path), StorePath)
    assert hash(again(path)) == hash(path)


def test_paths_of_other_buckets_differ() -> None:
    assert at("s3://a/x") != at("s3://b/x")
    assert at("s3://a/x") != at("memory://a/x")
    assert at("s3://a/x") != Path("/a/x")


def test_objects_are_used_like_files(store: str) -> None:
    path = at(store) / "run"
    assert not path.exists()
    assert not path.is_dir()
    (path / "é +&%41" / "b").write_bytes(b"12345")
    assert (path / "a").write_text("é") == 2
    assert (path / "a").read_text() == "é"
    (path / "a").write_bytes(b"")
    assert path.is_dir()
    assert not path.is_file()
    assert (path / "a").is_file()
    assert (path / "a").read_bytes() == b""
    assert (path / "é +&%41" / "b").read_text() == "12345"
    assert [p.name for p in path.iterdir()] == ["a", "é +&%41"]
    assert path.keys_below() == ["a", "é +&%41/b"]
    assert b"".join((path / "é +&%41" / "b").blocks(2)) == b"12345"
    assert b"".join((path / "é +&%41" / "b").blocks(5)) == b"12345"
    (path / "a").unlink()
    (path / "a").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match="run/a"):
        (path / "a").read_bytes()


def test_ranges_end_where_the_object_ends(store: str) -> None:
    path = at(store) / "a"
    path.write_bytes(b"0123456789")
    read = path.bucket.read_range
    assert read("a", 3, 4) == b"3456"
    assert read("a", 8, 100) == b"89"
    assert read("a", 10, 5) == b""
    assert read("a", 50, 5) == b""
    with pytest.raises(FileNotFoundError):
        read("b", 0, 1)


def test_a_large_read_holds_few_of_its_ranges_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "_READ_BYTES", 10)
    path = at(f"memory://{uuid.uuid4().hex}") / "a"
    path.write_bytes(bytes(1000))
    begin_read = TensorStoreBucket._begin_read
    begun: list[weakref.ref[object]] = []
    held: list[int] = []

    def counted(*args: Any) -> Any:
        held.append(sum(future() is not None for future in begun))
        future = begin_read(*args)
        begun.append(weakref.ref(future))
        return future

    monkeypatch.setattr(TensorStoreBucket, "_begin_read", counted)
    assert path.bucket.read_range("a", 0, 1000) == bytes(1000)
    assert len(held) == 100
    assert max(held) < 10


def test_a_directory_is_not_what_only_begins_like_it(store: str) -> None:
    (at(store) / "run10").write_bytes(b"x")
    assert not (at(store) / "run1").exists()


def test_what_is_there_is_described(store: str) -> None:
    (at(store) / "run" / "a").write_bytes(b"x")
    assert describe_directory(at(store) / "run") == "it is a directory with a"
    assert describe_directory(at(store) / "run" / "a") == "it is an object"
    assert "next to it: a" in describe_directory(at(store) / "run" / "b")
    assert describe_directory(at(store) / "runs") == "nothing is there"


def test_a_written_marker_changes_the_identity(store: str) -> None:
    path = at(store) / "run"
    assert checkpoint_fingerprint(path) is None
    (path / "commit_success.txt").write_bytes(b"1")
    first = checkpoint_fingerprint(path)
    (path / "commit_success.txt").write_bytes(b"2")
    assert first is not None
    assert checkpoint_fingerprint(path) not in (None, first)


def test_what_a_store_cannot_do_raises(store: str) -> None:
    path = at(store) / "a"
    globs = (lambda: list(path.glob("*")), lambda: list(path.rglob("*")))
    for act in (path.stat, path.open, lambda: path.rename("b"), *globs):
        with pytest.raises(StorageError, match="an object store has no"):
            act()

"""The paths that users give."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.path import resolve_path

TREE = {"w": np.arange(3.0)}

CALLS: dict[str, Callable[[Any], object]] = {
    "save": lambda path: ocp.save(path, TREE),
    "save_async": lambda path: ocp.save_async(path, TREE),
    "load": ocp.load,
    "metadata": ocp.metadata,
    "verify": ocp.verify,
    "detect_format": ocp.detect_format,
    "convert from": lambda path: ocp.convert(path, "out"),
    "diff": lambda path: ocp.diff(path, path),
    "Checkpointer": lambda path: ocp.PyTreeCheckpointer().save(path, TREE),
    "CheckpointManager": ocp.CheckpointManager,
}


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/run/1"])
def test_a_url_that_pathlib_has_collapsed_is_refused(
    call: Callable[[Any], object], url: str, directory: Path
) -> None:
    with pytest.raises(ValueError, match=rf"{url[:3]}/bucket.*pass.*'{url}'.*'\./{url[:3]}/"):
        call(Path(url))
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("scheme", ["az", "hf", "http", "https", "abfs", "memory", "made-up"])
def test_what_remains_of_any_url_is_refused(scheme: str) -> None:
    with pytest.raises(ValueError, match=f"{scheme}:/a/b"):
        resolve_path(Path(f"{scheme}://a/b"))


@pytest.mark.parametrize("scheme", ["az", "hf", "http"])
def test_a_url_of_an_unknown_store_is_refused(scheme: str) -> None:
    with pytest.raises(ValueError, match=f"{scheme}://.*not supported.*s3://"):
        resolve_path(f"{scheme}://a/b")


@pytest.mark.parametrize("path", ["./s3:/x", "run/s3:/x", "a:/x", "s3:x", "s3:"])
def test_a_local_directory_may_have_a_colon_in_its_name(path: str, directory: Path) -> None:
    assert resolve_path(path) == directory / path


@pytest.mark.parametrize("url", ["file:///tmp/x", "file:/tmp/x", "file://localhost/tmp/x"])
def test_a_file_url_is_a_local_path(url: str) -> None:
    assert resolve_path(url) == Path("/tmp/x")  # noqa: S108 - not written to
    assert resolve_path(cast(Any, Path("file:///tmp/x"))) == Path("/tmp/x")  # noqa: S108 - only a name


def test_bytes_are_a_path_as_they_are_to_os(directory: Path) -> None:
    assert resolve_path(b"run/\xff") == directory / os.fsdecode(b"run/\xff")
    ocp.save(cast(Any, b"run"), TREE)
    assert (directory / "run").is_dir()


def test_a_home_directory_may_be_abbreviated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert resolve_path("~/run") == Path("/somewhere/run")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "path", [None, 3, TREE, ["a"], np.zeros(2)], ids=lambda p: type(p).__name__
)
def test_what_is_no_path_is_an_error_that_names_its_type(
    call: Callable[[Any], object], path: object
) -> None:
    with pytest.raises(TypeError, match=rf"path.*{type(path).__name__}.*str"):
        call(path)


def test_swapped_arguments_are_an_error_that_says_so(directory: Path) -> None:
    with pytest.raises(TypeError, match=r"dict.*Give a path; it comes first"):
        ocp.save(cast(Any, TREE), cast(Any, "run"))
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(("path", "problem"), [("", "empty"), ("a\0b", "NUL")])
def test_a_path_that_no_file_can_have_is_refused(
    call: Callable[[Any], object], path: str, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        call(path)

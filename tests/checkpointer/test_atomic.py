"""Where a checkpoint goes, when it exists, and what is said of paths that hold none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, IN_PROGRESS
from orbit_ckpt.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    UnsupportedLeafError,
)
from orbit_ckpt.testing.write_faults import before_every_write
from tests.support import assert_same_tree

TREE = {"a": np.arange(3.0), "b": [1, "text"]}
OTHER = {"a": np.arange(4.0)}

IN_PLACE = ocp.AtomicityOptions(mode=ocp.AtomicityMode.COMMIT_FILE)


def in_place() -> ocp.Checkpointer:
    return ocp.Checkpointer(ocp.PyTreeHandler(), atomicity_options=IN_PLACE)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    ocp.save(tmp_path / "checkpoint", TREE)
    return tmp_path / "checkpoint"


def test_an_existing_checkpoint_is_not_replaced_unasked(saved: Path) -> None:
    message = f"Destination {saved} already exists.*overwrite=True"
    with pytest.raises(CheckpointExistsError, match=message):
        ocp.save(saved, OTHER)
    with pytest.raises(FileExistsError, match="force=True"):
        ocp.PyTreeCheckpointer().save(saved, OTHER)
    assert_same_tree(ocp.load(saved), TREE)
    assert os.listdir(saved.parent) == ["checkpoint"]


@pytest.mark.parametrize("kind", ["file", "empty directory", "directory"])
def test_a_destination_that_is_no_checkpoint_is_not_replaced_unasked(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "taken"
    if kind == "file":
        path.write_text("mine")
    else:
        path.mkdir()
    if kind == "directory":
        (path / "mine.txt").write_text("mine")
    before = sorted(path.rglob("*"))
    with pytest.raises(CheckpointExistsError, match="already exists"):
        ocp.save(path, TREE)
    assert sorted(path.rglob("*")) == before


def test_overwriting_keeps_the_old_checkpoint_until_the_commit(saved: Path) -> None:
    seen: list[bool] = []

    def look(operation: str) -> None:
        if operation == "exchange":
            assert_same_tree(ocp.load(saved), TREE)
            seen.append(True)

    with before_every_write(look):
        ocp.save(saved, OTHER, overwrite=True)
    assert seen
    assert_same_tree(ocp.load(saved), OTHER)
    assert os.listdir(saved.parent) == ["checkpoint"]


def test_overwriting_works_without_an_atomic_exchange(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit_ckpt._src.storage.atomic._rename_exchange", lambda *_: False)
    ocp.save(saved, OTHER, overwrite=True)
    assert_same_tree(ocp.load(saved), OTHER)
    assert os.listdir(saved.parent) == ["checkpoint"]


def test_a_failed_overwrite_keeps_the_old_checkpoint(saved: Path) -> None:
    with pytest.raises(UnsupportedLeafError, match="object"):
        ocp.save(saved, {"a": np.ones(5000), "b": object()}, overwrite=True)
    assert_same_tree(ocp.load(saved), TREE)
    assert os.listdir(saved.parent) == ["checkpoint"]


def test_overwriting_what_is_not_there_saves(tmp_path: Path) -> None:
    ocp.save(tmp_path / "checkpoint", TREE, overwrite=True)
    assert_same_tree(ocp.load(tmp_path / "checkpoint"), TREE)


def test_overwriting_a_symlink_replaces_what_it_points_to(saved: Path) -> None:
    link = saved.parent / "links" / "latest"
    link.parent.mkdir()
    link.symlink_to(saved)
    ocp.save(link, OTHER, overwrite=True)
    assert link.is_symlink()
    assert_same_tree(ocp.load(saved), OTHER)
    assert os.listdir(link.parent) == ["latest"]
    assert sorted(os.listdir(saved.parent)) == ["checkpoint", "links"]


def test_what_a_dead_save_through_a_symlink_left_is_removed_by_the_next(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = saved.with_name("latest")
    link.symlink_to(saved)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # as if the process had died
        with pytest.raises(UnsupportedLeafError):
            ocp.save(link, {"a": object()}, overwrite=True)
    assert len(os.listdir(saved.parent)) == 3
    ocp.save(link, OTHER, overwrite=True)
    assert sorted(os.listdir(saved.parent)) == ["checkpoint", "latest"]


def test_overwriting_refuses_what_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "home" / "thesis").mkdir(parents=True)
    with pytest.raises(CheckpointExistsError, match=r"is no checkpoint: .*thesis.*not overwritten"):
        ocp.save(tmp_path / "home", TREE, overwrite=True)
    assert (tmp_path / "home" / "thesis").is_dir()
    (tmp_path / "empty").mkdir()
    ocp.save(tmp_path / "empty", TREE, overwrite=True)
    assert_same_tree(ocp.load(tmp_path / "empty"), TREE)


def test_marker_mode_writes_in_place_and_marks_the_commit_last(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    names: list[str] = []

    def look(_: str) -> None:
        if path.exists() and (path / IN_PROGRESS).exists():
            names.extend(os.listdir(tmp_path))
            with pytest.raises(IncompleteCheckpointError, match="did not finish"):
                ocp.load(path)

    with before_every_write(look):
        in_place().save(path, TREE)
    assert set(names) == {"checkpoint"}
    assert (path / COMMIT_MARKER).exists()
    assert not (path / IN_PROGRESS).exists()
    assert_same_tree(ocp.load(path), TREE)


def test_marker_mode_refuses_and_replaces_existing_checkpoints(saved: Path) -> None:
    with pytest.raises(CheckpointExistsError, match="already exists"):
        in_place().save(saved, OTHER)
    assert_same_tree(ocp.load(saved), TREE)
    in_place().save(saved, OTHER, force=True)
    assert_same_tree(ocp.load(saved), OTHER)


def test_marker_mode_leaves_nothing_of_a_failed_save(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedLeafError, match="object"):
        in_place().save(tmp_path / "checkpoint", {"a": object()})
    assert not any(tmp_path.iterdir())


def abandon_in_place_save(path: Path) -> None:
    """Make what a process leaves that dies while saving in marker mode."""
    in_place().save(path, OTHER)
    (path / COMMIT_MARKER).unlink()
    (path / IN_PROGRESS).touch()


@pytest.mark.parametrize("read", [ocp.load, ocp.metadata, ocp.PyTreeCheckpointer().restore])
def test_a_save_in_place_that_died_is_refused(read: object, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    abandon_in_place_save(path)
    with pytest.raises(IncompleteCheckpointError, match=f"incomplete checkpoint at {path}"):
        read(path)  # pyright: ignore[reportCallIssue] - one of three functions


def test_a_save_in_place_that_died_does_not_block_the_next(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    abandon_in_place_save(path)
    in_place().save(path, TREE)
    assert_same_tree(ocp.load(path), TREE)


@pytest.mark.parametrize(
    "suffix", ["", "-0", "-17000000", "-1795255953535615556"], ids=lambda s: s or "none"
)
def test_temporary_directories_of_any_orbax_are_refused(suffix: str, saved: Path) -> None:
    temporary = saved.rename(f"{saved}.orbax-checkpoint-tmp{suffix}")
    with pytest.raises(IncompleteCheckpointError, match="the save that wrote it did not finish"):
        ocp.load(temporary)
    with pytest.raises(IncompleteCheckpointError, match=temporary.name):
        ocp.metadata(temporary)
    with pytest.raises(IncompleteCheckpointError, match=temporary.name):
        ocp.PyTreeCheckpointer().restore(temporary)


def test_a_temporary_directory_of_a_dead_save_is_removed_by_the_next(tmp_path: Path) -> None:
    for suffix in ("", "-0", "-1795255953535615556"):
        (tmp_path / f"checkpoint.orbax-checkpoint-tmp{suffix}" / "d").mkdir(parents=True)
    (tmp_path / "checkpoint2.orbax-checkpoint-tmp").mkdir()
    ocp.save(tmp_path / "checkpoint", TREE)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "checkpoint2.orbax-checkpoint-tmp"]


def test_paths_may_be_relative_or_begin_at_home_or_be_path_like(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Anything:
        def __fspath__(self) -> str:
            return str(saved)

    monkeypatch.chdir(saved.parent)
    monkeypatch.setenv("HOME", str(saved.parent))
    paths: list[str | os.PathLike[str]] = [
        "checkpoint",
        "./x/../checkpoint",
        "checkpoint/",
        "~/checkpoint",
        f"file://{saved}",
        Path("checkpoint"),
        Path("~/checkpoint"),
        Anything(),
    ]
    for path in paths:
        assert_same_tree(ocp.load(path), TREE)
        assert_same_tree(ocp.metadata(path), ocp.metadata(saved))
        ocp.save(path, TREE, overwrite=True)
        assert os.listdir(saved.parent) == ["checkpoint"], path


def test_missing_parents_of_a_destination_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ocp.save("a/b/checkpoint", TREE)
    assert_same_tree(ocp.load(tmp_path / "a" / "b" / "checkpoint"), TREE)


def test_a_symlink_to_a_checkpoint_loads(saved: Path) -> None:
    link = saved.with_name("latest")
    link.symlink_to("checkpoint")
    assert_same_tree(ocp.load(link), TREE)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "path of a checkpoint is empty"),
        ("az://bucket/checkpoint", "az://bucket/checkpoint: .*az:// are not supported"),
        ("ftp://host/checkpoint", "give a local directory, or a URL with s3:// or gs://"),
        ("s3://", "s3://: no bucket"),
        ("s3://bucket/run/../checkpoint", "'..' has no meaning"),
    ],
)
def test_paths_that_cannot_be_used_are_bad_arguments(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ocp.load(path)
    with pytest.raises(ValueError, match=message):
        ocp.save(path, TREE)


def test_a_path_that_is_no_checkpoint_is_described(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "data").mkdir(parents=True)
    (tmp_path / "other" / "notes.txt").write_text("hello")
    found = {
        "nothing": r"nothing is there \(next to it: empty, file, other\)",
        "file": "it is a text file",
        "empty": r"it is an empty directory\.",
        "other": "it is a directory with data, notes.txt",
    }
    for name, message in found.items():
        path = tmp_path / name
        for read in (ocp.load, ocp.metadata, ocp.PyTreeCheckpointer().restore):
            with pytest.raises(CheckpointNotFoundError, match=f"{path}: {message}"):
                read(path)


def test_the_root_of_a_manager_is_loaded_as_its_newest_step(tmp_path: Path) -> None:
    for step in (9, 10, 1):
        item = tmp_path / str(step) / "default"
        item.mkdir(parents=True)
        handler = ocp.PyTreeHandler()
        handler.save(item, {**TREE, "newest": step == 10})
        handler.finalize(item)
    assert_same_tree(ocp.load(tmp_path), {**TREE, "newest": True})
    assert_same_tree(ocp.load(tmp_path / "9"), {**TREE, "newest": False})


def test_a_directory_of_several_checkpoints_is_not_guessed_from(tmp_path: Path) -> None:
    ocp.save(tmp_path / "first", TREE)
    ocp.save(tmp_path / "second", OTHER)
    with pytest.raises(CheckpointNotFoundError, match="first, second"):
        ocp.load(tmp_path)


def test_not_found_and_incomplete_are_what_scripts_catch(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ocp.load(tmp_path / "nothing")
    (tmp_path / "x.orbax-checkpoint-tmp").mkdir()
    with pytest.raises(ValueError, match="incomplete"):
        ocp.load(tmp_path / "x.orbax-checkpoint-tmp")

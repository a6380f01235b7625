"""What every directory promises, on a disk and in a store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.directories import StoreDirectory, directory_of
from orbit_ckpt._src.storage.directory import Directory
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, IN_PROGRESS, STEP_METADATA
from orbit_ckpt._src.storage.local_directory import LocalDirectory
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import open_extents, read_blocks
from orbit_ckpt.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    StorageError,
    UnsafePathError,
)


@pytest.fixture(params=["disk", "memory", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory without anything in it."""
    if request.param == "disk":
        return tmp_path
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else None
    return resolve_path(f"{url or request.getfixturevalue(request.param)}/root")


def write(root: Path, *names: str, data: bytes = b"12345") -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def save(path: Path, *names: str, overwrite: bool = False) -> None:
    begun = directory_of(path).begin_save(overwrite=overwrite, mode=AtomicityMode.AUTO)
    with begun as directory:
        write(directory.path, *names)
        directory.commit()


def files_in(path: Path) -> set[str]:
    return {str(at).removeprefix(f"{path}/") for at in _below(path)}


def _below(path: Path) -> Iterator[Path]:
    for at in path.iterdir() if path.is_dir() else ():
        yield from _below(at) if at.is_dir() else [at]


def test_the_kind_follows_from_the_path(tmp_path: Path) -> None:
    assert isinstance(directory_of(tmp_path), LocalDirectory)
    assert isinstance(directory_of(resolve_path("memory://a/b")), StoreDirectory)


def test_entries_are_files_and_directories(root: Path) -> None:
    write(root, "a/x", "a/y/z", "b")
    entries = directory_of(root).entries()
    assert sorted((entry.name, entry.is_dir()) for entry in entries) == [("a", True), ("b", False)]
    assert {str(entry.path) for entry in entries} == {str(root / "a"), str(root / "b")}


def test_subdirectories_are_in_order(root: Path) -> None:
    write(root, "b/x", "a/x", "c")
    directory = directory_of(root)
    assert directory.subdirectories() == ["a", "b"]
    write(root, "a/wanted")
    assert directory.subdirectories_with("wanted", ["b", "a"]) == ["a"]


def test_files_in_children_are_found_name_by_name(root: Path) -> None:
    write(root, "a/two", "b/one", "b/two", "c/d/one", "one")
    found = list(directory_of(root).find_in_children(["one", "two"]))
    assert found[0] == ("b", "one")
    assert sorted(found[1:]) == [("a", "two"), ("b", "two")]


def test_files_below_are_found_at_any_depth(root: Path) -> None:
    write(root, "a/one", "c/d/one", "c/d/two", "one")
    found = directory_of(root).find_below(["one"])
    assert sorted(found) == [("a", "one"), ("c/d", "one")]


def test_all_files_below_are_listed_in_order(root: Path) -> None:
    write(root, "b", "a/d/x", "a/c")
    assert directory_of(root).files_below() == ["a/c", "a/d/x", "b"]


def test_sizes_are_right_where_they_are_known(root: Path) -> None:
    write(root, "a", "b/c")
    directory = directory_of(root)
    assert directory.nbytes() == (10 if directory.knows_sizes else None)
    assert (directory.modified_ns() is not None) == directory.knows_sizes


def test_fingerprints_change_with_a_file(root: Path) -> None:
    write(root, "a", "b/c")
    before = directory_of(root).fingerprints()
    write(root, "a", data=b"other bytes")
    after = directory_of(root).fingerprints()
    if before is not None and after is not None:
        assert {file for file in after if after[file] != before[file]} == {root / "a"}


def test_a_copy_has_the_same_bytes(root: Path) -> None:
    write(root, "from/a", COMMIT_MARKER)
    parts: list[int] = []
    assert directory_of(root).copy_file(root / "from/a", "to/a", parts.append) == crc32c(b"12345")
    assert parts == [5]
    directory_of(root).sync_files()
    assert b"".join(read_blocks(root / "to/a")) == b"12345"
    files = directory_of(root).files_to_copy(allow_linked_files=False)
    assert sorted(files) == ["from/a", "to/a"]


def test_extents_of_a_file_are_read(root: Path) -> None:
    write(root, "a")
    with open_extents(root / "a") as (read, nbytes):
        assert (read(1, 2), read(3, 100), nbytes) == (b"23", b"45", 5)
    with pytest.raises(FileNotFoundError), open_extents(root / "b"):
        pass


def test_a_document_is_whole(root: Path) -> None:
    write(root, "other")
    directory_of(root).create_document("folder", "name", b"data")
    assert files_in(root) == {"other", "folder/name"}
    assert (root / "folder/name").read_bytes() == b"data"


def test_a_save_is_complete_once_it_is_committed(root: Path) -> None:
    path, directory = root / "step", directory_of(root / "step")
    with directory.begin_save(overwrite=False, mode=AtomicityMode.AUTO) as begun:
        write(begun.path, STEP_METADATA)
        with pytest.raises((IncompleteCheckpointError, CheckpointNotFoundError)):
            directory.check_complete()
        assert directory_of(begun.path).is_unfinished()
        assert not directory_of(begun.path).is_committed()
        begun.commit()
    directory.check_complete(needs_marker=True)
    assert directory.is_committed()
    assert not directory.is_unfinished()
    assert files_in(path) == {STEP_METADATA, COMMIT_MARKER}


def test_a_save_without_a_commit_leaves_nothing(root: Path) -> None:
    with directory_of(root / "step").begin_save(overwrite=False, mode=AtomicityMode.AUTO) as begun:
        write(begun.path, "a")
    assert not (root / "step").exists()


def test_a_checkpoint_is_replaced_only_on_demand(root: Path) -> None:
    save(root / "step", STEP_METADATA, "old")
    with pytest.raises(CheckpointExistsError):
        save(root / "step", STEP_METADATA, "new")
    save(root / "step", STEP_METADATA, "new", overwrite=True)
    assert files_in(root / "step") == {STEP_METADATA, "new", COMMIT_MARKER}


def test_a_directory_without_checkpoint_is_not_complete(root: Path) -> None:
    with pytest.raises(CheckpointNotFoundError):
        directory_of(root / "step").check_complete()
    write(root, f"step/{STEP_METADATA}", f"step/{IN_PROGRESS}")
    with pytest.raises(IncompleteCheckpointError):
        directory_of(root / "step").check_complete()


def test_unfinished_saves_of_a_run_are_listed(root: Path) -> None:
    save(root / "1", STEP_METADATA)
    write(root, f"2/{IN_PROGRESS}", "3/other")
    found = directory_of(root).unfinished_below({"1"}, lambda _: False)
    assert found == ["2"]


def hidden(root: Path) -> Directory:
    save(root / "1", STEP_METADATA)
    place = directory_of(root / "1").hide(root, None)
    assert place is not None
    return directory_of(place)


def test_a_hidden_checkpoint_is_no_longer_listed_and_then_deleted(root: Path) -> None:
    directory = hidden(root)
    directory.sync_hidden(root / "1")
    assert not directory.is_committed()
    assert not (root / "1" / COMMIT_MARKER).exists()
    assert directory_of(root / "1").hide(root, None) is None
    directory.delete_hidden()
    assert not directory.path.exists()


def test_a_sweep_deletes_what_a_dead_deletion_left(root: Path) -> None:
    hidden(root)
    save(root / "2", STEP_METADATA)
    write(root, "notes/a")
    directory_of(root).sweep(str.isdecimal, everything=False)
    assert files_in(root) == {f"2/{STEP_METADATA}", f"2/{COMMIT_MARKER}", "notes/a"}


def test_a_rename_is_refused_where_there_is_none(root: Path) -> None:
    directory = directory_of(root / "step")
    if directory.has_rename:
        directory.begin_save(overwrite=False, mode=AtomicityMode.ATOMIC_RENAME)
        return
    with pytest.raises(ValueError, match="no rename"):
        directory.begin_save(overwrite=False, mode=AtomicityMode.ATOMIC_RENAME)


def test_only_remote_storage_can_be_out(root: Path) -> None:
    directory = directory_of(root)
    assert directory.is_outage(StorageError("x")) != directory.has_local_files
    assert not directory.is_outage(ValueError("x"))


def test_a_link_that_leads_outside_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "outside/a", "inside/b")
    (tmp_path / "inside/link").symlink_to("../outside")
    directory = directory_of(tmp_path / "inside")
    assert not directory.follows("link")
    assert len(directory.refused_files(allow_linked_files=True)) == 1
    with pytest.raises(UnsafePathError):
        directory.check_links(["b", "link/a"], allow_linked_files=True)


def test_a_store_has_no_links() -> None:
    root = resolve_path(f"memory://{uuid.uuid4().hex}/root")
    write(root, "a/b")
    directory = directory_of(root)
    assert directory.follows("a")
    assert directory.refused_files(allow_linked_files=False) == []
    directory.check_links(["a/b"], allow_linked_files=False)

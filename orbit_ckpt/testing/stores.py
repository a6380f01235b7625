"""The contract of stores: the places that hold checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

import orbit_ckpt as ocp
from orbit_ckpt._src.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    IncompleteCheckpointError,
    StorageError,
)
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.directory import Directory
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, IN_PROGRESS, STEP_METADATA
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import open_extents, read_blocks
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.testing.promises import expect, promised

_DATA = b"12345"


class StoreContract:
    """Tests of a store.

    Subclass it with a class whose name begins with `Test`, and define the fixture `url`. Register a
    store that is not built in first, see `orbit_ckpt.stores.register_store`.

    Example:
        ```python
        class TestMemory(StoreContract):
            @pytest.fixture
            def url(self):
                return f"memory://{uuid.uuid4().hex}/root"
        ```
    """

    @pytest.fixture
    def url(self) -> str:
        """The path or URL of a new directory in the store, with nothing in it."""
        raise NotImplementedError

    @pytest.fixture
    def root(self, url: str) -> Path:
        """The same as a path."""
        return resolve_path(url)

    def directory(self, path: Path) -> Directory:
        """Return the store's directory of a path."""
        return directory_of(path)

    # contents

    @promised
    def test_entries(self, root: Path) -> None:
        """A directory lists its files and directories, and tells them apart."""
        self._write(root, "a/x", "a/y/z", "b")
        found = sorted((e.name, e.is_dir(), str(e.path)) for e in self.directory(root).entries())
        expected = [("a", True, str(root / "a")), ("b", False, str(root / "b"))]
        expect(found == expected, found=found, expected=expected)

    @promised
    def test_subdirectories(self, root: Path) -> None:
        """A directory lists its directories in order, and those that contain a file."""
        self._write(root, "b/x", "a/x", "c", "a/wanted")
        found = self.directory(root).subdirectories()
        expect(found == ["a", "b"], found=found, expected=["a", "b"])
        found = self.directory(root).subdirectories_with("wanted", ["b", "a"])
        expect(found == ["a"], found=found, expected=["a"])

    @promised
    def test_find_in_children(self, root: Path) -> None:
        """Files right below the directories of a directory are found, name by name."""
        self._write(root, "a/two", "b/one", "b/two", "c/d/one", "one")
        found = list(self.directory(root).find_in_children(["one", "two"]))
        expected = [("b", "one"), ("a", "two"), ("b", "two")]
        is_right = found[:1] == expected[:1] and sorted(found[1:]) == expected[1:]
        expect(is_right, found=found, expected=expected)

    @promised
    def test_find_below(self, root: Path) -> None:
        """Files below the directories of a directory are found at any depth."""
        self._write(root, "a/one", "c/d/one", "c/d/two", "one")
        found = sorted(self.directory(root).find_below(["one"]))
        expected = [("a", "one"), ("c/d", "one")]
        expect(found == expected, found=found, expected=expected)

    @promised
    def test_files_below(self, root: Path) -> None:
        """All files below a directory are listed in order."""
        self._write(root, "b", "a/d/x", "a/c")
        found = self.directory(root).files_below()
        expect(found == ["a/c", "a/d/x", "b"], found=found, expected=["a/c", "a/d/x", "b"])

    @promised
    def test_sizes(self, root: Path) -> None:
        """Sizes and times are right where the store knows them, and None where it does not."""
        self._write(root, "a", "b/c")
        directory = self.directory(root)
        expected = 2 * len(_DATA) if directory.knows_sizes else None
        expect(directory.nbytes() == expected, found=directory.nbytes(), expected=expected)
        has_time = directory.modified_ns() is not None
        expect(has_time == directory.knows_sizes, found=has_time, expected=directory.knows_sizes)

    @promised
    def test_fingerprints(self, root: Path) -> None:
        """The fingerprint of a file changes with the file, and no other one does."""
        self._write(root, "a", "b/c")
        before = self.directory(root).fingerprints()
        self._write(root, "a", data=b"other bytes")
        after = self.directory(root).fingerprints()
        if before is not None and after is not None:
            changed = {file for file in after if after[file] != before[file]}
            expect(changed == {root / "a"}, found=changed, expected=root / "a")

    @promised
    def test_reads_of_parts(self, root: Path) -> None:
        """Any part of a file can be read, and a missing file is FileNotFoundError."""
        self._write(root, "a")
        with open_extents(root / "a") as (read, nbytes):
            found = (read(1, 2), read(3, 100), nbytes)
        expect(found == (b"23", b"45", 5), found=found, expected=(b"23", b"45", 5))
        missing = False
        try:
            with open_extents(root / "b"):
                pass
        except FileNotFoundError:
            missing = True
        expect(missing, found="a file that does not exist", expected="FileNotFoundError")

    @promised
    def test_copies(self, root: Path) -> None:
        """A copy of a file has the same bytes, and the checksum that the store reports."""
        self._write(root, "from/a", COMMIT_MARKER)
        directory, parts = self.directory(root), list[int]()
        found = directory.copy_file(root / "from/a", "to/a", parts.append)
        expect(found == crc32c(_DATA), found=found, expected=crc32c(_DATA))
        expect(sum(parts) == len(_DATA), found=parts, expected=len(_DATA))
        directory.sync_files()
        copied = b"".join(read_blocks(root / "to/a"))
        expect(copied == _DATA, found=copied, expected=_DATA)
        files = sorted(directory.files_to_copy(allow_linked_files=False))
        expect(files == ["from/a", "to/a"], found=files, expected="all files but the marker")

    @promised
    def test_documents(self, root: Path) -> None:
        """A document is created whole, with nothing beside it."""
        self._write(root, "other")
        self.directory(root).create_document("folder", "name", b"data")
        files = _files_in(root)
        expect(files == {"other", "folder/name"}, found=files, expected="folder/name, other")
        found = (root / "folder/name").read_bytes()
        expect(found == b"data", found=found, expected=b"data")

    # saves

    @promised
    def test_save_appears_with_its_commit(self, root: Path) -> None:
        """A save is incomplete until its commit, and complete from then on."""
        path, directory = root / "step", self.directory(root / "step")
        with directory.begin_save(overwrite=False, mode=AtomicityMode.AUTO) as begun:
            self._write(begun.path, STEP_METADATA)
            found = self._problem(path)
            expect(found is not None, found="a complete checkpoint", expected="an incomplete one")
            unfinished = self.directory(begun.path)
            is_open = unfinished.is_unfinished() and not unfinished.is_committed()
            expect(is_open, found="a save that seems finished", expected="an unfinished one")
            begun.commit()
        directory.check_complete(needs_marker=True)
        is_done = directory.is_committed() and not directory.is_unfinished()
        expect(is_done, found="an unfinished save", expected="a finished one")
        files = _files_in(path)
        expected = {STEP_METADATA, COMMIT_MARKER}
        expect(files == expected, found=files, expected=expected)

    @promised
    def test_save_without_commit_leaves_nothing(self, root: Path) -> None:
        """A save that ends without a commit leaves nothing behind."""
        begun = self.directory(root / "step").begin_save(overwrite=False, mode=AtomicityMode.AUTO)
        with begun as directory:
            self._write(directory.path, "a")
        expect(not (root / "step").exists(), found=_files_in(root), expected="nothing")

    @promised
    def test_replaces_on_demand_only(self, root: Path) -> None:
        """A checkpoint is replaced on demand, and only then."""
        self._save(root / "step", STEP_METADATA, "old")
        refused = False
        try:
            self._save(root / "step", STEP_METADATA, "new")
        except CheckpointExistsError:
            refused = True
        expect(refused, found="a replaced checkpoint", expected="CheckpointExistsError")
        self._save(root / "step", STEP_METADATA, "new", overwrite=True)
        files, expected = _files_in(root / "step"), {STEP_METADATA, "new", COMMIT_MARKER}
        expect(files == expected, found=files, expected=expected)

    @promised
    def test_incomplete_is_told_from_missing(self, root: Path) -> None:
        """A missing checkpoint and an incomplete one are different errors."""
        found = self._problem(root / "step")
        expect(found is CheckpointNotFoundError, found=found, expected="CheckpointNotFoundError")
        self._write(root, f"step/{STEP_METADATA}", f"step/{IN_PROGRESS}")
        found = self._problem(root / "step")
        expect(
            found is IncompleteCheckpointError, found=found, expected="IncompleteCheckpointError"
        )

    @promised
    def test_unfinished_saves_are_listed(self, root: Path) -> None:
        """The unfinished saves of a run are listed, and nothing else."""
        self._save(root / "1", STEP_METADATA)
        self._write(root, f"2/{IN_PROGRESS}", "3/other")
        found = self.directory(root).unfinished_below({"1"}, lambda _: False)
        expect(found == ["2"], found=found, expected=["2"])

    @promised
    def test_rename_is_refused_without_one(self, root: Path) -> None:
        """A save by renaming is refused where there is no rename."""
        directory, refused = self.directory(root / "step"), False
        try:
            directory.begin_save(overwrite=False, mode=AtomicityMode.ATOMIC_RENAME)
        except ValueError:
            refused = True
        expect(refused != directory.has_rename, found=refused, expected=not directory.has_rename)

    @promised
    def test_outages(self, root: Path) -> None:
        """Only errors of remote storage are outages; errors of data are not."""
        directory = self.directory(root)
        found = directory.is_outage(StorageError("x")), directory.is_outage(ValueError("x"))
        expected = (not directory.has_local_files, False)
        expect(found == expected, found=found, expected=expected)

    # deletions

    @promised
    def test_hidden_checkpoint_is_gone(self, root: Path) -> None:
        """A hidden checkpoint is no longer complete, and is then deleted."""
        hidden = self._hide(root)
        hidden.sync_hidden(root / "1")
        is_gone = not hidden.is_committed() and not (root / "1" / COMMIT_MARKER).exists()
        expect(is_gone, found="a committed checkpoint", expected="one that is hidden")
        again = self.directory(root / "1").hide(root, None)
        expect(again is None, found=again, expected="None for one that is gone")
        hidden.delete_hidden()
        expect(not hidden.path.exists(), found=_files_in(root), expected="nothing")

    @promised
    def test_sweep(self, root: Path) -> None:
        """A sweep deletes what a dead deletion left, and nothing else."""
        self._hide(root)
        self._save(root / "2", STEP_METADATA)
        self._write(root, "notes/a")
        self.directory(root).sweep(str.isdecimal, everything=False)
        expected = {f"2/{STEP_METADATA}", f"2/{COMMIT_MARKER}", "notes/a"}
        expect(_files_in(root) == expected, found=_files_in(root), expected=expected)

    # checkpoints

    @promised
    def test_checkpoints(self, root: Path) -> None:
        """A checkpoint in the store is loaded as it was saved, whole, lazily and in part."""
        tree = {"w": np.arange(20_000.0), "b": np.arange(3), "step": 1}
        ocp.save(root / "a", tree)
        expect_same(ocp.load(root / "a"), tree)
        expect_same(ocp.load(root / "a", only="b"), {"b": tree["b"]}, "a load of one leaf")
        lazy = ocp.load(root / "a", lazy=True)
        expect_same(lazy["w"][10:20], np.arange(10.0, 20.0), "a part of a lazy array")
        report = ocp.verify(root / "a")
        expect(report.is_intact, found=report, expected="no damage")

    @promised
    def test_runs(self, root: Path) -> None:
        """A manager saves, lists, restores and deletes steps in the store."""
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        for steps in ((1, 2), (3, 4)):
            with ocp.CheckpointManager(root / "run", options=options) as manager:
                for step in steps:
                    manager.save(step, {"step": step})
        with ocp.CheckpointManager(root / "run", options=options) as manager:
            expect(manager.all_steps() == [3, 4], found=manager.all_steps(), expected=[3, 4])
            expect_same(manager.restore(), {"step": 4})

    def _write(self, root: Path, *names: str, data: bytes = _DATA) -> None:
        for name in names:
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def _save(self, path: Path, *names: str, overwrite: bool = False) -> None:
        begun = self.directory(path).begin_save(overwrite=overwrite, mode=AtomicityMode.AUTO)
        with begun as directory:
            self._write(directory.path, *names)
            directory.commit()

    def _hide(self, root: Path) -> Directory:
        self._save(root / "1", STEP_METADATA)
        place = self.directory(root / "1").hide(root, None)
        assert place is not None  # noqa: S101 - it was there a moment ago
        return self.directory(place)

    def _problem(self, path: Path) -> type[Exception] | None:
        """Return the error that there is no complete checkpoint at a path, None if there is."""
        try:
            self.directory(path).check_complete()
        except (CheckpointNotFoundError, IncompleteCheckpointError) as error:
            return type(error)
        return None


def _files_in(path: Path) -> set[str]:
    return {str(at).removeprefix(f"{path}/") for at in _below(path)}


def _below(path: Path) -> Iterator[Path]:
    for at in path.iterdir() if path.is_dir() else ():
        yield from _below(at) if at.is_dir() else [at]

"""Promises of everything that is saved, be it a leaf, an item or a file of another format."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.runtime.process import ProcessGroup
from orbit_ckpt.testing.background import held_commits
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.testing.damage import bit_flips
from orbit_ckpt.testing.promises import NotMetError, expect, promised
from orbit_ckpt.testing.spoiling import spoil
from orbit_ckpt.testing.watching import files_below, stored_data
from orbit_ckpt.testing.write_faults import Refusal, before_every_write

if TYPE_CHECKING:
    import pytest


class SavedContract:
    """Tests that the contracts of handlers and of writable formats share.

    They save what `contents` returns through `save`, and load it again.
    """

    has_checksums = True
    """Whether no damage may go unnoticed."""

    def contents(self) -> Sequence[object]:
        """Return at least two different things to save, newly made and the same every time."""
        raise NotImplementedError

    def path_in(self, directory: Path, name: str) -> Path:
        """Return the path to save to in a directory; it may add to the name, which is short."""
        return directory / name

    def save(self, path: Path, content: object, *, overwrite: bool = False) -> None:
        """Save one of the contents; it is durable when this returns."""
        raise NotImplementedError

    def save_in_background(self, path: Path, content: object) -> Callable[[], object]:
        """Start to save one of the contents; return a function that waits until it is durable."""
        raise NotImplementedError

    def save_in_group(self, group: ProcessGroup, path: Path, content: object) -> None:
        """Save one of the contents as one of several processes."""
        raise NotImplementedError

    def load(self, path: Path) -> object:
        """Load what was saved, without a target."""
        raise NotImplementedError

    def save_as_files(self, path: Path, content: object) -> None:
        """Save so that no file holds random names; by default as `save` does."""
        self.save(path, content)

    def change(self, content: object) -> None:
        """Overwrite in place whatever is mutable in one of the contents."""
        spoil(content)

    def expect_same(self, found: object, expected: object, where: str = "what was loaded") -> None:
        """Check for a promise that what was loaded is what was saved, in every respect."""
        expect_same(found, expected, where)

    def is_same(self, found: object, expected: object) -> bool:
        """Return whether `expect_same` accepts what was found."""
        try:
            self.expect_same(found, expected)
        except NotMetError:
            return False
        return True

    def expect_kept(self, found: object, where: str) -> None:
        """Check for a promise that a failed save over the first content has kept it."""
        self.expect_same(found, self.contents()[0], where)

    @promised
    def test_samples_are_usable(self) -> None:
        """The contents to test with are at least two, different, and made anew by every call."""
        first, second = self.contents()[:2]
        expect(not self.is_same(first, second), found=f"{first} twice", expected="two contents")
        self.change(first)
        self.expect_same(self.contents()[1], second, "a content made later")
        self.expect_same(self.contents()[0], self.contents()[0], "a content after a change of it")

    @promised
    def test_loads_what_was_saved(self, tmp_path: Path) -> None:
        """What is loaded is what was saved: types, dtypes, shapes, shardings, bits."""
        for i, content in enumerate(self.contents()):
            self.save(self.path_in(tmp_path, str(i)), content)
            self.expect_same(self.load(self.path_in(tmp_path, str(i))), self.contents()[i])

    @promised
    def test_save_leaves_its_argument_alone(self, tmp_path: Path) -> None:
        """A save does not change what it is given."""
        for i, content in enumerate(self.contents()):
            self.save(self.path_in(tmp_path, str(i)), content)
            self.expect_same(content, self.contents()[i], "what was given to a save")

    @promised
    def test_background_save_keeps_the_values_of_its_start(self, tmp_path: Path) -> None:
        """A background save stores the values of its start, whatever happens to them afterwards."""
        for i, content in enumerate(self.contents()):
            with held_commits():
                wait = self.save_in_background(self.path_in(tmp_path, str(i)), content)
                self.change(content)
            wait()
        for i, content in enumerate(self.contents()):
            self.expect_same(self.load(self.path_in(tmp_path, str(i))), content)

    @promised
    def test_every_load_returns_new_values(self, tmp_path: Path) -> None:
        """What a load returned may be changed, and later loads return what was saved."""
        content = self.contents()[0]
        self.save(self.path_in(tmp_path, "a"), content)
        self.change(self.load(self.path_in(tmp_path, "a")))
        self.expect_same(
            self.load(self.path_in(tmp_path, "a")), self.contents()[0], "a second load"
        )

    @promised
    def test_two_saves_store_the_same(self, tmp_path: Path) -> None:
        """Two saves of the same values store the same data."""
        for name in ("a", "b"):
            self.save_as_files(self.path_in(tmp_path, name), self.contents()[0])
        a, b = (stored_data(self.path_in(tmp_path, name)) for name in ("a", "b"))
        differing = ", ".join(sorted({name for name, _ in (a - b) + (b - a)}))
        expect(a == b, found=f"other bytes in {differing}", expected="the same bytes")

    @promised
    def test_checkpoints_are_independent(self, tmp_path: Path) -> None:
        """A checkpoint depends on its files alone, not on other saves or on its path."""
        for i, content in enumerate(self.contents()):
            self.save(self.path_in(tmp_path, str(i)), content)
        (tmp_path / "moved").mkdir()
        for i, content in enumerate(self.contents()):
            moved = self.path_in(tmp_path, str(i)).rename(self.path_in(tmp_path / "moved", str(i)))
            self.expect_same(self.load(moved), content)

    @promised
    def test_save_writes_into_its_directory_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A save writes into its own directory only."""
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        path = self.path_in(tmp_path / "run", "1")
        self.save(path, self.contents()[0])
        monkeypatch.undo()
        found = {str(path) for path in tmp_path.glob("*/*")}
        expect(found == {str(path)}, found=", ".join(sorted(found)), expected=path)

    @promised
    def test_load_writes_nothing(self, tmp_path: Path) -> None:
        """A load changes no file."""
        self.save(self.path_in(tmp_path, "a"), self.contents()[0])
        before = files_below(tmp_path)
        self.load(self.path_in(tmp_path, "a"))
        after = files_below(tmp_path)
        changed = sorted(n for n in before | after if before.get(n) != after.get(n))
        expect(not changed, found=f"changes of {', '.join(changed)}", expected="none")

    @promised
    def test_failed_write_keeps_the_previous_checkpoint(self, tmp_path: Path) -> None:
        """A save whose write fails raises an error and keeps the checkpoint before it."""
        path = self.path_in(tmp_path, "a")
        self.save(path, self.contents()[0])
        for nth in itertools.count(1):
            refusal = Refusal(nth, errno.EIO)
            raised = self._overwrite(path, refusal)
            if not refusal.happened:
                return
            what = f"{refusal.seen[nth - 1]} (operation {nth})"
            expect(raised, found=f"success although {what} failed", expected="an error")
            self.expect_kept(self.load(path), f"the checkpoint after a failed {what}")
            left = sorted(os.listdir(tmp_path))
            expect(left == [path.name], found=f"{left} after a failed {what}", expected=path.name)

    def _overwrite(self, path: Path, refusal: Refusal) -> bool:
        """Save over a checkpoint; return whether an error was raised."""
        content = self.contents()[1]
        try:
            with before_every_write(refusal, data=True):
                self.save(path, content, overwrite=True)
        except Exception:  # noqa: BLE001 - whatever the plug-in raises
            return True
        return False

    @promised
    def test_interrupted_save_leaves_nothing(self, tmp_path: Path) -> None:
        """An interrupt ends a save, which leaves nothing behind."""

        def interrupt(operation: str) -> None:
            if operation == "fsync":
                raise KeyboardInterrupt

        content = self.contents()[0]
        interrupted = False
        try:
            with before_every_write(interrupt):
                self.save(self.path_in(tmp_path, "a"), content)
        except KeyboardInterrupt:
            interrupted = True
        expect(interrupted, found="a save that went on", expected="KeyboardInterrupt")
        left = sorted(os.listdir(tmp_path))
        expect(not left, found=f"{left} left behind", expected="nothing")

    @promised
    def test_flipped_bit_is_noticed(self, tmp_path: Path) -> None:
        """Damaged data raises a CheckpointError and is never returned."""
        path = self.path_in(tmp_path / "run", "1")
        self.save(path, self.contents()[0])
        for flip in bit_flips(path.parent):
            with flip.applied(path.parent):
                try:
                    found = self.load(path)
                except CheckpointError:
                    continue
                if self.has_checksums:
                    self.expect_same(found, self.contents()[0], f"what was loaded after {flip}")

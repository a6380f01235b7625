"""Stores with one bug each, and the tests that must find it; see `test_seeded_bugs.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from orbit_ckpt._src.storage.local_directory import LocalDirectory
from orbit_ckpt.testing import StoreContract


class BrokenStore(StoreContract):
    """Tests of a broken store."""

    broken: type[LocalDirectory]

    @override
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path

    @override
    def directory(self, path: Path) -> Any:
        return self.broken(path)


class Unordered(LocalDirectory):
    @override
    def files_below(self) -> list[str]:
        return super().files_below()[::-1]


class TestUnordered(BrokenStore):
    """All files below a directory are listed in order."""

    broken = Unordered


class Optimistic(LocalDirectory):
    @override
    def check_complete(self, *, needs_marker: bool = False) -> None:
        pass


class TestCompleteTooEarly(BrokenStore):
    """A save is incomplete until its commit, and complete from then on."""

    broken = Optimistic


class Sweeping(LocalDirectory):
    @override
    def sweep(self, is_step: Any, *, everything: bool) -> None:
        for file in self.path.glob("notes/*"):
            file.unlink()
        super().sweep(is_step, everything=everything)


class TestSweepsTooMuch(BrokenStore):
    """A sweep deletes what a dead deletion left, and nothing else."""

    broken = Sweeping

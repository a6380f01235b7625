"""Stores with one bug each, and the tests that must find it; see `test_seeded_bugs.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from orbit_ckpt._src.storage.local_directory import LocalDirectory
from orbit_ckpt.testing import ObjectClientContract, StoreContract
from orbit_ckpt.testing.fakes import MemoryClient


class BrokenStore(StoreContract):
    """Tests of a broken store."""

    broken: type[LocalDirectory]

    @override
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path)

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


class BrokenClient(ObjectClientContract):
    """Tests of a broken client."""

    broken: type[MemoryClient]

    @override
    @pytest.fixture
    def client(self) -> MemoryClient:
        return self.broken()


class Boundless(MemoryClient):
    @override
    def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes | None:
        return super().read(key, start)


class TestBoundless(BrokenClient):
    """A read of a range returns exactly its bytes, fewer where the object ends."""

    broken = Boundless


class OnePage(MemoryClient):
    @override
    def list(self, prefix: str) -> Iterable[str]:
        return sorted(super().list(prefix))[:1000]


class TestOnePage(BrokenClient):
    """A listing is complete however many objects there are."""

    broken = OnePage


class Directories(MemoryClient):
    @override
    def list(self, prefix: str) -> Iterable[str]:
        return [key for key in super().list("") if f"{key}/".startswith(f"{prefix.rstrip('/')}/")]


class TestDirectories(BrokenClient):
    """A listing has the full keys of all objects that begin with the prefix, and no others."""

    broken = Directories


class Timeless(MemoryClient):
    @override
    def version(self, key: str) -> bytes | None:
        return None if super().version(key) is None else b"1"


class TestTimeless(BrokenClient):
    """The version of an object changes with every write of other bytes, None without one."""

    broken = Timeless


class Strict(MemoryClient):
    @override
    def delete(self, key: str) -> None:
        if self.size(key) is None:
            raise KeyError(key)
        super().delete(key)


class TestStrict(BrokenClient):
    """A deleted object is gone at once, and deleting a missing one does nothing."""

    broken = Strict

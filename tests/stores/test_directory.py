"""Disks and stores keep the contract of stores; links exist on disks only."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from typing_extensions import override

from orbit_ckpt._src.storage.directories import StoreDirectory, directory_of
from orbit_ckpt._src.storage.local_directory import LocalDirectory
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt.errors import UnsafePathError
from orbit_ckpt.testing import StoreContract


class TestDisk(StoreContract):
    @override
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestMemory(StoreContract):
    @override
    @pytest.fixture
    def url(self) -> str:
        return f"memory://{uuid.uuid4().hex}/root"


class TestS3(StoreContract):
    @override
    @pytest.fixture
    def url(self, s3: str) -> str:
        return f"{s3}/root"


class TestClient(StoreContract):
    @override
    @pytest.fixture
    def url(self, client: str) -> str:
        return f"{client}/root"


class TestGoogle(StoreContract):
    @override
    @pytest.fixture
    def url(self, gs: str) -> str:
        return f"{gs}/root"


def write(root: Path, *names: str) -> None:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"12345")


def test_the_kind_follows_from_the_path(tmp_path: Path) -> None:
    assert isinstance(directory_of(tmp_path), LocalDirectory)
    assert isinstance(directory_of(resolve_path("memory://a/b")), StoreDirectory)


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

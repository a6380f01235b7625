"""Files that are intact and cannot be read: that is said, and nothing is called damaged."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays.slices import whole
from orbit_ckpt._src.storage import ocdbt
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.kvstore import FileStore
from orbit_ckpt._src.storage.layout import OCDBT_DATA, OCDBT_MANIFEST, STRINGS
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.store_path import read_extent
from orbit_ckpt.errors import CorruptionError, StorageError

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that users without rights may list."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # noqa: S103 - so that they may
        yield Path(directory)


@contextlib.contextmanager
def forbidden(file: Path) -> Generator[None]:
    """Let nobody read a file, not us either."""
    user = os.geteuid()
    file.chmod(0)
    try:
        if user == 0:
            os.seteuid(NOBODY)
        yield
    finally:
        os.seteuid(user)
        file.chmod(0o644)


@contextlib.contextmanager
def no_more_files() -> Generator[None]:
    """Let no file be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def save_many(path: Path) -> Path:
    """Save so many leaves that the index is a file of its own, and return that."""
    ocp.save(path, {f"leaf{i}": i for i in range(5000)})
    return index_of(path)


def index_of(path: Path) -> Path:
    """Return the file of a checkpoint that has its index and nothing else."""
    (file,) = path.rglob(f"{OCDBT_DATA}/*")
    return file


def largest(path: Path) -> Path:
    """Return the largest file of a checkpoint."""
    return max((f for f in path.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)


def test_a_database_that_may_not_be_read_is_not_damaged(place: Path) -> None:
    run = place / "run"
    with ocp.CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.PyTreeSave({"a": np.full(5000, step)}))
        manager.wait_until_finished()
        (manifest,) = (run / "2").rglob(OCDBT_MANIFEST)
        with forbidden(manifest):
            for read in (
                lambda: ocp.load(run / "2"),
                lambda: ocp.verify(run / "2"),
                lambda: manager.restore(fallback=True),  # no older one in its place
            ):
                with pytest.raises(StorageError, match=f"Permission denied: '{manifest}'"):
                    read()
        assert manager.restore(fallback=True)["a"][0] == 2


def test_an_index_that_may_not_be_read_is_not_damaged(place: Path) -> None:
    node = save_many(place / "1")
    with forbidden(node), pytest.raises(PermissionError, match=str(node)):
        read_index(place / "1")
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        read_index(place / "1")
    assert len(ocp.load(place / "1")) == 5000


def test_an_index_that_is_missing_or_cut_is_damage(place: Path) -> None:
    node = save_many(place / "1")
    node.write_bytes(node.read_bytes()[:100])
    with pytest.raises(CorruptionError):
        read_index(place / "1")
    node.unlink()
    with pytest.raises(CorruptionError, match="No such file"):
        read_index(place / "1")
    node.mkdir()
    with pytest.raises(CorruptionError, match="Is a directory"):
        read_index(place / "1")


def test_a_disk_that_fails_is_told_and_an_older_step_is_restored(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ocp.CheckpointManager(place / "run") as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.PyTreeSave({f"leaf{i}": step for i in range(5000)}))
        manager.wait_until_finished()
        node = index_of(place / "run" / "2")

        def read(file: str, offset: int, nbytes: int) -> bytes:
            if file == str(node):
                raise OSError(errno.EIO, os.strerror(errno.EIO), file)
            return read_extent(file, offset, nbytes)

        monkeypatch.setattr(ocdbt, "read_extent", read)
        with pytest.raises(StorageError, match="Input/output error") as error:
            ocp.load(place / "run" / "2")
        assert error.value.errno == errno.EIO
        report = ocp.verify(place / "run")
        assert [d.checkpoint.name for d in report.damage] == ["2"]
        assert "Input/output error" in str(report.damage[0])
        assert manager.restore(fallback=True)["leaf0"] == 1


@pytest.mark.parametrize("use_ocdbt", [True, False])
def test_a_chunk_that_may_not_be_read_is_not_damaged(place: Path, use_ocdbt: bool) -> None:
    handler = ocp.PyTreeHandler(use_ocdbt=use_ocdbt)
    ocp.Checkpointer(handler).save(place / "1", {"a": np.arange(50_000)})
    with forbidden(largest(place / "1")):
        for read in (ocp.load, ocp.verify):
            with pytest.raises(StorageError, match="Permission denied"):
                read(place / "1")
    assert ocp.verify(place / "1")


def test_a_file_that_may_not_be_compared_with_the_manifest_is_not_damaged(place: Path) -> None:
    ocp.save(place / "1", {"a": "text"})
    with forbidden(place / "1" / STRINGS), pytest.raises(StorageError, match="Permission denied"):
        ocp.verify(place / "1")


def test_a_chunk_that_tensorstore_may_not_read_is_not_damaged(place: Path) -> None:
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(place / "a")},
        "metadata": {"compressor": {"id": "zlib", "level": 1}, "shape": [9], "dtype": "<i4"},
    }
    array = ts.open(spec, create=True).result()
    array.write(np.arange(9, dtype=np.int32)).result()
    (place / "a").chmod(0o755)
    reader = BatchReader(FileStore(CheckedDirectory(place)), zarr_format=2)
    (layout,) = reader.layouts([(("a",), "a")])
    read = ArrayRead(("a",), "a", layout, [whole(layout.shape)])
    with forbidden(place / "a" / "0"), pytest.raises(StorageError, match="Permission denied"):
        asyncio.run(reader.read([read]))
    (place / "a" / "0").write_bytes(b"damaged")
    with pytest.raises(CorruptionError, match="decoded"):
        asyncio.run(reader.read([read]))

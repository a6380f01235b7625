from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from orbit_ckpt.errors import StorageError
from orbit_ckpt.storage.ocdbt_merge import merge_databases
from orbit_ckpt.storage.value_write import DatabaseWriter
from orbit_ckpt.storage.zarr import describe_array

PARTS = ["ocdbt.process_0", "ocdbt.process_1"]
SMALL, LARGE = b"small", bytes(5000)
LAYOUT, _ = describe_array((4,), (2,), np.dtype(np.float32), zarr_format=3, compress=False)


def write_parts(directory: Path, *parts: Mapping[str, bytes]) -> None:
    for name, values in zip(PARTS, parts, strict=True):
        (directory / name).mkdir()
        writer = DatabaseWriter(directory / name, data_file_bytes=None)
        for key, value in values.items():
            writer.put(key, value)
        writer.close()


def test_merged_database_has_all_values_where_they_were(tmp_path: Path) -> None:
    first = {"w/zarr.json": SMALL, "w/c/0": LARGE, "ä": SMALL}
    second = {"w/c/1": LARGE + SMALL}
    write_parts(tmp_path, first, second)
    merge_databases(tmp_path, PARTS, [("w", LAYOUT)])
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("d", "manifest.ocdbt", *PARTS):
        (tmp_path / name).rename(moved / name)
    for part in PARTS:
        (moved / part / "manifest.ocdbt").unlink()
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{moved}/"}).result()
    found = {key.decode(): store.read(key).result().value for key in store.list().result()}
    assert found == {**first, **second}
    assert sum(file.stat().st_size for file in (moved / "d").iterdir()) < 1000


def test_empty_databases_can_be_merged(tmp_path: Path) -> None:
    write_parts(tmp_path, {}, {})
    merge_databases(tmp_path, PARTS, [])
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{tmp_path}/"}).result()
    assert store.list().result() == []


def test_value_that_two_processes_wrote_is_an_error(tmp_path: Path) -> None:
    write_parts(tmp_path, {"w/c/0": SMALL}, {"w/c/0": SMALL})
    with pytest.raises(StorageError, match=r"w/c/0: also in ocdbt.process_1"):
        merge_databases(tmp_path, PARTS, [])


def test_chunk_that_no_process_wrote_is_an_error(tmp_path: Path) -> None:
    write_parts(tmp_path, {"w/zarr.json": SMALL, "w/c/0": SMALL}, {})
    with pytest.raises(StorageError, match=r"w/c/1: written by no process"):
        merge_databases(tmp_path, PARTS, [("w", LAYOUT)])
    assert not (tmp_path / "manifest.ocdbt").exists()

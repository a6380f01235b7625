from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
from crc32c import crc32c

from orbit_ckpt._src.storage.layout import PART_INDEX
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt._src.storage.ocdbt_merge import merge_databases
from orbit_ckpt._src.storage.ocdbt_part import write_part
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt._src.storage.zarr import describe_array
from orbit_ckpt.errors import CorruptionError, StorageError

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


def test_the_record_of_a_merged_database_has_the_values_of_all_parts(tmp_path: Path) -> None:
    for part, key in zip(PARTS, "ab", strict=True):
        (tmp_path / part).mkdir()
        writer = DatabaseWriter(tmp_path / part, data_file_bytes=None)
        writer.append(key, [LARGE + key.encode()], len(LARGE) + 1)
        writer.close()
        write_part(tmp_path / part, writer.record, writer.values)
    record = merge_databases(tmp_path, PARTS, [])
    assert record.database is not None
    data = {str(file.relative_to(tmp_path)) for file in tmp_path.glob("**/d/*")}
    assert set(record.database.files) == data
    assert record.database.checksums() == [crc32c(LARGE + key) for key in (b"a", b"b")]
    assert not list(tmp_path.glob(f"*/{PART_INDEX}"))
    found = read_index(tmp_path, record.database)
    assert [getattr(found[key], "checksum") for key in "ab"] == record.database.checksums()  # noqa: B009 - of an extent


def test_an_index_that_is_not_the_recorded_one_is_an_error(tmp_path: Path) -> None:
    write_parts(tmp_path, {"a": SMALL}, {"b": LARGE})
    record = merge_databases(tmp_path, PARTS, []).database
    assert record is not None
    assert read_index(tmp_path, record)["a"] == SMALL
    with pytest.raises(CorruptionError, match="the index is not the one that was written"):
        read_index(tmp_path / PARTS[0], record)

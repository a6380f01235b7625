"""Databases are merged in ranges of their keys, each by any process (takes 2 s)."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.storage import ocdbt_expected
from orbit_ckpt._src.storage.layout import MERGED_RANGE, PART_INDEX
from orbit_ckpt._src.storage.ocdbt import keys_of, read_index
from orbit_ckpt._src.storage.ocdbt_merge import DatabaseMerge
from orbit_ckpt._src.storage.ocdbt_part import write_part
from orbit_ckpt._src.storage.value_write import DatabaseWriter
from orbit_ckpt._src.storage.zarr import ZarrArray, describe_array
from orbit_ckpt.errors import CorruptionError, StorageError

LAYOUT, _ = describe_array((12, 12), (1, 6), np.dtype(np.float32), zarr_format=3, compress=False)
ARRAYS = [(name, LAYOUT) for name in ("a", "a.b", "layers.0.w", "layers.1.w", "ä")]
PARTS = [f"ocdbt.process_{i}" for i in range(3)]
SMALL, LARGE = b"small", bytes(2000)

stored_keys = st.text(st.sampled_from("ab/.\0ä"), min_size=1, max_size=6)


def write_parts(
    directory: Path, values: Sequence[Mapping[str, bytes]], starts: Sequence[bytes] = ()
) -> None:
    for part, found in zip(PARTS, values, strict=False):
        (directory / part).mkdir()
        writer = DatabaseWriter(directory / part, data_file_bytes=None)
        for key, value in found.items():
            writer.put(key, value)
        writer.close()
        write_part(directory / part, writer.record, writer.values, starts)


def dealt() -> list[dict[str, bytes]]:
    """Return the values of all arrays, of which every part has some of each."""
    keys = sorted(keys_of(ARRAYS))
    sizes = [SMALL, LARGE + SMALL, LARGE]
    return [{k: sizes[i % 2] + k.encode() for k in keys[i::3]} for i in range(3)]


def merge_in_ranges(
    directory: Path, arrays: Sequence[tuple[str, ZarrArray]] = ARRAYS
) -> dict[str, bytes]:
    """Merge every range as if by a process of its own; return what TensorStore finds."""
    starts = DatabaseMerge(directory, PARTS, arrays).ranges(3)
    for number in reversed(range(len(starts) + 1)):
        merge = DatabaseMerge(directory, PARTS, arrays)
        merge.write_range(merge.merge(starts, number), number)
    merge = DatabaseMerge(directory, PARTS, arrays)
    record = merge.finish([merge.read_range(i) for i in range(len(starts) + 1)])
    found = read_all(directory)
    assert set(read_index(directory, record.database)) == set(found)
    return found


def read_all(directory: Path) -> dict[str, bytes]:
    store = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{directory}/"}).result()
    return {key.decode(): store.read(key).result().value for key in store.list().result()}


@pytest.mark.parametrize("is_divided_alike", [True, False])
@pytest.mark.parametrize("nbytes", [150, 700, 10**8])
def test_ranges_make_up_the_database(
    tmp_path: Path, nbytes: int, is_divided_alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocdbt_expected, "RANGE_BYTES", nbytes)
    starts = DatabaseMerge(tmp_path, PARTS, ARRAYS).ranges(3)
    assert (len(starts) >= 3) == (nbytes < 1000)
    values = dealt()
    write_parts(tmp_path, values, starts if is_divided_alike else [b"layers", b"m"])
    assert merge_in_ranges(tmp_path) == values[0] | values[1] | values[2]
    assert not [*tmp_path.glob(f"*/{PART_INDEX}"), *tmp_path.glob(f"{MERGED_RANGE}*")]


def test_the_record_has_the_values_of_all_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocdbt_expected, "RANGE_BYTES", 200)
    values = dealt()
    write_parts(tmp_path, values)
    merge = DatabaseMerge(tmp_path, PARTS, ARRAYS)
    starts = merge.ranges(3)
    record = merge.finish([merge.merge(starts, i) for i in range(len(starts) + 1)])
    assert record.database is not None
    large = {k: v for found in values for k, v in found.items() if len(v) > 1024}
    expected = [crc32c(large[key]) for key in sorted(large, key=str.encode)]
    assert record.database.checksums() == expected
    data = {file.relative_to(tmp_path).as_posix(): file for file in tmp_path.glob("**/d/*")}
    assert record.database.files == {name: file.stat().st_size for name, file in data.items()}


@given(st.lists(st.dictionaries(stored_keys, st.sampled_from([SMALL, LARGE])), max_size=3))
def test_any_keys_are_sorted_as_tensorstore_expects(values: list[dict[str, bytes]]) -> None:
    seen: set[str] = set()
    for found in values:
        for key in seen & found.keys():
            del found[key]
        seen |= found.keys()
    with tempfile.TemporaryDirectory() as folder:
        write_parts(Path(folder), [*values, {}, {}, {}][:3])
        everything = {key: value for found in values for key, value in found.items()}
        assert merge_in_ranges(Path(folder), ()) == everything


@pytest.mark.parametrize("number", [0, 2])
def test_a_chunk_that_is_missing_or_written_twice_is_an_error_in_its_range(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocdbt_expected, "RANGE_BYTES", 900)
    values = dealt()
    key = sorted(keys_of(ARRAYS))[1 if number == 0 else -2]
    (owner,) = (i for i in range(3) if key in values[i])
    value = values[owner].pop(key)
    starts = DatabaseMerge(tmp_path, PARTS, ARRAYS).ranges(3)
    (tmp_path / "missing").mkdir()
    write_parts(tmp_path / "missing", values, starts)
    with pytest.raises(StorageError, match=f"{key}: written by no process"):
        merge_in_ranges(tmp_path / "missing")
    (tmp_path / "twice").mkdir()
    write_parts(tmp_path / "twice", [{**found, key: value} for found in values], starts)
    with pytest.raises(StorageError, match=f"{key}: also in {PARTS[1]}"):
        merge_in_ranges(tmp_path / "twice")


def test_damage_of_what_processes_exchange_is_an_error(tmp_path: Path) -> None:
    write_parts(tmp_path, dealt())
    file = tmp_path / PARTS[1] / PART_INDEX
    whole = file.read_bytes()
    for position in (2, 20, len(whole) - 9):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(CorruptionError, match=PART_INDEX):
            merge_in_ranges(tmp_path)
    file.write_bytes(whole)
    merge = DatabaseMerge(tmp_path, PARTS, ARRAYS)
    merge.write_range(merge.merge((), 0), 0)
    written = tmp_path / f"{MERGED_RANGE}0"
    written.write_bytes(written.read_bytes()[:-9])
    with pytest.raises(CorruptionError, match=MERGED_RANGE):
        merge.read_range(0)

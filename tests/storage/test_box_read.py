"""Boxes of arrays that lie in a file as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays.slices import Region
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.foreign import ForeignStore, RawArray
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt.errors import CorruptionError
from tests.support import scratch


def open_array(file: Path, value: np.ndarray, offset: int) -> tuple[BatchReader, ArrayRead]:
    array = RawArray(value.shape, value.dtype, Extent(str(file), offset, value.nbytes))
    reader = BatchReader(ForeignStore({"w": array}), zarr_format=2)
    (layout,) = reader.layouts([(("w",), "w")])
    return reader, ArrayRead(("w",), "w", layout, ())


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Region]:
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 7, 1500]), max_size=4)))
    starts = [draw(st.integers(0, n - 1)) for n in shape]
    sizes = [draw(st.integers(1, n - s)) for n, s in zip(shape, starts, strict=True)]
    return shape, Region(tuple(starts), tuple(sizes))


@given(boxes(), st.sampled_from(["u1", "<f8", "bfloat16", "float8_e5m2"]), st.integers(0, 9))
def test_any_box_has_the_values_of_the_array(
    box: tuple[tuple[int, ...], Region], dtype: str, offset: int
) -> None:
    shape, region = box
    if np.prod(shape) > 1e6:
        return
    value = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)
    with scratch() as file:
        file.write_bytes(bytes(offset) + value.tobytes() + b"more")
        reader, read = open_array(file, value, offset)
        found = reader.read_part(read, region)
        assert found.flags.writeable
        assert found.dtype == value.dtype
        assert found.tobytes() == value[region.slices].tobytes()


def test_only_the_bytes_of_the_box_are_read_but_for_gaps_smaller_than_a_page(
    tmp_path: Path,
) -> None:
    value = np.arange(512 * 4096, dtype=np.float32).reshape(512, 4096)
    (tmp_path / "f").write_bytes(value.tobytes())
    for region, nbytes in [
        (Region((100, 0), (50, 4096)), 50 * 4096 * 4),
        (Region((0, 1024), (512, 1024)), 512 * 1024 * 4),
        (Region((0, 0), (512, 4000)), (511 * 4096 + 4000) * 4 - 96 * 4 * 7),
    ]:
        reader, read = open_array(tmp_path / "f", value, 0)
        assert np.array_equal(reader.read_part(read, region), value[region.slices])
        assert reader.bytes_read == nbytes


def test_a_file_that_ends_too_early_is_an_error_that_names_it(tmp_path: Path) -> None:
    value = np.zeros((100, 100))
    (tmp_path / "f").write_bytes(value.tobytes())
    reader, read = open_array(tmp_path / "f", value, 0)
    (tmp_path / "f").write_bytes(value.tobytes()[:-1])
    assert reader.read_part(read, Region((0, 0), (50, 100))).size == 5000
    with pytest.raises(CorruptionError, match="the file ends before it does"):
        reader.read_part(read, Region((50, 0), (50, 100)))
    (tmp_path / "f").unlink()
    with pytest.raises(CorruptionError, match="the file is missing"):
        reader.read_part(read, Region((50, 0), (50, 100)))

"""Arrays read from their first element to their last, chunks in pieces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays.slices import Region, Shape, split_by_rows, whole
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.layout import Extent
from orbit_ckpt._src.storage.region_stream import RegionStream
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt.errors import CorruptionError
from tests.storage.test_batch_io import LAYOUTS, Store
from tests.support import scratch

FILES = [layout for layout in LAYOUTS if "files" in str(layout.id)]


def layout_of(reader: BatchReader) -> ZarrArray:
    """Return how the array `w` is stored."""
    (layout,) = reader.layouts([(("w",), "w")])
    return layout


def read_in_parts(store: Store, max_elements: int) -> np.ndarray:
    """Return the array `w`, read in parts of so many elements."""
    reader = store.reader()
    layout = layout_of(reader)
    box = whole(layout.shape)
    stream = RegionStream(reader, ArrayRead(("w",), "w", layout, [box]))
    result = np.zeros(layout.shape, layout.dtype)
    for region in split_by_rows(box, (1,) * len(layout.shape), max_elements):
        result[region.slices] = stream.next(region)
    assert not stream._open
    return result


@st.composite
def grids(draw: st.DrawFn) -> tuple[Shape, Shape]:
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=3)))
    return shape, tuple(draw(st.integers(1, n + 1)) for n in shape)


@given(grids(), st.integers(1, 60), st.sampled_from(LAYOUTS))
def test_parts_are_the_array_whatever_the_chunks(
    grid: tuple[Shape, Shape], max_elements: int, layout: Any
) -> None:
    shape, chunks = grid
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    with scratch() as path:
        store = Store(path, **layout.values[0])
        store.write_with_tensorstore("w", values, chunks=chunks)
        np.testing.assert_array_equal(read_in_parts(store, max_elements), values)


@pytest.fixture
def store(tmp_path: Path, layout: dict[str, Any]) -> Store:
    """A store with an array of several large chunks, compressed or not."""
    store = Store(tmp_path / "x", **layout)
    values = np.random.default_rng(0).integers(0, 9, (96, 1024)).astype(np.float32)
    store.write({"w": values}, chunks=(32, 1024))
    return store


@pytest.mark.parametrize("layout", LAYOUTS)
def test_damage_is_told_with_the_chunk_when_its_last_element_has_been_read(store: Store) -> None:
    if store.zarr_format == 2 and not store.compress:
        pytest.skip("has no checksum")
    value = chunk_extent(store, (1, 0))
    flip_bit(value, value.length // 2)
    with pytest.raises(CorruptionError, match=r"w: chunk 'w/.*1.0' in .* is damaged") as caught:
        read_in_parts(store, 5000)
    assert caught.value.path == "w"
    assert caught.value.file == value.file


@pytest.mark.parametrize("layout", FILES)
def test_a_chunk_that_is_cut_short_or_missing_is_told(store: Store) -> None:
    value = chunk_extent(store, (2, 0))
    file = Path(value.file)
    data = file.read_bytes()
    for cut in (data[:-1], data + b"x", b""):
        file.write_bytes(cut)
        with pytest.raises(CorruptionError, match=r"chunk 'w/.*2.0'"):
            read_in_parts(store, 5000)
    file.unlink()
    with pytest.raises(CorruptionError, match=r"chunk 'w/.*2.0' is missing"):
        read_in_parts(store, 5000)


@pytest.mark.parametrize("layout", FILES)
def test_a_file_that_vanishes_while_it_is_read_is_told(store: Store) -> None:
    reader = store.reader()
    layout = layout_of(reader)
    stream = RegionStream(reader, ArrayRead(("w",), "w", layout, [whole(layout.shape)]))
    stream.next(Region((0, 0), (1, 1024)))
    Path(chunk_extent(store, (0, 0)).file).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        stream.next(Region((1, 0), (31, 1024)))


def chunk_extent(store: Store, index: Shape) -> Extent:
    reader = store.reader()
    value = reader.store.find(layout_of(reader).chunk_key("w", index))
    assert isinstance(value, Extent)
    return value


def flip_bit(value: Extent, position: int) -> None:
    with open(value.file, "r+b") as file:
        file.seek(value.offset + position)
        byte = file.read(1)[0]
        file.seek(value.offset + position)
        file.write(bytes([byte ^ 1]))

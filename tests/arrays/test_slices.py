from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbit_ckpt._src.arrays import slices
from orbit_ckpt._src.arrays.slices import (
    Region,
    band_shape,
    chunk_indices,
    chunk_region,
    default_chunk_shape,
    from_index,
    split_by_rows,
    whole,
)

Shape = tuple[int, ...]


def lengths(rank: int, low: int, high: int) -> st.SearchStrategy[Shape]:
    return st.tuples(*[st.integers(low, high)] * rank)


shapes = st.integers(0, 3).flatmap(lambda rank: lengths(rank, 0, 7))


@st.composite
def regions(draw: st.DrawFn, shape: Shape) -> Region:
    start = tuple(draw(st.integers(0, n)) for n in shape)
    return Region(
        start, tuple(draw(st.integers(0, n - s)) for s, n in zip(start, shape, strict=True))
    )


@st.composite
def grids(draw: st.DrawFn) -> tuple[Shape, Shape]:
    shape = draw(shapes)
    return shape, draw(lengths(len(shape), 1, 5))


def count(shape: Shape, parts: list[Region]) -> np.ndarray:
    """Return for every element of an array in how many of the regions it is."""
    counts = np.zeros(shape, int)
    for part in parts:
        counts[part.slices] += 1
    return counts


@given(st.data())
def test_chunks_cover_a_region_and_none_lies_outside(data: st.DataObject) -> None:
    shape, chunk_shape = data.draw(grids())
    region = data.draw(regions(shape))
    chunks = [chunk_region(i, chunk_shape) for i in chunk_indices(region, chunk_shape)]
    parts = [part for chunk in chunks if (part := chunk.intersect(region))]
    assert len(parts) == len(chunks)
    assert (count(shape, parts) == count(shape, [region])).all()


@given(st.data())
def test_chunks_of_a_grid_do_not_overlap(data: st.DataObject) -> None:
    shape, chunk_shape = data.draw(grids())
    indices = list(chunk_indices(whole(shape), chunk_shape))
    assert indices == sorted(set(indices))
    assert (count(shape, [chunk_region(i, chunk_shape) for i in indices]) == 1).all()


@given(st.data())
def test_split_parts_are_disjoint_cover_and_consist_of_whole_chunks(data: st.DataObject) -> None:
    shape, chunk_shape = data.draw(grids())
    max_elements = data.draw(st.integers(0, 60))
    parts = list(split_by_rows(whole(shape), chunk_shape, max_elements))
    assert (count(shape, parts) == 1).all()
    for part in parts:
        for start, stop, chunk, n in zip(part.start, part.stop, chunk_shape, shape, strict=True):
            assert start % chunk == 0
            assert stop % chunk == 0 or stop == n
        is_one_chunk = all(n <= c for n, c in zip(part.shape, chunk_shape, strict=True))
        assert part.size <= max_elements or is_one_chunk


def test_region_away_from_the_origin_is_split_where_it_lies() -> None:
    parts = list(split_by_rows(Region((4, 2), (4, 2)), (2, 2), 4))
    assert parts == [Region((4, 2), (2, 2)), Region((6, 2), (2, 2))]


def test_region_within_the_limit_is_not_split() -> None:
    assert list(split_by_rows(whole((4, 4)), (1, 1), 16)) == [whole((4, 4))]


@given(st.data())
def test_intersection_is_what_both_regions_hold(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    a, b = data.draw(regions(shape)), data.draw(regions(shape))
    common = a.intersect(b)
    assert common == b.intersect(a)
    both = count(shape, [a]) + count(shape, [b]) == 2
    assert (count(shape, [common] if common else []) == both).all()
    assert common is None or common.size


@given(st.data())
def test_region_in_the_coordinates_of_an_outer_one_selects_the_same_elements(
    data: st.DataObject,
) -> None:
    shape = data.draw(shapes)
    outer = data.draw(regions(shape))
    inner = data.draw(regions(outer.shape))
    absolute = Region(
        tuple(o + i for o, i in zip(outer.start, inner.start, strict=True)), inner.shape
    )
    array = np.arange(np.prod(shape)).reshape(shape)
    assert absolute.within(outer) == inner
    assert np.array_equal(array[absolute.slices], array[outer.slices][inner.slices])


@pytest.mark.parametrize(
    ("index", "shape", "expected"),
    [
        ((slice(None), slice(2, 4)), (3, 8), Region((0, 2), (3, 2))),
        ((slice(-2, None),), (8,), Region((6,), (2,))),
        ((slice(3, 1),), (8,), Region((3,), (0,))),
        ((), (), Region((), ())),
    ],
)
def test_region_of_slices(index: tuple[slice, ...], shape: Shape, expected: Region) -> None:
    assert from_index(index, shape) == expected


def test_scalar_is_one_element_in_one_chunk() -> None:
    assert whole(()).size == 1
    assert list(chunk_indices(whole(()), ())) == [()]


def test_empty_region_touches_no_chunk() -> None:
    assert list(chunk_indices(Region((2, 0), (0, 4)), (2, 2))) == []


@given(data=st.data())
def test_default_chunks_divide_what_a_device_writes_and_are_blocks_of_its_rows(
    data: st.DataObject,
) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 97), max_size=3)))
    itemsize = data.draw(st.sampled_from([1, 4, 8]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "_CHUNK_BYTES", 256)
        patch.setattr(slices, "_MIN_CHUNK_BYTES", 16)
        chunk = default_chunk_shape(shape, itemsize)
    assert all(max(1, n) % c == 0 for n, c in zip(shape, chunk, strict=True))
    nbytes = math.prod(chunk) * itemsize
    if math.prod(max(1, n) for n in shape) * itemsize <= 256:
        assert chunk == tuple(max(1, n) for n in shape)
    elif nbytes > 512:
        assert any(c == n > 1 for n, c in zip(shape, chunk, strict=True))


@pytest.mark.parametrize(
    ("shape", "itemsize", "expected"),
    [
        ((4096, 4096), 4, (2048, 4096)),
        ((50257, 768), 4, (1733, 768)),  # 29 * 1733 rows
        ((50021, 768), 4, (50021, 128)),  # a prime number of rows
        ((3, 4096, 4096), 4, (1, 2048, 4096)),
        ((50_000_017,), 4, (50_000_017,)),
        ((2 * 4_194_319, 2), 4, (4_194_319, 2)),  # 32 MiB and a little
        ((1000, 1000), 4, (1000, 1000)),
        ((0, 5), 4, (1, 5)),
        ((), 4, ()),
    ],
)
def test_default_chunks_have_whole_rows(
    shape: tuple[int, ...], itemsize: int, expected: tuple[int, ...]
) -> None:
    assert default_chunk_shape(shape, itemsize) == expected


@given(st.data())
def test_bands_hold_consecutive_elements_and_consist_of_whole_chunks(data: st.DataObject) -> None:
    shape, chunk_shape = data.draw(grids())
    max_elements = data.draw(st.integers(0, 60))
    band = band_shape(shape, chunk_shape)
    parts = list(split_by_rows(whole(shape), band, max_elements))
    numbers = np.arange(math.prod(shape)).reshape(shape)
    found = [numbers[(*part.slices, ...)].reshape(-1) for part in parts]
    assert np.concatenate(found).tolist() == list(range(math.prod(shape)))
    for part in parts:
        for start, stop, chunk, n in zip(part.start, part.stop, chunk_shape, shape, strict=True):
            assert start % chunk == 0
            assert stop % chunk == 0 or stop == n

"""Index expressions mean what they mean for numpy, and touch no more chunks than they must."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from orbit_ckpt._src.arrays.indexing import Selection, select
from orbit_ckpt._src.arrays.slices import Shape, chunk_indices

SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@st.composite
def advanced_indices(draw: st.DrawFn, shape: Shape) -> Any:
    """Draw an index with arrays of integers or booleans, among integers, slices, `...`, None."""
    first = draw(st.integers(0, len(shape)))
    last = draw(st.integers(first, len(shape)))
    before = draw(parts_of(shape[:first]))
    behind = draw(parts_of(shape[last:]))
    parts = [*before, Ellipsis, *behind] if behind or draw(st.booleans()) else before
    return parts[0] if len(parts) == 1 and draw(st.booleans()) else tuple(parts)


@st.composite
def parts_of(draw: st.DrawFn, shape: Shape) -> list[Any]:
    """Draw an index of every dimension; all arrays among them choose one or three elements."""
    parts: list[Any] = []
    axis = 0
    while axis < len(shape):
        n = shape[axis]
        kind = draw(st.sampled_from(["slice", "none", "int", "array", "mask", "mask of two"]))
        if kind == "none":
            parts.append(None)
        elif kind == "int" and n:
            parts.append(draw(st.integers(-n, n - 1)))
            axis += 1
        elif kind == "array" and n:
            size = draw(st.sampled_from([1, 3]))
            values = draw(st.lists(st.integers(-n, n - 1), min_size=size, max_size=size))
            parts.append(draw(st.sampled_from([values, np.array(values)])))
            axis += 1
        elif kind.startswith("mask") and n >= 3:
            extents = shape[axis : axis + (2 if kind == "mask of two" else 1)]
            mask = np.zeros(extents, bool)
            chosen = st.lists(st.integers(0, n - 1), min_size=3, max_size=3, unique=True)
            if mask.size:
                mask[tuple(draw(chosen) if i == 0 else 0 for i in range(mask.ndim))] = True
                parts.append(draw(st.sampled_from([mask, mask.tolist()])))
            else:
                parts += [slice(None)] * mask.ndim
            axis += mask.ndim
        else:
            parts.append(draw(st.slices(n)))
            axis += 1
    return parts


def result_of(selection: Selection, value: np.ndarray, chunks: Shape) -> np.ndarray:
    """Return what a selection makes of an array, part by part."""
    found = np.full(selection.shape, -1, value.dtype)
    for part in selection.chunk_selections(chunks, value.shape):
        found[part.target] = part.apply(value[part.region.slices])
    return found[selection.inner]


def draw_index(data: st.DataObject, shape: Shape) -> Any:
    basic = st_np.basic_indices(shape, max_dims=8, allow_newaxis=True)
    return data.draw(st.one_of(basic, advanced_indices(shape)))


def draw_chunks(data: st.DataObject, shape: Shape) -> Shape:
    return tuple(data.draw(st.integers(1, max(1, n))) for n in shape)


@given(st.data())
def test_result_is_that_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    index = draw_index(data, shape)
    expected = np.asarray(value[index])
    found = result_of(select(index, shape), value, draw_chunks(data, shape))
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)


@given(st.data())
def test_no_chunk_is_read_twice_and_none_without_a_chosen_element(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    chunks = draw_chunks(data, shape)
    selection = select(draw_index(data, shape), shape)
    read = [
        index
        for part in selection.chunk_selections(chunks, shape)
        for index in chunk_indices(part.region, chunks)
    ]
    needed = {
        tuple(i // n for i, n in zip(element, chunks, strict=True))
        for element in product(*[map(int, chosen) for chosen in selection.chosen])
    }
    assert len(read) == len(set(read))
    assert set(read) == needed


@given(st.data())
def test_what_lies_beyond_the_stored_array_is_left_out(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    stored = tuple(data.draw(st.integers(0, 9)) for _ in shape)
    value = np.full(shape, -1)
    common = tuple(slice(0, min(pair)) for pair in zip(shape, stored, strict=True))
    source = np.arange(np.prod(stored, dtype=int)).reshape(stored)
    value[common] = source[common]
    index = draw_index(data, shape)
    found = result_of(select(index, shape), source, draw_chunks(data, shape))
    assert np.array_equal(found, np.asarray(value[index]))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (4, "index 4 is out of bounds for axis 0 with size 4"),
        (-5, "index -5 is out of bounds"),
        ((0, [1, 3]), "index 3 is out of bounds for axis 1 with size 3"),
        ((0, np.array([-4])), "index -4 is out of bounds for axis 1"),
        ((0, 0, 0), "too many indices: the array has 2 dimensions, not 3"),
        (np.ones((4, 3, 1), bool), "too many indices"),
        ((..., 0, ...), "have only one ellipsis"),
        ([True, False], "booleans of length 2 is no index of dimension 0, whose length is 4"),
        (True, "not True"),
        (np.True_, "arrays of integers or booleans"),
        (1.0, "only integers, slices"),
        ("a", "only integers, slices"),
        ([0.5], "only integers, slices"),
    ],
)
def test_what_is_no_index_is_refused_as_by_numpy(index: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        select(index, (4, 3))


def test_a_slice_without_a_step_is_refused_as_by_numpy() -> None:
    with pytest.raises(ValueError, match="step cannot be zero"):
        select(slice(None, None, 0), (4,))
    with pytest.raises(TypeError):
        select(slice("a"), (4,))

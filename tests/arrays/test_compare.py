from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from orbit_ckpt._src.arrays import compare
from orbit_ckpt._src.arrays.compare import (
    Arithmetic,
    ValueChange,
    choose_arithmetic,
    compare_values,
)
from orbit_ckpt._src.arrays.dtypes import number_kind
from orbit_ckpt._src.arrays.slices import split_by_rows, whole

INT64 = np.iinfo(np.int64)
TOP = 2**64 - 1
NAN, INF = math.nan, math.inf
NUMBERS = [
    *("bool", "int8", "uint8", "int32", "int64", "uint64", "int4", "uint2"),
    *("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"),
    *("complex64", "complex128"),
]


def change(a: Any, b: Any, **options: Any) -> ValueChange:
    x, y = np.asarray(a), np.asarray(b)
    arithmetic = choose_arithmetic(x.dtype, y.dtype)
    assert arithmetic is not None
    return compare_values(x, y, arithmetic, **options)


def largest(a: Any, b: Any) -> object:
    return change(a, b).max_abs_difference


@pytest.mark.parametrize("dtype", NUMBERS)
def test_equal_arrays_have_no_differing_element(dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 2, (3, 4)).astype(dtype)
    assert change(values, values.copy()) == ValueChange(12)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_one_changed_element_is_found_with_its_values(dtype: str) -> None:
    a, b = np.zeros((2, 3, 4), dtype), np.zeros((2, 3, 4), dtype)
    b[1, 0, 2] = 1
    found = change(a, b)
    assert (found.size, found.differing, found.nan_mismatches) == (24, 1, 0)
    assert (found.max_abs_difference, found.index, found.a, found.b) == (1, (1, 0, 2), 0, 1)
    kinds = {"bool": bool, "int": int, "float": float, "complex": complex}
    assert type(found.a) is type(found.b) is kinds[number_kind(np.dtype(dtype))]
    assert not found.has_same_bits


def test_integers_are_compared_exactly() -> None:
    assert largest([INT64.min], [INT64.max]) == TOP
    assert largest([INT64.max - 1], [INT64.max]) == 1
    assert largest(np.array([0], np.uint64), np.array([TOP], np.uint64)) == TOP
    assert largest(np.array([-128], np.int8), np.array([127], np.int8)) == 255
    assert type(largest([1], [3])) is int


def test_integers_of_different_dtypes_are_compared_exactly() -> None:
    unsigned = np.array([TOP, 2**63, 5], np.uint64)
    signed = np.array([-1, INT64.max, 5])
    found = change(unsigned, signed)
    assert (found.differing, found.max_abs_difference) == (2, 2**64)
    assert found.compared_as == "integers"
    assert not change(np.array([True, False]), np.array([1, 0], np.int64)).differing


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_that_float64_rounds_differ_from_the_float(dtype: type) -> None:
    integers = np.array([2**53, 2**53 + 1, INT64.max], dtype)
    floats = np.array([2.0**53, 2.0**53, 2.0**63])
    found = change(integers, floats)
    assert (found.differing, found.max_abs_difference, found.index) == (2, 1, (1,))
    assert change(floats, integers).differing == 2
    assert found.compared_as == "float64"


def test_an_element_is_not_a_number_in_both_or_counts_as_a_mismatch() -> None:
    a, b = np.array([NAN, NAN, 1.0, 2.0, 3.0]), np.array([NAN, 1.0, NAN, 2.0, 5.0])
    found = change(a, b)
    assert (found.differing, found.nan_mismatches) == (3, 2)
    assert (found.max_abs_difference, found.index) == (2, (4,))


def test_of_nothing_but_mismatches_the_first_is_shown() -> None:
    found = change([1.0, NAN, 3.0], [1.0, 2.0, NAN])
    assert (found.differing, found.nan_mismatches, found.max_abs_difference) == (2, 2, None)
    assert found.index == (1,)
    np.testing.assert_equal((found.a, found.b), (NAN, 2.0))


def test_infinities_are_equal_to_themselves_and_infinitely_far_from_all_else() -> None:
    assert not change([INF, -INF], [INF, -INF]).differing
    assert largest([INF], [1.0]) == INF
    assert largest([INF], [-INF]) == INF
    assert largest([1.7e308], [-1.7e308]) == INF
    assert largest(np.array([INF + 0j]), np.array([INF + 1j])) == 1


def test_values_of_other_bits_are_equal_and_it_is_told() -> None:
    for a, b in (([0.0], [-0.0]), ([NAN], [-NAN])):
        found = change(a, b)
        assert (found.differing, found.has_same_bits, found.compared_as) == (0, False, None)
    assert change([0.0], [0.0]).has_same_bits


def test_complex_numbers_are_apart_by_an_absolute_value() -> None:
    assert largest([3 + 4j], [0j]) == 5
    found = change([complex(NAN, 1), complex(NAN, 1)], [complex(1, NAN), 1j])
    assert (found.differing, found.nan_mismatches) == (1, 1)
    mixed = change(np.array([2**53 + 1, 7]), np.array([2.0**53 + 0j, 7 + 0j]))
    assert (mixed.differing, mixed.max_abs_difference) == (1, 1)


def test_narrow_floats_are_compared_in_wider_ones() -> None:
    huge = np.array([3e38, -3e38], ml_dtypes.bfloat16)
    assert largest(huge[:1], huge[1:]) == 2 * float(huge[0])
    found = change(np.array([0.1], ml_dtypes.bfloat16), np.array([0.1], np.float32))
    assert found.max_abs_difference == abs(float(ml_dtypes.bfloat16(0.1)) - float(np.float32(0.1)))
    assert found.compared_as == "float64"


def test_dates_are_compared_in_the_finer_unit() -> None:
    a = np.array(["2020-01-01", "NaT", "NaT"], "datetime64[s]")
    b = np.array(["2020-01-01", "NaT", "2020-01-01"], "datetime64[ms]")
    found = change(a, b)
    assert (found.differing, found.nan_mismatches, found.index) == (1, 1, (2,))
    assert largest(a[:1], a[:1] + np.timedelta64(3, "s")) == 3
    assert largest(a[:1], b[:1] + np.timedelta64(3, "ms")) == 3


def test_a_date_that_the_finer_unit_cannot_hold_differs_from_all() -> None:
    late = np.array(["3000-01-01", "NaT", "2000-01-01", "1600-01-01"], "datetime64[s]")
    wrapped = (late.view(np.int64) * 10**9).view("datetime64[ns]")
    fine = np.array([wrapped[0], "NaT", "2000-01-01", "NaT"], "datetime64[ns]")
    for one, other in ((late, fine), (fine, late)):
        found = change(one, other)
        assert (found.differing, found.nan_mismatches) == (2, 2)


def test_dates_are_not_compared_with_numbers() -> None:
    assert choose_arithmetic(np.dtype("M8[s]"), np.dtype("int64")) is None
    assert choose_arithmetic(np.dtype("M8[s]"), np.dtype("m8[s]")) is None
    assert choose_arithmetic(np.dtype("m8[Y]"), np.dtype("m8[D]")) is None


def test_rows_of_bits_are_compared_whole() -> None:
    keys = np.arange(12, dtype=np.uint32).reshape(2, 3, 2)
    other = keys.copy()
    other[1, 2] += 1
    found = compare_values(keys, other, Arithmetic.BITS)
    assert (found.size, found.differing, found.index) == (6, 1, (1, 2))
    assert (found.max_abs_difference, found.a, found.b) == (None, None, None)
    assert found.describe() == "1 of 6 differ, first at [1, 2]"


def test_of_equal_distances_the_first_is_shown() -> None:
    found = change(np.zeros((2, 3)), np.ones((2, 3)))
    assert found.index == (0, 0)
    last = change(np.zeros((2, 3)), np.ones((2, 3)), start=(4, 0))
    assert last.merge(found).index == found.merge(last).index == (0, 0)


@pytest.mark.parametrize(
    ("a", "b", "text"),
    [
        ([1.0, 2.0], [1.0, 2.0], "all 2 equal"),
        ([1.0, 2.0], [1.0, 2.5], "1 of 2 differ, max |a - b| 0.5 at [1] (2 -> 2.5)"),
        ([1, 2], [1, 5], "1 of 2 differ, max |a - b| 3 at [1] (2 -> 5)"),
        ([1, 2], [1.0, 2.0], "all 2 equal, as float64"),
        ([1.0, NAN], [1.0, 2.0], "1 of 2 differ, first at [1] (nan -> 2), 1 NaN in one only"),
    ],
)
def test_a_line_says_it_all(a: object, b: object, text: str) -> None:
    assert change(a, b).describe() == text


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Draw two arrays of one shape, of which some elements agree."""
    shape = draw(npst.array_shapes(max_dims=3, max_side=6))
    first, second = (np.dtype(draw(st.sampled_from(NUMBERS))) for _ in range(2))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    a = rng.choice([0, 1, 2, 3, NAN], size=shape)
    b = np.where(rng.random(shape) < 0.5, a, rng.choice([0, 1, 2, 3, NAN, INF], size=shape))
    with np.errstate(all="ignore"):
        return _cast(a, first), _cast(b, second)


def _cast(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if number_kind(dtype) in ("bool", "int"):
        values = np.where(np.isfinite(values), values, 1)
    return values.astype(np.float32).astype(dtype)


@given(pairs(), st.integers(1, 9), st.integers(1, 5))
def test_parts_together_say_what_numpy_says_of_the_whole(
    pair: tuple[np.ndarray, np.ndarray], part: int, block: int
) -> None:
    a, b = pair
    wide = np.complex128 if "complex" in (a.dtype.name + b.dtype.name) else np.float64
    x, y = a.astype(wide), b.astype(wide)
    both_nan = np.isnan(x) & np.isnan(y)
    one_nan = np.isnan(x) ^ np.isnan(y)
    differs = (x != y) & ~both_nan
    arithmetic = choose_arithmetic(a.dtype, b.dtype)
    assert arithmetic is not None
    original = compare._BLOCK_ELEMENTS
    compare._BLOCK_ELEMENTS = block
    try:
        found = ValueChange(0)
        for region in split_by_rows(whole(a.shape), (1,) * a.ndim, part):
            found = found.merge(
                compare_values(a[region.slices], b[region.slices], arithmetic, start=region.start)
            )
    finally:
        compare._BLOCK_ELEMENTS = original
    assert (found.size, found.differing) == (a.size, np.count_nonzero(differs))
    assert found.nan_mismatches == np.count_nonzero(one_nan)
    with np.errstate(all="ignore"):
        distance = np.where(differs & ~one_nan, np.abs(x - y), -1.0)
    if (distance >= 0).any():
        assert found.max_abs_difference == distance.max()
        assert found.index == np.unravel_index(distance.argmax(), a.shape)
    else:
        assert found.max_abs_difference is None
    if found.index is not None:
        np.testing.assert_equal([found.a, found.b], [x[found.index], y[found.index]])

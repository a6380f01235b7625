"""Statistics of arrays are those of numpy, however the array is cut."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from orbit_ckpt._src.arrays.histogram import Histogram
from orbit_ckpt._src.arrays.statistics import ArrayStatistics, distance, measure


@given(
    hnp.arrays(
        st.sampled_from([np.dtype("f4"), np.dtype("f8"), np.dtype("f2")]),
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=20),
    ),
    st.integers(0, 20),
)
def test_floats_are_measured_as_numpy_does(values: np.ndarray, cut: int) -> None:
    flat = values.reshape(-1)
    found = measure(flat[:cut]).merge(measure(flat[cut:]))
    finite = flat[np.isfinite(flat)].astype(np.float64)
    assert (found.size, found.nans) == (flat.size, int(np.isnan(flat).sum()))
    assert found.infs == int(np.isinf(flat).sum())
    if not finite.size:
        assert (found.min, found.max, found.mean, found.l2) == (None, None, None, 0)
        return
    assert (found.min, found.max) == (finite.min(), finite.max())
    largest = max(np.abs(finite).max(), np.finfo(float).tiny)
    norm = largest * math.sqrt(float(((finite / largest) ** 2).sum()))
    assert found.l2 is not None
    assert math.isclose(found.l2, norm, rel_tol=1e-6, abs_tol=1e-300)


@pytest.mark.parametrize(
    ("values", "least", "most", "l2"),
    [
        (np.array([2**63 - 1, -(2**63)]), -(2**63), 2**63 - 1, math.hypot(2**63, 2**63)),
        (np.array([2**64 - 1], np.uint64), 2**64 - 1, 2**64 - 1, 2.0**64),
        (np.array([True, False, True]), 0, 1, math.sqrt(2)),
        (np.array([-8, 7], ml_dtypes.int4), -8, 7, math.sqrt(113)),
        (np.array([1.5, -2], ml_dtypes.bfloat16), -2.0, 1.5, 2.5),
        (np.array([3e200, 4e200]), 3e200, 4e200, 5e200),
        (np.array([3e-200, 4e-200]), 3e-200, 4e-200, 5e-200),
    ],
    ids=str,
)
def test_numbers_of_every_kind_are_exact(
    values: np.ndarray, least: float, most: float, l2: float
) -> None:
    found = measure(values)
    assert (found.min, found.max) == (least, most)
    assert found.l2 is not None
    assert math.isclose(found.l2, l2)


def test_complex_numbers_have_a_norm_and_no_order() -> None:
    found = measure(np.array([3 + 4j, complex("nan"), complex("inf")]))
    assert found == ArrayStatistics(3, 1, 1, None, None, None, 5.0)
    assert found.mean is None


def test_dates_are_only_counted() -> None:
    found = measure(np.array(["2020-01-01", "NaT"], "datetime64[D]"))
    assert (found.size, found.nans, found.min, found.mean) == (2, 1, None, None)


def test_many_blocks_are_one_array() -> None:
    values = np.random.default_rng(0).standard_normal(300_000)
    found = measure(values.reshape(300, 1000))
    assert found.mean is not None
    assert math.isclose(found.mean, values.mean(), rel_tol=1e-9, abs_tol=1e-12)
    assert (found.size, found.min, found.max) == (300_000, values.min(), values.max())


def test_the_threads_of_blas_are_not_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("BLAS was called")

    for name in ("dot", "vdot", "inner", "matmul", "vecdot", "einsum"):
        monkeypatch.setattr(np, name, refuse)
    monkeypatch.setattr(np.linalg, "norm", refuse)
    assert measure(np.full(40_000, 2.0, np.float32)).l2 == 400


def test_a_complex_number_with_a_finite_value_is_not_counted_as_infinite() -> None:
    found = measure(np.array([3e200 + 4e200j, complex("inf+nanj")]))
    assert (found.nans, found.infs) == (1, 0)
    assert found.l2 is not None
    assert math.isclose(found.l2, 5e200)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float32", "float64"])
def test_numbers_that_are_not_finite_are_counted_in_every_dtype(dtype: str) -> None:
    values = np.array([1.5, np.nan, -2.0], np.dtype(dtype))
    found = measure(values)
    assert (found.nans, found.infs, found.min, found.max, found.l2) == (1, 0, -2.0, 1.5, 2.5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2", "float32", "float64"])
def test_infinities_are_counted_apart_from_nan(dtype: str) -> None:
    found = measure(np.array([np.inf, np.nan, -np.inf, 1], np.dtype(dtype)))
    assert (found.nans, found.infs, found.min, found.max, found.l2) == (1, 2, 1, 1, 1)


def check_counts(histogram: Histogram, values: np.ndarray) -> None:
    """Check every count, and that no histogram of at most 64 bins has narrower ones."""
    width = Fraction(2) ** histogram.exponent
    indices = [int(Fraction(value) // width) - histogram.start for value in values.tolist()]
    assert histogram.counts == tuple(np.bincount(indices).tolist())
    assert len(histogram.counts) <= 64
    half = [int(Fraction(value) // (width / 2)) for value in values.tolist()]
    is_finest = histogram.exponent in {-1074, 0}
    assert is_finest or max(half) - min(half) >= 64
    assert histogram.zeros == int((values == 0).sum())


@given(
    hnp.arrays(
        st.sampled_from([np.dtype("f4"), np.dtype("f8"), np.dtype("f2")]),
        st.integers(1, 30),
        elements={"allow_nan": False, "allow_infinity": False},
    ),
    st.integers(0, 30),
)
def test_a_histogram_is_exact_however_the_array_is_cut(values: np.ndarray, cut: int) -> None:
    parts = [measure(part, histogram=True) for part in (values[:cut], values[cut:])]
    found = parts[0].merge(parts[1]).histogram
    assert found == measure(values, histogram=True).histogram
    assert found is not None
    check_counts(found, values)


@given(hnp.arrays(st.sampled_from([np.int8, np.int64, np.uint64, np.uint8]), st.integers(1, 30)))
def test_a_histogram_of_integers_has_bins_of_whole_numbers(values: np.ndarray) -> None:
    found = measure(values, histogram=True).histogram
    assert found is not None
    assert found.exponent >= 0
    check_counts(found, values)


def test_a_histogram_leaves_out_what_is_not_finite_and_what_has_no_order() -> None:
    found = measure(np.array([1.0, np.nan, 1.0, np.inf]), histogram=True).histogram
    assert found is not None
    assert (found.low, found.counts) == (1.0, (2,))
    assert measure(np.array([np.nan]), histogram=True).histogram is None
    assert measure(np.array([1j]), histogram=True).histogram is None
    flags = measure(np.array([True, False, True]), histogram=True).histogram
    assert flags == Histogram(0, 0, (1, 2), zeros=1)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (np.zeros(40_000), np.ones(40_000, np.float32), 200.0),
        (np.array([1, 2**63], np.uint64), np.array([4, 2**63], np.uint64), 3.0),
        (np.array([0.0, np.nan, 1.0, 1.0]), np.array([3.0, 1.0, np.inf, 5.0]), 5.0),
        (np.array([1e300, 0.0]), np.array([-2e300, 4e300]), 5e300),
        (np.array([1 + 1j]), np.array([4 + 5j]), 5.0),
        (np.array([], np.int8), np.array([], np.int8), 0.0),
        (np.array([np.nan]), np.array([1.0]), 0.0),
    ],
    ids=str,
)
def test_the_distance_of_two_arrays(a: np.ndarray, b: np.ndarray, expected: float) -> None:
    found = distance(a, b)
    assert found is not None
    assert math.isclose(found, expected)


def test_dates_have_no_distance() -> None:
    date = np.array(["2020-01-01"], "datetime64[D]")
    assert distance(date, date) is None

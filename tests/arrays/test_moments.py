"""Sums that say how far two arrays are apart; a tolerance of comparisons."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from orbit_ckpt._src.arrays.compare import Arithmetic, Comparison, compare_values
from orbit_ckpt._src.arrays.moments import Moments, measure_difference

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "complex64", ml_dtypes.bfloat16])
def test_moments_are_those_of_numpy(dtype: Any) -> None:
    x, y = (
        (100 * (RNG.standard_normal((300, 7)) + 1j * RNG.standard_normal((300, 7)))).real.astype(
            dtype
        )
        for _ in range(2)
    )
    if dtype == "complex64":
        x, y = x + 1j * y, y - 2j * x
    a, b = x.astype(np.complex128).ravel(), y.astype(np.complex128).ravel()
    found = measure_difference(x, y)
    assert math.isclose(found.rms, np.sqrt(np.mean(np.abs(a - b) ** 2)), rel_tol=1e-9)
    assert math.isclose(found.relative, np.linalg.norm(a - b) / np.linalg.norm(a), rel_tol=1e-9)
    cosine = (a * b.conj()).sum().real / np.linalg.norm(a) / np.linalg.norm(b)
    assert found.cosine is not None
    assert math.isclose(found.cosine, cosine, rel_tol=1e-9)
    parts = [measure_difference(x[i : i + 100], y[i : i + 100]) for i in range(0, 300, 100)]
    assert math.isclose(parts[0].merge(parts[1]).merge(parts[2]).rms, found.rms, rel_tol=1e-12)


def test_moments_leave_out_what_is_not_finite() -> None:
    x = np.array([3.0, np.nan, np.inf, 1.0])
    y = np.array([0.0, 1.0, 1.0, -np.inf])
    assert measure_difference(x, y) == Moments(1, 9.0, 9.0, 0.0, 0.0)


def test_moments_of_zeros() -> None:
    zero, one = np.zeros(3), np.ones(3)
    assert measure_difference(zero, zero).relative == 0
    assert measure_difference(zero, one).relative == math.inf
    assert measure_difference(zero, one).cosine is None
    assert Moments().rms == 0


def test_a_large_array_is_measured_as_a_whole() -> None:
    x, y = RNG.standard_normal((2, 100_000))
    found = compare_values(x, y, Arithmetic.FLOAT, how=Comparison(measures=True)).moments
    assert found is not None
    assert found.size == 100_000
    assert math.isclose(found.rms, np.sqrt(np.mean((x - y) ** 2)))
    assert compare_values(x, y, Arithmetic.FLOAT).moments is None


@pytest.mark.parametrize(
    ("rtol", "atol", "differing", "within"),
    [(0, 0, 4, 0), (0.011, 0, 3, 1), (0, 0.5, 2, 2), (0.011, 0.5, 2, 2), (10, 10, 1, 3)],
)
def test_a_tolerance_is_that_of_numpy(
    rtol: float, atol: float, differing: int, within: int
) -> None:
    a = np.array([1.01, 0.4, 5.0, np.nan, 7.0, np.nan])
    b = np.array([1.0, 0.0, 1.0, 1.0, 7.0, np.nan])
    found = compare_values(a, b, Arithmetic.FLOAT, how=Comparison(rtol, atol))
    close = np.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
    assert found.differing == np.count_nonzero(~close) == differing
    assert found.within == within
    assert found.nan_mismatches == 1


def test_the_largest_difference_is_of_elements_beyond_the_tolerance() -> None:
    a, b = np.array([1000.0, 1.0, 3.0]), np.array([1001.0, 1.0, 2.5])
    found = compare_values(a, b, Arithmetic.FLOAT, how=Comparison(rtol=0.01))
    assert (found.max_abs_difference, found.index) == (0.5, (2,))
    same = compare_values(a, b, Arithmetic.FLOAT, how=Comparison(rtol=0.5))
    assert same.describe() == "2 of 3 differ within the tolerance"


def test_integers_have_a_tolerance_too() -> None:
    a, b = np.array([100, 5, 2**63], np.uint64), np.array([101, 9, 2**63], np.uint64)
    found = compare_values(a, b, Arithmetic.INTEGER, how=Comparison(atol=1))
    assert (found.differing, found.within, found.index) == (1, 1, (1,))

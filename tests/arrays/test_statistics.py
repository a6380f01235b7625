"""Statistics of arrays are those of numpy, however the array is cut."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from orbit_ckpt._src.arrays.statistics import ArrayStatistics, measure


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

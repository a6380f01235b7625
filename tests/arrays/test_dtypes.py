from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from orbit_ckpt._src.arrays.dtypes import (
    as_dtype,
    cast_array,
    is_lossless_kind,
    is_prng_dtype,
    logical_name,
    parse_dtype,
    storable,
    stored_dtype,
)


@pytest.mark.parametrize("name", ["float32", "bool", "bfloat16", "int4", "float8_e8m0fnu"])
def test_dtype_that_tensorstore_knows_is_stored_as_itself(name: str) -> None:
    assert stored_dtype(np.dtype(name)) == np.dtype(name)
    assert logical_name(np.dtype(name)) is None


@pytest.mark.parametrize(
    ("dtype", "stored", "name"),
    [
        (ml_dtypes.uint4, "uint8", "uint4"),
        (ml_dtypes.float8_e4m3, "uint8", "float8_e4m3"),
        (ml_dtypes.float6_e2m3fn, "uint8", "float6_e2m3fn"),
        ("datetime64[ns]", "int64", "M8[ns]"),
        (">m8[3D]", "int64", "m8[3D]"),
    ],
)
def test_other_dtype_is_stored_as_bits_of_its_width_under_a_name_that_gives_it_back(
    dtype: object, stored: str, name: str
) -> None:
    logical = as_dtype(dtype)
    assert stored_dtype(logical) == np.dtype(stored)
    assert logical_name(logical) == name
    assert np.dtype(name) == logical.newbyteorder("=")


def test_big_endian_is_stored_little_endian() -> None:
    assert stored_dtype(np.dtype(">f4")).str == "<f4"


@pytest.mark.parametrize("dtype", ["O", "U3", "S3", "V4", "longdouble", "clongdouble", "i4,f4"])
def test_dtype_without_a_portable_form_cannot_be_stored(dtype: str) -> None:
    assert not storable(np.dtype(dtype))
    with pytest.raises(TypeError, match="cannot be stored"):
        stored_dtype(np.dtype(dtype))


@pytest.mark.parametrize(
    ("name", "expected"), [("<f4", "f4"), ("|b1", "?"), (">i2", ">i2"), ("bfloat16", "bfloat16")]
)
def test_names_of_zarr_metadata_are_understood(name: str, expected: str) -> None:
    assert parse_dtype(name) == np.dtype(expected)


@pytest.mark.parametrize("name", ["|O", "<U4", "float33"])
def test_name_of_no_number_is_an_error(name: str) -> None:
    with pytest.raises(TypeError, match=r"not a numeric dtype|not understood"):
        parse_dtype(name)


@pytest.mark.parametrize(
    "form", ["bfloat16", jnp.bfloat16, ml_dtypes.bfloat16, np.dtype("bfloat16")], ids=repr
)
def test_anything_that_names_a_dtype_is_one(form: object) -> None:
    assert as_dtype(form) == np.dtype("bfloat16")


def test_only_typed_keys_have_a_prng_dtype() -> None:
    assert is_prng_dtype(jax.random.key(0).dtype)
    assert not is_prng_dtype(jax.random.PRNGKey(0).dtype)
    assert not is_prng_dtype(np.dtype("float32"))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("float64", "bfloat16", True),
        ("int64", "int8", True),
        ("uint8", "int4", True),
        ("bool", "int32", True),
        ("int32", "float8_e4m3fn", True),
        ("float32", "complex64", True),
        ("bool", "bool", True),
        ("float32", "int32", False),
        ("bfloat16", "int32", False),
        ("float8_e4m3", "int8", False),
        ("complex64", "float32", False),
        ("int32", "bool", False),
        ("float32", "bool", False),
    ],
)
def test_information_of_another_kind_is_not_dropped_unasked(
    source: str, target: str, expected: bool
) -> None:
    assert is_lossless_kind(np.dtype(source), np.dtype(target)) is expected


NUMBERS = ["int2", "uint4", "int8", "uint16", "int32", "int64", "uint64"]


@pytest.mark.parametrize("target", NUMBERS)
@pytest.mark.parametrize(
    "source", ["float8_e5m2", "bfloat16", "float16", ">f4", "float64", "int64"]
)
def test_a_number_that_does_not_fit_an_integer_is_never_cast(source: str, target: str) -> None:
    limits = ml_dtypes.iinfo(np.dtype(target))
    for exact in (limits.min - 1, limits.min, limits.max, limits.max + 1):
        if source == "int64" and not -(2**63) <= exact < 2**63:
            continue
        with np.errstate(over="ignore"):
            value = np.array([exact if source == "int64" else float(exact)]).astype(source)
        number = int(value[0]) if source == "int64" else float(value[0])
        if limits.min <= number <= limits.max:
            assert int(cast_array(value, target)[0]) == number
        else:
            with pytest.raises(ValueError, match="do not fit"):
                cast_array(value, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("int4", "uint2"),
        ("uint1", "int4"),
        ("uint4", "float6_e2m3fn"),
        ("float8_e8m0fnu", "float8_e5m2"),
        ("float8_e8m0fnu", "complex32"),
        ("float4_e2m1fn", "float8_e8m0fnu"),
        ("bcomplex32", "complex32"),
    ],
)
def test_numbers_are_cast_where_ml_dtypes_has_no_cast(source: str, target: str) -> None:
    value = np.ones(2, np.float32).astype(source)
    found = cast_array(value, target)
    assert found.dtype == target
    assert found.astype(np.complex64).tolist() == [1, 1]


@pytest.mark.parametrize("date", ["3000-01-01", "1600-01-01"])
def test_a_date_that_another_unit_cannot_hold_is_never_cast(date: str) -> None:
    with pytest.raises(ValueError, match=r"dates of dtype .* do not fit"):
        cast_array(np.array([date, "2000-01-01"], "M8[D]"), "M8[ns]")


@pytest.mark.parametrize("unit", ["Y", "M", "D", "s", "ns"])
def test_dates_that_fit_are_cast_to_any_unit(unit: str) -> None:
    dates = np.array(["1970-01-01", "NaT", "2001-01-01", "1950-01-01"], f"M8[{unit}]")
    for other in ("D", "s", "us", "ns"):
        cast = cast_array(dates, f"M8[{other}]")
        assert np.array_equal(cast.astype("M8[s]"), dates.astype("M8[s]"), equal_nan=True)

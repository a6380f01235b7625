"""Data types: their names, and how those that TensorStore lacks are stored.

A dtype has a *logical* form, which the user sees, and a *stored* form, which the zarr metadata
names. They differ for types that TensorStore (and with it Orbax) cannot store: their bits are kept
under an integer type of the same width, and the logical name is recorded beside the tree.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, cast

import ml_dtypes
import numpy as np

HostArray = np.ndarray[Any, np.dtype[Any]]
"""A numpy array of any dtype."""

DType = np.dtype[Any]

_NATIVE = frozenset(
    (
        *("bool", "int2", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
        *("int64", "uint64", "float16", "bfloat16", "float32", "float64"),
        *("complex64", "complex128", "float4_e2m1fn", "float8_e3m4", "float8_e4m3b11fnuz"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
        "float8_e8m0fnu",
    )
)
_FOREIGN = frozenset(
    (
        *("float8_e4m3", "float6_e2m3fn", "float6_e3m2fn", "uint4", "uint2", "uint1", "int1"),
        *("complex32", "bcomplex32"),
    )
)
_BITS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "int64"}


@functools.cache
def storable(dtype: DType) -> bool:
    """Whether arrays of a dtype can be written: numbers, bool, and dates without Python objects."""
    return dtype.kind in "mM" or dtype.name in _NATIVE or dtype.name in _FOREIGN


def why_not_storable(dtype: DType) -> str | None:
    """Return why arrays of a dtype cannot be written and what to do, None if they can."""
    if storable(dtype):
        return None
    advice = {
        "O": "convert it to numbers, or save its elements as leaves of their own",
        "U": "save a list of str instead",
        "S": "save a list of bytes instead",
        "T": "save a list of str instead",
        "V": "save its fields as leaves of their own",
    }.get(dtype.kind, "cast it to a dtype that JAX has, such as float64")
    return f"dtype {dtype} cannot be stored; {advice}"


@functools.cache
def stored_dtype(dtype: DType) -> DType:
    """Return the little-endian dtype under which arrays of a logical dtype are stored.

    Raises:
        TypeError: The dtype cannot be stored, such as strings, objects or `longdouble`.
    """
    if dtype.name in _NATIVE:
        return dtype.newbyteorder("<")
    if storable(dtype):
        return np.dtype(_BITS[dtype.itemsize])
    raise TypeError(f"dtype {dtype} cannot be stored")


@functools.cache
def logical_name(dtype: DType) -> str | None:
    """Return the name to record beside the tree, None if the stored dtype says it all."""
    if dtype.name in _NATIVE:
        return None
    return dtype.str.lstrip("<>=") if dtype.kind in "mM" else dtype.name


def parse_dtype(name: str) -> DType:
    """Return the dtype of a name as zarr metadata and sidecar files give it.

    Raises:
        TypeError: There is no numeric dtype of that name.
    """
    dtype = as_dtype(name.removeprefix("|"))
    if not storable(dtype):
        raise TypeError(f"{name!r} is not a numeric dtype")
    return dtype


def as_dtype(dtype_like: object) -> DType:
    """Return the dtype of anything that names one: `"bfloat16"`, `jnp.bfloat16`, `np.float16`.

    Raises:
        TypeError: There is none.
    """
    try:
        return np.dtype(cast(Any, dtype_like))
    except SyntaxError as error:  # numpy's for texts with commas
        raise TypeError(f"data type {dtype_like!r} not understood") from error


def cast_array(host: HostArray, dtype_like: object) -> HostArray:
    """Return values of another dtype; the same array if it has that dtype.

    Raises:
        ValueError: Numbers do not fit an integer dtype, or dates another unit; they would become
            other ones.
    """
    dtype = as_dtype(dtype_like)
    if host.dtype == dtype:
        return host
    is_integer = number_kind(dtype) == "int" and dtype.kind not in "mM"
    if is_integer and not _fits(host, dtype):
        raise ValueError(f"some of its numbers of dtype {host.dtype} do not fit {dtype}")
    if host.dtype.kind == dtype.kind and dtype.kind in "mM" and not np.all(dates_fit(host, dtype)):
        raise ValueError(f"some of its dates of dtype {host.dtype} do not fit {dtype}")
    try:
        return host.astype(dtype)
    except TypeError:  # between some of ml_dtypes' own there is no cast; each fits into these
        is_complex = number_kind(host.dtype) == "complex"
        return host.astype(np.complex64 if is_complex else np.float32).astype(dtype)


def dates_fit(dates: HostArray, dtype: DType) -> HostArray:
    """Return which dates, or times, another unit can hold; NaT always.

    What does not fit raises in NumPy 2.5, and becomes another date in earlier ones.
    """
    (unit, count), (other, other_count) = np.datetime_data(dates.dtype), np.datetime_data(dtype)
    if "generic" in (unit, other):  # numbers without a unit
        return np.ones(dates.shape, np.bool_)
    factor = _SECONDS[unit] * count / (_SECONDS[other] * other_count)
    converted = np.abs(dates.astype(np.int64).astype(np.float64)) * factor
    return (converted < 2.0**63) | np.isnat(dates)


_SECONDS = {
    "Y": 31556952.0,  # on average, as of a month: enough to tell what is far out of range
    "M": 2629746.0,
    "W": 604800.0,
    "D": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    **{unit: 1000.0**-n for n, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), start=1)},
}


def _fits(host: HostArray, dtype: DType) -> bool:
    """Whether all numbers are in the range of an integer dtype; fractions are cut off."""
    if not host.size or host.dtype.kind in "bmM" or number_kind(host.dtype) == "complex":
        return True
    is_numpys = host.dtype.isbuiltin != 2
    numbers = host if is_numpys else host.astype(np.float32)  # those of ml_dtypes
    limits = ml_dtypes.iinfo(dtype)
    # as Python's numbers: a float32 is compared with 2**31 - 1 as if that were 2**31
    least, most = numbers.min().item(), numbers.max().item()
    return bool(limits.min <= least and most <= limits.max)  # false for NaN


def number_dtype(value: object) -> DType:
    """Return the dtype of a Python number, also of one whose class is derived from Python's."""
    kinds = (bool, int, float, complex)
    return np.dtype(next(kind for kind in kinds if isinstance(value, kind)))


def python_scalar(value: HostArray) -> object:
    """Return the Python scalar; for ml_dtypes' numbers too, which numpy leaves as they are."""
    item: Any = value.item()
    if type(item).__module__ != "ml_dtypes":
        return item
    return float(item) if "float" in value.dtype.name else int(item)


def is_numeric_array(value: object) -> bool:
    """Whether a value is an array of NumPy that JAX can have; not one of text, dates or objects."""
    return isinstance(value, np.ndarray) and cast(HostArray, value).dtype.kind not in "SUOmM"


def is_prng_dtype(dtype: object) -> bool:
    """Whether a dtype is that of typed PRNG keys."""
    if isinstance(dtype, np.dtype):
        return False
    import jax  # noqa: PLC0415 - commands that need no JAX use this module

    return jax.numpy.issubdtype(cast(DType, dtype), jax.dtypes.prng_key)


def is_lossless_kind(source: DType, target: DType) -> bool:
    """Whether values of one dtype may be returned as another without being asked twice.

    True within a kind (float to narrower float, int to int), from bool to any number, and towards
    a more general kind (int to float to complex); false where information of another kind is
    dropped: float to int, complex to float, anything to bool.
    """
    if source.kind in "mM" or target.kind in "mM":
        return source.kind == target.kind
    order = {"bool": 0, "int": 1, "float": 2, "complex": 3}
    return order[number_kind(source)] <= order[number_kind(target)] and (
        number_kind(target) != "bool" or number_kind(source) == "bool"
    )


@functools.cache
def number_kind(dtype: DType) -> Literal["bool", "int", "float", "complex"]:
    """Return what sort of number a dtype holds; dates are none of them, and give "int"."""
    if dtype.kind == "b":
        return "bool"
    if dtype.kind == "c" or "complex" in dtype.name:
        return "complex"
    if dtype.kind == "f" or dtype.name.startswith(("float", "bfloat")):
        return "float"
    return "int"


def check_dtype(name: str, value: object) -> None:
    """Check an argument that is a dtype, or names one; None passes.

    Raises:
        TypeError: It is something else.
    """
    if value is None or isinstance(value, np.dtype):
        return
    try:
        if not is_prng_dtype(value):
            as_dtype(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} is {value!r}, which is no dtype. Give one such as jnp.bfloat16."
        ) from None

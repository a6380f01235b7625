"""Names of dtypes, and storage of those that TensorStore lacks.

A dtype has a *logical* form, which the user sees, and a *stored* form, which the zarr metadata
names. They differ for types that TensorStore (and so Orbax) cannot store: their bits are stored as
an integer type of the same width, and the logical name is recorded with the tree.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, cast

import ml_dtypes
import numpy as np
from typing_extensions import TypeIs

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
    """Return whether arrays of a dtype can be written: numbers, bool, dates; no Python objects."""
    return dtype.kind in "mM" or dtype.name in _NATIVE or dtype.name in _FOREIGN


def why_not_storable(dtype: DType) -> str | None:
    """Explain why arrays of a dtype cannot be written and what to do; None if they can."""
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
    """Return the little-endian dtype that stores arrays of a logical dtype.

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
    """Return the name to record with the tree, None if the stored dtype suffices."""
    if dtype.name in _NATIVE:
        return None
    return dtype.str.lstrip("<>=") if dtype.kind in "mM" else dtype.name


def parse_dtype(name: str) -> DType:
    """Return the dtype of a name in zarr metadata or a sidecar file.

    Raises:
        TypeError: No numeric dtype has that name.
    """
    dtype = as_dtype(name.removeprefix("|"))
    if not storable(dtype):
        raise TypeError(f"{name!r} is not a numeric dtype")
    return dtype


def as_dtype(dtype_like: object) -> DType:
    """Return the dtype that a value names: `"bfloat16"`, `jnp.bfloat16`, `np.float16`.

    Raises:
        TypeError: The value names none.
    """
    try:
        return np.dtype(cast(Any, dtype_like))
    except SyntaxError as error:  # numpy raises it for text with commas
        raise TypeError(f"data type {dtype_like!r} not understood") from error


def cast_array(host: HostArray, dtype_like: object) -> HostArray:
    """Cast an array; return it unchanged if it already has the dtype.

    Raises:
        ValueError: A number does not fit an integer dtype, or a date another unit, and would
            change.
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
    except TypeError:  # ml_dtypes lacks casts between some of its types; each fits these
        is_complex = number_kind(host.dtype) == "complex"
        return host.astype(np.complex64 if is_complex else np.float32).astype(dtype)


def dates_fit(dates: HostArray, dtype: DType) -> HostArray:
    """Return a mask of the dates, or times, that another unit can hold; NaT always fits.

    One that does not fit raises in NumPy 2.5, and becomes another date in earlier versions.
    """
    (unit, count), (other, other_count) = np.datetime_data(dates.dtype), np.datetime_data(dtype)
    if "generic" in (unit, other):  # numbers without a unit
        return np.ones(dates.shape, np.bool_)
    factor = _SECONDS[unit] * count / (_SECONDS[other] * other_count)
    converted = np.abs(dates.astype(np.int64).astype(np.float64)) * factor
    return (converted < 2.0**63) | np.isnat(dates)


_SECONDS = {
    "Y": 31556952.0,  # averages, as for a month, suffice to detect what is far out of range
    "M": 2629746.0,
    "W": 604800.0,
    "D": 86400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    **{unit: 1000.0**-n for n, unit in enumerate(("ms", "us", "ns", "ps", "fs", "as"), start=1)},
}


def _fits(host: HostArray, dtype: DType) -> bool:
    """Return whether all numbers are in the range of an integer dtype, fractions cut off."""
    if not host.size or host.dtype.kind in "bmM" or number_kind(host.dtype) == "complex":
        return True
    is_numpys = host.dtype.isbuiltin != 2
    numbers = host if is_numpys else host.astype(np.float32)  # ml_dtypes' floats
    limits = ml_dtypes.iinfo(dtype)
    # as Python numbers: numpy would round 2**31 - 1 to a float32 of 2**31
    least, most = numbers.min().item(), numbers.max().item()
    return bool(limits.min <= least and most <= limits.max)  # false for NaN


def number_dtype(value: object) -> DType:
    """Return the dtype of a Python number, or of an instance of a subclass."""
    kinds = (bool, int, float, complex)
    return np.dtype(next(kind for kind in kinds if isinstance(value, kind)))


def python_scalar(value: HostArray) -> object:
    """Convert to a Python scalar; ml_dtypes' numbers too, which numpy leaves as they are."""
    item: Any = value.item()
    if type(item).__module__ != "ml_dtypes":
        return item
    return float(item) if "float" in value.dtype.name else int(item)


def is_host_array(value: object) -> TypeIs[HostArray]:
    """Return whether a value is a NumPy array."""
    return isinstance(value, np.ndarray)


def is_numeric_array(value: object) -> bool:
    """Return whether a value is a NumPy array that JAX can hold: no text, dates or objects."""
    return is_host_array(value) and value.dtype.kind not in "SUOmM"


def is_prng_dtype(dtype: object) -> bool:
    """Return whether a dtype is that of typed PRNG keys."""
    if isinstance(dtype, np.dtype):
        return False
    import jax  # noqa: PLC0415 - commands that need no JAX use this module

    return jax.numpy.issubdtype(cast(DType, dtype), jax.dtypes.prng_key)


def is_lossless_kind(source: DType, target: DType) -> bool:
    """Return whether a cast between two dtypes needs no explicit permission.

    True within a kind (float to narrower float, int to int), from bool to any number, and towards a
    more general kind (int to float to complex); false where information of another kind is dropped:
    float to int, complex to float, anything to bool.
    """
    if source.kind in "mM" or target.kind in "mM":
        return source.kind == target.kind
    order = {"bool": 0, "int": 1, "float": 2, "complex": 3}
    return order[number_kind(source)] <= order[number_kind(target)] and (
        number_kind(target) != "bool" or number_kind(source) == "bool"
    )


@functools.cache
def number_kind(dtype: DType) -> Literal["bool", "int", "float", "complex"]:
    """Return the kind of number that a dtype holds; "int" for dates, which are not numbers."""
    if dtype.kind == "b":
        return "bool"
    if dtype.kind == "c" or "complex" in dtype.name:
        return "complex"
    if dtype.kind == "f" or dtype.name.startswith(("float", "bfloat")):
        return "float"
    return "int"


def check_dtype(name: str, value: object) -> None:
    """Check an argument that is or names a dtype; None passes.

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

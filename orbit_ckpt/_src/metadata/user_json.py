"""JSON of users' values, which may be numpy and JAX scalars.

Separate from `codec`, which reads documents without numpy.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype, python_scalar


def encode_user_json(value: object) -> bytes:
    """Encode a value that Python's own encoder accepts, including NaN.

    Zero-dimensional numpy and JAX arrays are written as numbers.

    Raises:
        TypeError: The encoder does not accept the value.
        ValueError: The value refers to itself.
    """
    return json.dumps(value, separators=(",", ":"), default=plain_scalar).encode()


def copy_json(value: object) -> Any:  # decoded JSON
    """Copy a value by a round trip through JSON.

    Raises:
        TypeError: It is not JSON.
        ValueError: It refers to itself.
    """
    return json.loads(encode_user_json(value))


def plain_scalar(value: object) -> object:
    """Convert a numpy scalar or a zero-dimensional array to a Python scalar.

    Raises:
        TypeError: The value is something else, or not a number that JSON can hold.
    """
    dtype: object = getattr(value, "dtype", None)
    if dtype is not None and getattr(value, "shape", None) == () and not is_prng_dtype(dtype):
        scalar = python_scalar(np.asarray(value))
        if isinstance(scalar, bool | int | float | str):
            return scalar
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

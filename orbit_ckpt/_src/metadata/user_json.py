"""JSON of values that users give, which may be scalars of numpy and JAX.

Apart from `codec`, which reads documents without numpy.
"""

from __future__ import annotations

import json

import numpy as np

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype, python_scalar


def encode_user_json(value: object) -> bytes:
    """Return any value that Python's own encoder takes, NaN included, as JSON.

    Arrays without dimensions, numpy's and JAX's, are written as numbers.

    Raises:
        TypeError: It does not take the value.
        ValueError: The value refers to itself.
    """
    return json.dumps(value, separators=(",", ":"), default=plain_scalar).encode()


def copy_json(value: object) -> object:
    """Return a value as it would come back from JSON.

    Raises:
        TypeError: It is not JSON.
        ValueError: It refers to itself.
    """
    return json.loads(encode_user_json(value))


def plain_scalar(value: object) -> object:
    """Return the Python scalar of a numpy scalar, or of an array without dimensions.

    Raises:
        TypeError: The value is something else, or has no number that JSON can hold.
    """
    dtype: object = getattr(value, "dtype", None)
    if dtype is not None and getattr(value, "shape", None) == () and not is_prng_dtype(dtype):
        scalar = python_scalar(np.asarray(value))
        if isinstance(scalar, bool | int | float | str):
            return scalar
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

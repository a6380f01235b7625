"""Describe leaves by shape, dtype and sharding, for targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.pytree.restore.target import inner_sharding
from orbit_ckpt._src.runtime.checks import as_flag, check_callable

STANDARD_ARRAY_TYPES = (int, float, np.ndarray, jax.Array)
"""The types of arrays and numbers that Orbax's `construct_restore_args` knows."""


def is_scalar(x: object) -> bool:
    """Return whether a value is a Python number or a NumPy scalar."""
    return isinstance(x, int | float | np.number)


def to_shape_dtype_struct(
    arr: Any,
    dtype: DType | None = None,
    scalar_dtype: Callable[[Any], object] | None = None,
    support_format: bool = False,
) -> Any:  # a struct, or the argument itself
    """Return a leaf's shape, dtype and sharding for use in a target; others stay unchanged.

    Args:
        arr: An array, `jax.ShapeDtypeStruct`, `ArrayRestoreArgs`, or leaf metadata of a checkpoint.
        dtype: Another dtype than the leaf's.
        scalar_dtype: Converts Python and numpy scalars.
        support_format: Whether the result has the array's layout in memory, too.
    """
    advice = "Give a function of a Python or numpy scalar."
    check_callable("scalar_dtype", scalar_dtype, advice)
    if is_scalar(arr):
        return arr if scalar_dtype is None else scalar_dtype(arr)
    shape = getattr(arr, "shape", None)
    if shape is None:
        shape = getattr(arr, "global_shape", None)
    if shape is None or not hasattr(arr, "dtype"):
        return arr
    sharding: Any = inner_sharding(getattr(arr, "sharding", None))
    if isinstance(sharding, ShardingMetadata):
        sharding = sharding.to_jax_sharding()
    memory = getattr(arr, "format", None)
    if as_flag("support_format", support_format) and getattr(memory, "layout", None) is not None:
        sharding = memory
    return jax.ShapeDtypeStruct(shape, dtype or arr.dtype, sharding=sharding)

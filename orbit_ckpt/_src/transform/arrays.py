"""Array operations of rules, and their effect on shapes and dtypes of unread arrays."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orbit_ckpt._src.arrays.dtypes import as_dtype, cast_array, python_scalar
from orbit_ckpt._src.transform.nodes import UNKNOWN, ArrayInfo, Shape

_NUMBERS = np.ndarray | np.number | np.bool_ | np.datetime64 | bool | int | float | complex


def as_array(value: object) -> Any:
    """Convert an array or a number to an array; raise TypeError for anything else."""
    if isinstance(value, jax.Array):
        return value
    if not isinstance(value, _NUMBERS):
        raise TypeError(f"{type(value).__name__} is no array")
    return np.asarray(typing.cast(object, value))


def stack(*values: Any, axis: int) -> Any:
    """Stack arrays along a new axis.

    Raises:
        ValueError: Shapes or dtypes differ.
    """
    parts = [as_array(value) for value in values]
    _check_alike([(part.shape, part.dtype) for part in parts])
    return _module(parts[0]).stack(parts, axis)


def stack_info(infos: Sequence[ArrayInfo], axis: int) -> ArrayInfo:
    """Return the shape and dtype of a stack, None unless known for all parts.

    Raises:
        ValueError: Shapes or dtypes differ, or the axis does not exist.
    """
    known = [(info.shape, info.dtype) for info in infos if info.shape is not None]
    _check_alike(known)
    if len(known) < len(infos):
        return UNKNOWN
    shape = list(known[0][0])
    shape.insert(_axis(axis, len(shape) + 1), len(infos))
    return ArrayInfo(tuple(shape), known[0][1])


def unstack(value: Any, axis: int) -> list[Any]:
    """Cut an array along an axis, which is removed; the parts are views."""
    rows = _module(value).moveaxis(as_array(value), axis, 0)
    return [rows[index, ...] for index in range(len(rows))]


def unstack_info(info: ArrayInfo, axis: int) -> tuple[int, ArrayInfo]:
    """Return the number of parts along an axis, and the shape and dtype of each.

    Raises:
        ValueError: The shape is unknown or has no such axis.
    """
    if info.shape is None:
        raise ValueError("its shape is known only once it has been read; use Split with names")
    shape = list(info.shape)
    count = shape.pop(_axis(axis, len(shape)))
    return count, ArrayInfo(tuple(shape), info.dtype)


def split(value: Any, count: int, axis: int) -> list[Any]:
    """Cut an array into equal parts, as views."""
    return list(_module(value).split(as_array(value), count, axis))


def split_info(info: ArrayInfo, count: int, axis: int) -> ArrayInfo:
    """Return the shape and dtype of each part.

    Raises:
        ValueError: The axis cannot be cut into equal parts.
    """
    if info.shape is None:
        return UNKNOWN
    shape = list(info.shape)
    axis = _axis(axis, len(shape))
    if shape[axis] % count:
        raise ValueError(f"{shape[axis]} elements cannot be cut into {count} equal parts")
    shape[axis] //= count
    return ArrayInfo(tuple(shape), info.dtype)


def transpose(value: Any, axes: Sequence[int] | None) -> Any:
    """Permute the axes of an array."""
    turned = _module(value).transpose(as_array(value), axes)
    return turned if isinstance(turned, jax.Array) else np.asarray(turned, order="C")


def transpose_info(info: ArrayInfo, axes: Sequence[int] | None) -> ArrayInfo:
    """Return the shape and dtype of a transposed array.

    Raises:
        ValueError: `axes` are not the axes of the array.
    """
    if info.shape is None:
        return UNKNOWN
    rank = len(info.shape)
    order = list(range(rank))[::-1] if axes is None else [_axis(axis, rank) for axis in axes]
    if sorted(order) != list(range(rank)):
        raise ValueError(f"axes {axes} are not those of an array of shape {info.shape}")
    return ArrayInfo(tuple(info.shape[axis] for axis in order), info.dtype)


def cast(value: Any, dtype: object) -> Any:
    """Cast an array or scalar; leave anything that is not a number unchanged."""
    if not isinstance(value, _NUMBERS):
        return value
    host = cast_array(np.asarray(typing.cast(object, value)), dtype)
    if isinstance(value, np.ndarray):
        return host
    return host[()] if isinstance(value, np.generic) else python_scalar(host)


def cast_info(info: ArrayInfo, dtype: object) -> ArrayInfo:
    """Return the shape and dtype of a cast array."""
    return info if info.shape is None else ArrayInfo(info.shape, as_dtype(dtype))


def _module(value: object) -> Any:
    """Return the module that computes with a value; numpy cannot handle typed keys."""
    return jnp if isinstance(value, jax.Array) else np


def _check_alike(kinds: Sequence[tuple[Shape, object]]) -> None:
    if len(set(kinds)) > 1:
        shown = ", ".join(f"{dtype}{list(shape)}" for shape, dtype in dict.fromkeys(kinds))
        raise ValueError(f"the parts differ: {shown}")


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"there is no axis {axis}, an array of {rank} dimensions was expected")
    return axis % rank

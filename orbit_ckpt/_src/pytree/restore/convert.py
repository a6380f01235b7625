"""Convert values in memory to what a restore requests: their dtype, shape and place."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import jax
import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray, as_dtype, is_prng_dtype, python_scalar
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.sharding import check_divides
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import TreeMismatchError
from orbit_ckpt._src.tree.keypath import KeyPath, format_path
from orbit_ckpt._src.type_handlers.array_io import cast_host
from orbit_ckpt._src.type_handlers.array_target import (
    ArrayRestoreArgs,
    check_width,
    requested_sharding,
)
from orbit_ckpt._src.type_handlers.base import LoadBatch, RestoreArgs
from orbit_ckpt._src.type_handlers.lazy import LazyArray

_SCALARS = (bool, int, float, complex)
_HOST_TYPES = (np.ndarray, np.generic, *_SCALARS)


def convert_value(batch: LoadBatch, path: KeyPath, value: object, arg: RestoreArgs) -> object:
    """Convert a value as requested; strings and values of other types stay unchanged.

    Raises:
        TreeMismatchError: Another shape is requested, or numbers do not fit the dtype.
        UnsupportedLeafError: A dtype needs JAX's 64-bit mode, which is off.
        ValueError: The sharding does not divide the shape.
    """
    if isinstance(value, LazyArray):
        value = value.get()
    if not _is_numeric(value):
        return value
    if is_keys(value):
        return _placed_keys(path, cast(jax.Array, value), arg)
    if isinstance(arg, ArrayRestoreArgs) or arg.restore_type is jax.Array:
        return _on_devices(batch, path, value, as_array_args(arg))
    wanted = arg.restore_type
    is_known = isinstance(wanted, type) and issubclass(wanted, _HOST_TYPES)
    if not is_known and arg.dtype is None:
        return value
    if not is_known and isinstance(value, jax.Array):
        stays = ArrayRestoreArgs(dtype=arg.dtype, sharding=value.sharding)
        return _on_devices(batch, path, value, stays)
    return _on_host(path, value, arg, cast(type, wanted) if is_known else type(value))


def _is_numeric(value: object) -> bool:
    return isinstance(value, (jax.Array, *_HOST_TYPES))


def is_keys(value: object) -> bool:
    """Return whether a value is an array of typed PRNG keys."""
    return isinstance(value, jax.Array) and is_prng_dtype(value.dtype)


def as_array_args(arg: RestoreArgs) -> ArrayRestoreArgs:
    """Convert arguments to those of a JAX array."""
    return arg if isinstance(arg, ArrayRestoreArgs) else ArrayRestoreArgs(dtype=arg.dtype)


def _on_host(path: KeyPath, value: object, arg: RestoreArgs, kind: type) -> object:
    host = cast_host(np.asarray(value), arg.dtype, path)
    if issubclass(kind, np.ndarray):
        return host
    if host.ndim:
        raise _other_shape(path, (), host.shape)
    if issubclass(kind, np.generic):
        return host[()] if arg.dtype is not None else cast_host(host, kind, path)[()]
    number = python_scalar(host)
    return number if arg.restore_type is None else cast(Callable[[object], object], kind)(number)


def _on_devices(batch: LoadBatch, path: KeyPath, value: object, arg: ArrayRestoreArgs) -> jax.Array:
    sharding = requested_sharding(arg, path)
    if isinstance(value, jax.Array) and _is_as_wanted(value, arg, sharding):
        return value
    host = _fitted(path, cast_host(np.asarray(value), arg.dtype, path), arg)
    check_width(path, host.dtype)
    if not isinstance(sharding, jax.sharding.Sharding):
        sharding = batch.resolver.resolve(sharding, host.shape)
    return _put(path, host, sharding)


def _placed_keys(path: KeyPath, keys: jax.Array, arg: RestoreArgs) -> jax.Array:
    sharding = requested_sharding(arg, path) if isinstance(arg, ArrayRestoreArgs) else None
    if not isinstance(sharding, jax.sharding.Sharding) or sharding == keys.sharding:
        return keys
    return _put(path, keys, sharding)


def _put(path: KeyPath, value: HostArray | jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    try:
        check_divides(sharding, value.shape, value.ndim)
    except ValueError as error:
        raise ValueError(f"{format_path(path)}: {error}") from error
    return jax.device_put(value, sharding)  # pyright: ignore[reportUnknownMemberType] - partly untyped


def _fitted(path: KeyPath, host: HostArray, arg: ArrayRestoreArgs) -> HostArray:
    """Return an array of the requested shape, padded with zeros or cut if allowed."""
    shape = host.shape if arg.global_shape is None else tuple(arg.global_shape)
    if shape == host.shape:
        return host
    if arg.strict or len(shape) != host.ndim:
        raise _other_shape(path, shape, host.shape)
    result = np.zeros(shape, host.dtype)
    common = tuple(slice(min(pair)) for pair in zip(shape, host.shape, strict=True))
    result[common] = host[common]
    return result


def _other_shape(path: KeyPath, wanted: Shape, found: Shape) -> TreeMismatchError:
    label = format_path(path)
    return TreeMismatchError(
        f"{label}: shape {wanted} is asked for, the value has shape {found}. Give a target of "
        "that shape, or strict=False to pad or cut JAX arrays of as many dimensions.",
        paths=[label],
    )


def _is_as_wanted(
    value: jax.Array,
    arg: ArrayRestoreArgs,
    sharding: jax.sharding.Sharding | ShardingMetadata | None,
) -> bool:
    return (
        (arg.dtype is None or value.dtype == as_dtype(arg.dtype))
        and (sharding is None or sharding == value.sharding)
        and (arg.global_shape is None or tuple(arg.global_shape) == value.shape)
    )

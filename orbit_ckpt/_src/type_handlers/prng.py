"""Typed PRNG keys of JAX: their data, and the implementation that makes keys of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import jax

from orbit_ckpt._src.arrays.dtypes import DType


def key_data(keys: jax.Array) -> jax.Array:
    """Return the data of typed keys, which has one or more trailing dimensions."""
    return jax.random.key_data(keys)


def key_impl(keys: jax.Array) -> str:
    """Return the name of the keys' implementation, `threefry2x32` or `rbg` for example."""
    return str(cast(object, jax.random.key_impl(keys)))


def wrap_keys(data: jax.Array, impl: str | None) -> jax.Array:
    """Convert data to typed keys; without an implementation return the data itself."""
    return data if impl is None else jax.random.wrap_key_data(data, impl=impl)


@functools.cache
def key_type(impl: str) -> tuple[DType, int]:
    """Return the dtype of typed keys and the number of trailing dimensions of their data.

    Touches no device.

    Raises:
        ValueError: JAX has no implementation of that name.
    """
    eval_shape = cast(Callable[..., jax.ShapeDtypeStruct], jax.eval_shape)
    key = eval_shape(lambda: jax.random.key(0, impl=impl))
    return cast(DType, key.dtype), len(eval_shape(jax.random.key_data, key).shape)


def unsupported_key(keys: jax.Array) -> str | None:
    """Explain why keys cannot be stored, None if they can.

    An implementation without a registered name cannot be found again on restore.
    """
    impl = cast(object, jax.random.key_impl(keys))
    if isinstance(impl, str):
        return None
    return f"its PRNG implementation {impl} is not registered under a name"

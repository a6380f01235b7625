"""Shardings to place arrays with on the devices here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

_put = cast(Callable[[object, Sharding], jax.Array], jax.device_put)


def place(value: object, sharding: Sharding) -> jax.Array:
    """Return an array with a sharding."""
    return _put(value, sharding)


def shardings_of(value: jax.Array) -> Sequence[Sharding]:
    """Return shardings that an array can have: one device, replicated, and along every axis."""
    devices = jax.devices()
    mesh = Mesh(devices, ("x",))
    axes = [axis for axis, length in enumerate(value.shape) if length % len(devices) == 0]
    specs = [PartitionSpec(*[None] * axis, "x") for axis in axes]
    return [
        SingleDeviceSharding(devices[-1]),
        *(NamedSharding(mesh, spec) for spec in (PartitionSpec(), *specs)),
    ]

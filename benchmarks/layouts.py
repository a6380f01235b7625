"""Layouts of matrices over eight devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

DEVICES = 8


def layout(name: str) -> Sharding:
    """Return a layout: 2x4 or 4x2 blocks, 8 groups of rows or columns, 8 replicas or one device.

    The blocks of `4x2` are on the mesh of `2x4` with its axes swapped.
    """
    devices = np.array(jax.devices()[:DEVICES])
    grid, line = devices.reshape(2, 4), Mesh(devices, ("x",))
    match name:
        case "2x4":
            return NamedSharding(Mesh(grid, ("x", "y")), PartitionSpec("x", "y"))
        case "4x2":
            return NamedSharding(Mesh(grid.T, ("y", "x")), PartitionSpec("y", "x"))
        case "rows":
            return NamedSharding(line, PartitionSpec("x", None))
        case "columns":
            return NamedSharding(line, PartitionSpec(None, "x"))
        case "replicated":
            return NamedSharding(line, PartitionSpec())
        case "device":
            return SingleDeviceSharding(jax.devices()[0])
        case _:
            raise ValueError(f"unknown layout {name!r}")


def describe_on(name: str, tree: Any) -> Any:
    """Return shapes and dtypes of a tree of matrices, with a layout's sharding."""
    sharding = layout(name)

    def describe(leaf: jax.Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(describe, tree)

"""Orbax's restore arguments for JAX arrays."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, PartitionSpec

from orbit_ckpt._src.arrays.dtypes import check_dtype
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.runtime.checks import as_flag, check_axes
from orbit_ckpt._src.type_handlers.base import RestoreArgs


@dataclass
class ArrayRestoreArgs(RestoreArgs):
    """How one leaf is restored as a JAX array.

    The sharding is that of `mesh` and `mesh_axes`, else `sharding`, else the recorded one if its
    devices exist here, else the default device.

    Attributes:
        restore_type: `jax.Array`; None leaves a leaf saved as a numpy array one, unless a fallback
            sharding is given.
        mesh: Devices to restore on.
        mesh_axes: Partitioning over `mesh`.
        sharding: Requested sharding, JAX's or as recorded in a checkpoint.
        global_shape: Requested shape; None for the saved one.
        shape: Another name for `global_shape`.
        strict: Whether a different shape is an error; else the array is padded with zeros or cut.
    """

    restore_type: object = jax.Array
    mesh: Mesh | None = None
    mesh_axes: PartitionSpec | None = None
    sharding: jax.sharding.Sharding | ShardingMetadata | None = None
    global_shape: Shape | None = None
    shape: Shape | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        check_dtype("ArrayRestoreArgs.dtype", self.dtype)
        if (self.mesh is None) != (self.mesh_axes is None):
            alone = "mesh" if self.mesh_axes is None else "mesh_axes"
            warnings.warn(
                f"ArrayRestoreArgs: {alone}= alone does nothing; give both mesh= and mesh_axes=, "
                "or sharding=NamedSharding(mesh, PartitionSpec(...)).",
                stacklevel=3,
            )
        if not isinstance(self.strict, bool):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's value
            self.strict = as_flag("ArrayRestoreArgs.strict", self.strict)
        if not isinstance(self.shape, tuple | None):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            check_axes("ArrayRestoreArgs.shape", self.shape)
        if not isinstance(self.global_shape, tuple | None):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            check_axes("ArrayRestoreArgs.global_shape", self.global_shape)
        if self.shape is None:
            self.shape = self.global_shape
        elif self.global_shape is None:
            self.global_shape = self.shape
        elif tuple(self.shape) != tuple(self.global_shape):
            raise ValueError(
                f"shape={self.shape} and global_shape={self.global_shape} mean the same and must "
                "match"
            )

"""Restore arguments for JAX arrays, and the plan of a restore: what to read, where to place it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from msgspec import Struct

from orbit_ckpt._src.arrays.broadcast import Pieces
from orbit_ckpt._src.arrays.dtypes import DType, HostArray, as_dtype, check_dtype
from orbit_ckpt._src.arrays.recorded_sharding import (
    NamedShardingMetadata,
    ShardingMetadata,
    SingleDeviceShardingMetadata,
)
from orbit_ckpt._src.arrays.sharding import as_sharding, check_divides
from orbit_ckpt._src.arrays.slices import Region, Shape, from_index, whole
from orbit_ckpt._src.arrays.transfer import local_regions
from orbit_ckpt._src.errors import TreeMismatchError, UnsupportedLeafError
from orbit_ckpt._src.runtime.checks import as_flag, check_axes
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.tree.keypath import KeyPath, format_path
from orbit_ckpt._src.type_handlers.array_io import cast_host, default_restore_args
from orbit_ckpt._src.type_handlers.base import (
    LoadBatch,
    ParamInfo,
    RestoreArgs,
    load_batch_of,
    logical_dtype,
)
from orbit_ckpt._src.type_handlers.described import key_type_of, layouts_of
from orbit_ckpt._src.type_handlers.prng import wrap_keys

_SHARDINGS = (
    SingleDeviceSharding,
    NamedShardingMetadata,
    SingleDeviceShardingMetadata,
)
"""Types that need no conversion."""

_WIDE_BYTES = 8
"""Narrower dtypes need no 64-bit mode."""


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


class Share(Struct, frozen=True):
    """What this process reads of an array that several processes read together.

    Attributes:
        axes: The mesh axes over which they send it to one another.
        pieces: The regions that this process reads, by the device that sends them.
    """

    axes: Sequence[str]
    pieces: Pieces


class Sharing(Protocol):
    """Divides the reading of arrays among processes."""

    def axes(self, sharding: jax.sharding.Sharding, dtype: DType) -> Sequence[str]:
        """Return the mesh axes over which an array could be sent; () for none."""
        ...

    def share(
        self, sharding: jax.sharding.Sharding, shape: Shape, dtype: DType, chunk_shape: Shape
    ) -> Share | None:
        """Return what this process reads of the next array, None if all that it needs."""
        ...


class Placement(Struct, frozen=True):
    """The parts of an array that this process reads.

    Attributes:
        regions: The distinct parts; in a padded array they may reach beyond the stored one.
        stored: Their stored subregions, in the same order; None if empty.
        reads: The stored subregions that are not empty.
        on_host: Whether the parts stay in host memory as they were read.
        share: Why they are not those of its devices; None if they are.
    """

    regions: Sequence[Region]
    stored: Sequence[Region | None]
    reads: Sequence[Region]
    on_host: bool
    share: Share | None = None


class ArrayTarget(Struct, frozen=True, gc=False):
    """How one stored array is restored; a struct, because there is one per leaf.

    Attributes:
        path: Where the leaf sits.
        shape: Its shape.
        logical: The dtype that its stored bytes represent.
        dtype: The dtype to cast to, None for the logical one.
        sharding: Its sharding.
        placement: The parts that this process reads.
        read: The read that provides them.
        key_impl: PRNG implementation if it holds the data of typed keys.
    """

    path: KeyPath
    shape: Shape
    logical: DType
    dtype: object
    sharding: jax.sharding.Sharding
    placement: Placement
    read: ArrayRead
    key_impl: str | None

    def place(self, values: Sequence[HostArray]) -> jax.Array:
        """Put the array on its devices, from the values of the regions that were read.

        Nobody else has these values, so the CPU backend keeps them instead of copying.
        """
        parts = self.parts(values)
        if len(parts) == 1:
            (part,) = parts.values()
            array = jax.make_array_from_callback(self.shape, self.sharding, lambda _: part)
        elif parts:
            array = jax.make_array_from_callback(
                self.shape,
                self.sharding,
                lambda index: parts[from_index(index or (), self.shape)],
            )
        else:  # all parts are on other processes, so none determines the dtype
            array = jax.make_array_from_single_device_arrays(
                self.shape, self.sharding, [], dtype=self.final_dtype
            )
        return wrap_keys(array, self.key_impl)

    @property
    def final_dtype(self) -> DType:
        """The dtype of the array, for keys that of their data."""
        return self.logical if self.dtype is None else as_dtype(self.dtype)

    @property
    def is_dropped(self) -> bool:
        """Whether the data read is converted: cast, padded or copied to a device."""
        return not self.placement.on_host or (
            self.dtype is not None and self.final_dtype != self.logical
        )

    def parts(self, values: Sequence[HostArray]) -> dict[Region, HostArray]:
        """Return the values of every region, from those that were read."""
        remaining = iter(values)
        parts: dict[Region, HostArray] = {}
        for region, stored in zip(self.placement.regions, self.placement.stored, strict=True):
            if stored == region:
                host = next(remaining)
            else:
                host = np.zeros(region.shape, self.read.layout.dtype)
                if stored is not None:
                    host[stored.within(region).slices] = next(remaining)
            if host.dtype != self.logical:
                host = host.view(self.logical)
            parts[region] = cast_host(host, self.dtype, self.path)
        return parts


def plan_targets(
    infos: Sequence[ParamInfo],
    args: Sequence[RestoreArgs] | None,
    sharing: Sharing | None = None,
) -> list[ArrayTarget]:
    """Plan how arrays are restored.

    Args:
        infos: The leaves.
        args: How each is restored, None for as saved.
        sharing: How the reading is divided among processes; None for not at all.

    Raises:
        TreeMismatchError: One has another shape than the requested one.
        UnsupportedLeafError: A dtype needs JAX's 64-bit mode, which is off.
        ValueError: A sharding does not divide a shape.
    """
    plan = _Planner(load_batch_of(infos[0]), sharing)
    return list(map(plan.target, infos, default_restore_args(infos, args), layouts_of(infos)))


class _Planner:
    """Plans how arrays are restored."""

    def __init__(self, batch: LoadBatch, sharing: Sharing | None) -> None:
        self._batch = batch
        self._sharing = sharing
        self._placements: dict[object, Placement] = {}

    def target(self, info: ParamInfo, arg: RestoreArgs, layout: ZarrArray) -> ArrayTarget:
        """Plan how one array is restored.

        Raises:
            TreeMismatchError: It has another shape than the requested one.
            UnsupportedLeafError: Its dtype needs JAX's 64-bit mode, which is off.
            ValueError: The sharding does not divide its shape.
        """
        wanted = arg if isinstance(arg, ArrayRestoreArgs) else self._array_args(arg.dtype)
        record = self._batch.arrays.get(info.name)
        impl = record.random_key_impl if record is not None else None
        shape = layout.shape if impl is not None else wanted_shape(info, wanted, layout)
        logical = logical_dtype(info, layout.dtype)
        dtype = None if impl is not None else wanted.dtype
        check_width(info.location, logical if dtype is None else dtype)
        sharding = self._sharding(info, wanted, shape)
        trailing = 0 if impl is None else key_type_of(info, layout.dtype)[1]
        try:
            placement = self._placement(sharding, shape, layout.shape, len(shape) - trailing)
        except ValueError as error:
            raise ValueError(f"{info.label}: {error}") from error
        if self._sharing is not None:
            final = logical if dtype is None else as_dtype(dtype)
            share = self._sharing.share(sharding, shape, final, layout.chunk_shape)
            if share is not None:
                placement = _place_pieces(share, layout.shape)
        read = ArrayRead(info.location, info.name, layout, placement.reads)
        return ArrayTarget(info.location, shape, logical, dtype, sharding, placement, read, impl)

    def _array_args(self, dtype: object) -> ArrayRestoreArgs:
        """Return arguments that only request a dtype."""
        if dtype is None:
            return _AS_SAVED
        return ArrayRestoreArgs(dtype=dtype)

    def _sharding(
        self, info: ParamInfo, arg: ArrayRestoreArgs, shape: Shape
    ) -> jax.sharding.Sharding:
        wanted = requested_sharding(arg, info.location)
        if isinstance(wanted, jax.sharding.Sharding):
            return wanted
        recorded = wanted or self._batch.shardings.get(info.name)
        return self._batch.resolver.resolve(recorded, shape)

    def _placement(
        self, sharding: jax.sharding.Sharding, shape: Shape, stored: Shape, rank: int
    ) -> Placement:
        key = sharding, shape, stored, rank
        if key not in self._placements:
            check_divides(sharding, shape, rank)
            held = local_regions(sharding, shape)
            regions, parts = _within(held.values(), stored)
            on_host = regions == parts and all(d.platform == "cpu" for d in held)
            self._placements[key] = Placement(regions, parts, _existing(parts), on_host)
        return self._placements[key]


def _place_pieces(share: Share, stored: Shape) -> Placement:
    pieces = (piece for pieces in share.pieces.values() for piece in pieces)
    regions, parts = _within(pieces, stored)
    return Placement(regions, parts, _existing(parts), on_host=False, share=share)


def _within(regions: Iterable[Region], stored: Shape) -> tuple[list[Region], list[Region | None]]:
    """Return the distinct regions, and the stored part of each."""
    distinct = list(dict.fromkeys(regions))
    return distinct, [region.intersect(whole(stored)) for region in distinct]


def _existing(parts: Iterable[Region | None]) -> list[Region]:
    return [part for part in parts if part is not None]


def wanted_shape(info: ParamInfo, arg: ArrayRestoreArgs, layout: ZarrArray) -> Shape:
    """Return the shape that an array is restored with.

    Raises:
        TreeMismatchError: It is not the stored one, and the arguments are strict.
    """
    shape = layout.shape if arg.global_shape is None else tuple(arg.global_shape)
    if shape != layout.shape and (arg.strict or len(shape) != len(layout.shape)):
        raise TreeMismatchError(
            f"{info.label}: Requested shape: {shape} is not compatible with the stored shape: "
            f"{layout.shape}. Truncating/padding is disabled by setting of `strict=True`; pass "
            "ArrayRestoreArgs(strict=False) to allow it (v1: set "
            "array.loading.enable_padding_and_truncation of the Context).",
            paths=[info.label],
        )
    return shape


def requested_sharding(
    arg: ArrayRestoreArgs, path: KeyPath
) -> jax.sharding.Sharding | ShardingMetadata | None:
    """Return the sharding that restore arguments request, None if they leave it open.

    Raises:
        TypeError: The value is not a sharding.
    """
    if arg.mesh is not None and arg.mesh_axes is not None:
        try:
            return NamedSharding(arg.mesh, arg.mesh_axes)
        except (TypeError, ValueError, AttributeError) as error:
            raise TypeError(
                f"{format_path(path)}: ArrayRestoreArgs: expected mesh=jax.sharding.Mesh and "
                f"mesh_axes=PartitionSpec over its axes, found {arg.mesh!r} and "
                f"{arg.mesh_axes!r}: {error}"
            ) from error
    wanted: object = arg.sharding
    if wanted is None or type(wanted) in _SHARDINGS:
        return arg.sharding
    return as_sharding(wanted, f"{format_path(path)}: sharding")


_AS_SAVED = ArrayRestoreArgs()


def check_width(path: KeyPath, dtype: object) -> None:
    """Check that JAX can hold a dtype unchanged.

    Raises:
        UnsupportedLeafError: It has 64 bits and JAX's 64-bit mode is off.
    """
    wanted = as_dtype(dtype)
    if wanted.itemsize >= _WIDE_BYTES and jax.dtypes.canonicalize_dtype(wanted) != wanted:
        label = format_path(path)
        raise UnsupportedLeafError(
            f"{label}: JAX arrays of dtype {wanted} need 64-bit mode, which is off; JAX "
            "would drop half of every value. Call jax.config.update('jax_enable_x64', True), or "
            "restore as numpy (restore_type=np.ndarray) or as another dtype.",
            paths=[label],
        )

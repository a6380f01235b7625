"""JAX arrays: written shard by shard, restored onto any sharding; typed PRNG keys included."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import cast

import jax
import numpy as np
from jax.sharding import NamedSharding

from orbit_ckpt.arrays.dtypes import as_dtype, is_prng_dtype, storable
from orbit_ckpt.arrays.memory import aligned_empty
from orbit_ckpt.arrays.sharding import ShardingMetadata, describe_sharding
from orbit_ckpt.arrays.slices import Region, Shape, from_index, whole
from orbit_ckpt.arrays.transfer import local_regions, shards_of
from orbit_ckpt.errors import TreeMismatchError, UnsupportedLeafError
from orbit_ckpt.handlers.base import (
    ArrayRestoreArgs,
    Future,
    ParamInfo,
    RestoreArgs,
    SaveArgs,
    load_batch_of,
    logical_dtype,
    save_batch_of,
)
from orbit_ckpt.handlers.prng import key_data, key_impl, unsupported_key, wrap_keys
from orbit_ckpt.handlers.stored import (
    add_array,
    array_metadata,
    cast_host,
    default_restore_args,
    default_save_args,
    key_type_of,
    layout_of,
)
from orbit_ckpt.metadata.schema import JAX_ARRAY, ArrayRecord
from orbit_ckpt.metadata.values import ArrayMetadata
from orbit_ckpt.storage.batch_read import ArrayRead


class ArrayHandler:
    """Handles `jax.Array`."""

    def typestr(self) -> str:
        """See `TypeHandler`."""
        return JAX_ARRAY

    def check(self, value: object) -> str | None:
        """See `ValueChecker`."""
        array = cast(jax.Array, value)
        if array.is_deleted():
            return "the array has been deleted or donated"
        if not array.is_fully_addressable:
            return "the array spans several processes"
        if is_prng_dtype(array.dtype):
            return unsupported_key(array)
        return None if storable(array.dtype) else f"dtype {array.dtype} cannot be stored"

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayMetadata]:
        """See `TypeHandler`."""
        return [array_metadata(info) for info in infos]

    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        """See `TypeHandler`."""
        for value, info, arg in zip(values, infos, default_save_args(infos, args), strict=True):
            self._add(cast(jax.Array, value), info, arg)
        return []

    def _add(self, array: jax.Array, info: ParamInfo, arg: SaveArgs) -> None:
        batch = save_batch_of(info)
        impl = None
        if is_prng_dtype(array.dtype):
            impl, array, arg = key_impl(array), key_data(array), SaveArgs()
        shards = shards_of(array)
        info.write_shape = shards[0].region.shape if shards else array.shape
        layout = add_array(array.shape, array.dtype, shards, info, arg)
        if impl is not None:  # of other arrays the record says nothing that is not elsewhere
            batch.arrays.append(ArrayRecord(info.name, info.write_shape, layout.chunk_shape, impl))
        sharding = describe_sharding(array.sharding)
        if sharding is not None:
            batch.shardings[info.name] = sharding

    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[jax.Array]:
        """Return the arrays, each on the sharding of its args or the recorded one.

        Every process reads only the parts its devices hold, each part once.

        Raises:
            TreeMismatchError: A shape differs from the one asked for, and `strict` is set.
            UnsupportedLeafError: A dtype needs JAX's 64-bit mode, which is off.
            ValueError: A sharding does not divide a shape.
        """
        if not infos:
            return []
        args = default_restore_args(infos, args)
        targets = [_target(info, arg) for info, arg in zip(infos, args, strict=True)]
        reader = load_batch_of(infos[0]).reader
        arrays: list[jax.Array] = []
        reads = [target.read for target in targets]
        async with aclosing(reader.read_in_windows(reads)) as windows:
            async for window in windows:
                part = targets[len(arrays) : len(arrays) + len(window)]
                arrays += _place(part, window)
        return arrays

    def finalize(self, directory: Path) -> None:
        """See `TypeHandler`."""


class _Target:
    """What one array is to become, and what must be read for it."""

    def __init__(
        self,
        info: ParamInfo,
        shape: Shape,
        dtype: object,
        sharding: jax.sharding.Sharding,
        regions: dict[jax.Device, Region],
        read: ArrayRead,
    ) -> None:
        self.info = info
        self.shape = shape
        self.dtype = dtype
        self.sharding = sharding
        self.regions = regions
        self.read = read

    def place(self, values: Sequence[np.ndarray]) -> jax.Array:
        """Return the array on its devices, from the values of the regions that were read.

        Nobody else has these values, so the CPU backend keeps them instead of copying.
        """
        parts = self.parts(values)
        if len(parts) == 1:
            (part,) = parts.values()
            return jax.make_array_from_callback(self.shape, self.sharding, lambda _: part)
        return jax.make_array_from_callback(
            self.shape, self.sharding, lambda index: parts[from_index(index or (), self.shape)]
        )

    def parts(self, values: Sequence[np.ndarray]) -> dict[Region, np.ndarray]:
        """Return the part of every device, from the values of the regions that were read."""
        stored = self.read.layout
        by_region: dict[Region, np.ndarray] = {}
        read = dict(zip(self.read.regions, values, strict=True))
        for region in set(self.regions.values()):
            common = region.intersect(whole(stored.shape)) or Region(
                region.start, (0,) * len(region.shape)
            )
            host = read.get(common)
            if host is None:
                host = aligned_empty(common.shape, stored.dtype)
            if common != region and region.size:
                padded = np.zeros(region.shape, host.dtype)
                padded[common.within(region).slices] = host
                host = padded
            host = host.view(logical_dtype(self.info, host.dtype)).reshape(region.shape)
            by_region[region] = cast_host(host, self.dtype, self.info.label)
        return by_region


def _target(info: ParamInfo, arg: RestoreArgs) -> _Target:
    layout = layout_of(info)
    wanted = arg if isinstance(arg, ArrayRestoreArgs) else ArrayRestoreArgs(dtype=arg.dtype)
    shape = layout.shape
    record = load_batch_of(info).arrays.get(info.name)
    is_key = record is not None and record.random_key_impl is not None
    if is_key:
        key_type_of(info, layout.dtype)
    if wanted.global_shape is not None and not is_key:
        shape = tuple(wanted.global_shape)
    if shape != layout.shape and (wanted.strict or len(shape) != len(layout.shape)):
        raise TreeMismatchError(
            f"{info.label}: Requested shape: {shape} is not compatible with the stored shape: "
            f"{layout.shape}. Truncating/padding is disabled by setting of `strict=True`; pass "
            "ArrayRestoreArgs(strict=False) to allow it.",
            paths=[info.label],
        )
    dtype = None if is_key else wanted.dtype
    check_width(info.label, logical_dtype(info, layout.dtype) if dtype is None else dtype)
    sharding = _sharding(info, wanted, shape)
    try:
        regions = local_regions(sharding, shape)
    except ValueError as error:
        raise ValueError(f"{info.label}: {error}") from error
    inside = [region.intersect(whole(layout.shape)) for region in regions.values()]
    unique = list(dict.fromkeys(region for region in inside if region is not None))
    read = ArrayRead(info.location, info.name, layout, unique)
    return _Target(info, shape, dtype, sharding, regions, read)


def requested_sharding(arg: ArrayRestoreArgs) -> jax.sharding.Sharding | ShardingMetadata | None:
    """Return the sharding that restore arguments ask for, None if they leave it open."""
    if arg.mesh is not None and arg.mesh_axes is not None:
        return NamedSharding(arg.mesh, arg.mesh_axes)
    return arg.sharding


def _sharding(info: ParamInfo, arg: ArrayRestoreArgs, shape: Shape) -> jax.sharding.Sharding:
    batch = load_batch_of(info)
    wanted = requested_sharding(arg)
    if isinstance(wanted, jax.sharding.Sharding):
        return wanted
    return batch.resolver.resolve(wanted or batch.shardings.get(info.name), shape)


def check_width(label: str, dtype: object) -> None:
    """Check that JAX can hold a dtype as it is.

    Raises:
        UnsupportedLeafError: It has 64 bits and JAX's 64-bit mode is off.
    """
    wanted = as_dtype(dtype)
    if jax.dtypes.canonicalize_dtype(wanted) != wanted:
        raise UnsupportedLeafError(
            f"{label}: JAX arrays of dtype {wanted} need 64-bit mode, which is off; JAX "
            "would drop half of every value. Call jax.config.update('jax_enable_x64', True), or "
            "restore as numpy (restore_type=np.ndarray) or as another dtype.",
            paths=[label],
        )


def _place(targets: Sequence[_Target], values: Sequence[Sequence[np.ndarray]]) -> list[jax.Array]:
    """Make arrays on devices of host values."""
    arrays: list[jax.Array] = []
    for target, parts in zip(targets, values, strict=True):
        array = target.place(parts)
        record = load_batch_of(target.info).arrays.get(target.info.name)
        arrays.append(wrap_keys(array, record.random_key_impl if record else None))
    return arrays

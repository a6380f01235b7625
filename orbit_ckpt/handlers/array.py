"""JAX arrays: written shard by shard, restored onto any sharding; typed PRNG keys included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import cast

import jax
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding
from msgspec import Struct

from orbit_ckpt.arrays.dtypes import DType, HostArray, as_dtype, is_prng_dtype, storable
from orbit_ckpt.arrays.replicas import ReplicaOptions, Turns, written_shards
from orbit_ckpt.arrays.sharding import ShardingMetadata, describe_sharding
from orbit_ckpt.arrays.slices import Region, Shape, from_index, whole
from orbit_ckpt.arrays.transfer import TakenArray, local_regions, shards_of
from orbit_ckpt.errors import TreeMismatchError, UnsupportedLeafError
from orbit_ckpt.handlers.base import (
    ArrayRestoreArgs,
    Future,
    LoadBatch,
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
    layouts_of,
)
from orbit_ckpt.metadata.schema import JAX_ARRAY, ArrayRecord
from orbit_ckpt.metadata.values import ArrayMetadata
from orbit_ckpt.runtime.process import this_process
from orbit_ckpt.storage.chunk_read import ArrayRead
from orbit_ckpt.storage.zarr import ZarrArray
from orbit_ckpt.tree.keypath import KeyPath, format_path


class ArrayHandler:
    """Handles `jax.Array`."""

    def __init__(
        self,
        *,
        use_replica_parallel: bool | None = None,
        min_slice_bytes_for_replica_parallel: int | None = None,
        max_replicas_for_replica_parallel: int | None = None,
    ) -> None:
        """Make a handler.

        Args:
            use_replica_parallel: Whether processes that have the same part of an array each write
                a piece of it, else they take turns, each with whole parts. None does so unless it
                is on GPUs.
            min_slice_bytes_for_replica_parallel: Least bytes of such a piece; None for 4096, and
                no more than 256 pieces of an array.
            max_replicas_for_replica_parallel: Most processes that write pieces of the same part,
                None for all that have it.

        Raises:
            ValueError: A number is out of range.
        """
        self._replicas = ReplicaOptions(
            use_replica_parallel,
            min_slice_bytes_for_replica_parallel,
            max_replicas_for_replica_parallel,
        )

    def typestr(self) -> str:
        """See `TypeHandler`."""
        return JAX_ARRAY

    def check(self, value: object) -> str | None:
        """See `ValueChecker`."""
        array = cast(jax.Array, value)
        if array.is_deleted():
            return "the array has been deleted or donated"
        single = isinstance(array.sharding, SingleDeviceSharding)
        if not single and not array.is_fully_addressable and this_process().is_alone:
            return (
                "the array spans several processes, and this one saves alone; call "
                "jax.distributed.initialize first, and give no primary_host=None"
            )
        if is_prng_dtype(array.dtype):
            return unsupported_key(array)
        return None if storable(array.dtype) else f"dtype {array.dtype} cannot be stored"

    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayMetadata]:
        """See `TypeHandler`."""
        return array_metadata(infos, ArrayMetadata)

    def take(self, values: Sequence[object]) -> Sequence[TakenArray]:
        """See `ValueTaker`."""
        turns = _turns()
        return [self._taken(cast(jax.Array, value), turns) for value in values]

    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        """See `TypeHandler`.

        Raises:
            UnsupportedLeafError: There are other processes, and they do not have these arrays.
        """
        turns = _turns()
        taken = [
            value if isinstance(value, TakenArray) else self._taken(cast(jax.Array, value), turns)
            for value in values
        ]
        _check_global(taken, infos)
        for array, info, arg in zip(taken, infos, default_save_args(infos, args), strict=True):
            self._add(array, info, arg)
        return []

    def _taken(self, array: jax.Array, turns: Turns | None) -> TakenArray:
        impl = None
        if is_prng_dtype(array.dtype):
            impl, array = key_impl(array), key_data(array)
        if turns is None:
            return TakenArray(array.shape, array.dtype, shards_of(array), array.sharding, impl)
        write_shape, shards = written_shards(array, self._replicas, turns)
        return TakenArray(array.shape, array.dtype, shards, array.sharding, impl, write_shape)

    def _add(self, array: TakenArray, info: ParamInfo, arg: SaveArgs) -> None:
        batch = save_batch_of(info)
        impl, shards = array.key_impl, array.shards
        if impl is not None:
            arg = SaveArgs()  # keys are not cast
        info.write_shape = array.write_shape
        if info.write_shape is None:
            info.write_shape = shards[0].region.shape if shards else array.shape
        layout = add_array(
            array.shape, array.dtype, shards, info, arg, write_shape=info.write_shape
        )
        if impl is not None or not batch.process.is_alone:
            # of other arrays of one process it says nothing that is not elsewhere
            record = ArrayRecord(info.name, info.write_shape, layout.chunk_shape, impl)
            if not batch.process.is_alone:
                record = record._replace(shape=layout.shape, dtype=layout.dtype.name)
            batch.arrays.append(record)
        sharding = None if array.sharding is None else describe_sharding(array.sharding)
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
        targets = plan_targets(infos, args)
        reader = load_batch_of(infos[0]).reader
        arrays: list[jax.Array] = []
        reads = [target.read for target in targets]
        async with aclosing(reader.read_in_windows(reads)) as windows:
            async for window in windows:
                part = targets[len(arrays) : len(arrays) + len(window)]
                arrays += map(ArrayTarget.place, part, window)
        return arrays

    def plan_reads(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[ArrayRead]:
        """See `ReadPlanner`."""
        return [target.read for target in plan_targets(infos, args)] if infos else []

    def read_now(self, info: ParamInfo, arg: RestoreArgs) -> jax.Array:
        """Return one array as `deserialize` does, read by the calling thread."""
        (target,) = plan_targets([info], [arg])
        reader = load_batch_of(info).reader
        return target.place([reader.read_part(target.read, r) for r in target.read.regions])

    def finalize(self, directory: Path) -> None:
        """See `TypeHandler`."""


def _turns() -> Turns | None:
    """Return whose turn it is to write what; None if there is one process only."""
    return None if this_process().is_alone else Turns()


def _check_global(arrays: Sequence[TakenArray], infos: Sequence[ParamInfo]) -> None:
    """Check that all processes have the arrays.

    Raises:
        UnsupportedLeafError: Some are on devices of this process only. Others may have arrays of
            the same name with other values, which would be lost.
    """
    if not infos or save_batch_of(infos[0]).process.is_alone:
        return
    local = [
        info.label
        for array, info in zip(arrays, infos, strict=True)
        if not isinstance(array.sharding, jax.sharding.Sharding)  # it is lazy
        or array.sharding.is_fully_addressable
    ]
    if local:
        more = f" and {len(local) - 20} more" if len(local) > 20 else ""
        raise UnsupportedLeafError(
            f"{', '.join(local[:20])}{more}: these arrays are on devices of one process only; the "
            "others may have other values. Put them on a mesh of all processes, with "
            "jax.device_put(x, NamedSharding(mesh, PartitionSpec())) for example, or save them as "
            "numpy arrays, which are those of the first process.",
            paths=local,
        )


class Placement(Struct, frozen=True):
    """Which parts of an array this process reads: those that its devices hold, or some of them.

    Attributes:
        regions: The distinct parts; of a padded array they may reach beyond what is stored.
        stored: What of them is stored, in the same order; empty regions are None.
    """

    regions: Sequence[Region]
    stored: Sequence[Region | None]


class ArrayTarget(Struct, frozen=True, gc=False):
    """What one stored array is to become; a struct, because there are as many as leaves.

    Attributes:
        path: Where the leaf sits.
        shape: Its shape.
        logical: The dtype that its stored bytes stand for.
        dtype: The dtype to cast to, None for the logical one.
        sharding: Where its parts are to be.
        placement: Which parts those are.
        read: What must be read for them.
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
        """Return the array on its devices, from the values of the regions that were read.

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
        else:  # all are with other processes, and no part tells the dtype
            array = jax.make_array_from_single_device_arrays(
                self.shape, self.sharding, [], dtype=self.final_dtype
            )
        return wrap_keys(array, self.key_impl)

    @property
    def final_dtype(self) -> DType:
        """The dtype of the array, of its data if it is one of keys."""
        return self.logical if self.dtype is None else as_dtype(self.dtype)

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
    readers: Callable[[jax.sharding.Sharding, DType], Collection[jax.Device] | None] | None = None,
) -> list[ArrayTarget]:
    """Return what arrays are to become.

    Args:
        infos: The leaves.
        args: How each is restored, None for as saved.
        readers: Returns for the sharding and dtype of an array the devices whose parts are read,
            None for all; by default it is all.

    Raises:
        TreeMismatchError: One has another shape than the one asked for.
        UnsupportedLeafError: A dtype needs JAX's 64-bit mode, which is off.
        ValueError: A sharding does not divide a shape.
    """
    plan = _Planner(load_batch_of(infos[0]), readers or (lambda _sharding, _dtype: None))
    return list(map(plan.target, infos, default_restore_args(infos, args), layouts_of(infos)))


class _Planner:
    """Plans how arrays are restored."""

    def __init__(
        self,
        batch: LoadBatch,
        readers: Callable[[jax.sharding.Sharding, DType], Collection[jax.Device] | None],
    ) -> None:
        self._batch = batch
        self._readers = readers
        self._placements: dict[object, Placement] = {}

    def target(self, info: ParamInfo, arg: RestoreArgs, layout: ZarrArray) -> ArrayTarget:
        """Return what one array is to become.

        Raises:
            TreeMismatchError: It has another shape than the one asked for.
            UnsupportedLeafError: Its dtype needs JAX's 64-bit mode, which is off.
            ValueError: The sharding does not divide its shape.
        """
        wanted = arg if isinstance(arg, ArrayRestoreArgs) else ArrayRestoreArgs(dtype=arg.dtype)
        record = self._batch.arrays.get(info.name)
        impl = record.random_key_impl if record is not None else None
        if impl is not None:
            key_type_of(info, layout.dtype)
        shape = layout.shape if impl is not None else wanted_shape(info, wanted, layout)
        logical = logical_dtype(info, layout.dtype)
        dtype = None if impl is not None else wanted.dtype
        check_width(info.location, logical if dtype is None else dtype)
        sharding = self._sharding(info, wanted, shape)
        try:
            placement = self._placement(
                sharding, shape, layout.shape, logical if dtype is None else as_dtype(dtype)
            )
        except ValueError as error:
            raise ValueError(f"{info.label}: {error}") from error
        regions = [region for region in placement.stored if region is not None]
        read = ArrayRead(info.location, info.name, layout, regions)
        return ArrayTarget(info.location, shape, logical, dtype, sharding, placement, read, impl)

    def _sharding(
        self, info: ParamInfo, arg: ArrayRestoreArgs, shape: Shape
    ) -> jax.sharding.Sharding:
        wanted = requested_sharding(arg)
        if isinstance(wanted, jax.sharding.Sharding):
            return wanted
        recorded = wanted or self._batch.shardings.get(info.name)
        return self._batch.resolver.resolve(recorded, shape)

    def _placement(
        self, sharding: jax.sharding.Sharding, shape: Shape, stored: Shape, dtype: DType
    ) -> Placement:
        readers = self._readers(sharding, dtype)
        key = sharding, shape, stored, readers
        if key not in self._placements:
            held = local_regions(sharding, shape)
            regions = list(
                dict.fromkeys(r for d, r in held.items() if readers is None or d in readers)
            )
            parts = [region.intersect(whole(stored)) for region in regions]
            self._placements[key] = Placement(regions, parts)
        return self._placements[key]


def wanted_shape(info: ParamInfo, arg: ArrayRestoreArgs, layout: ZarrArray) -> Shape:
    """Return the shape that an array is restored with.

    Raises:
        TreeMismatchError: It is not the stored one, and the arguments are strict about that.
    """
    shape = layout.shape if arg.global_shape is None else tuple(arg.global_shape)
    if shape != layout.shape and (arg.strict or len(shape) != len(layout.shape)):
        raise TreeMismatchError(
            f"{info.label}: Requested shape: {shape} is not compatible with the stored shape: "
            f"{layout.shape}. Truncating/padding is disabled by setting of `strict=True`; pass "
            "ArrayRestoreArgs(strict=False) to allow it.",
            paths=[info.label],
        )
    return shape


def requested_sharding(arg: ArrayRestoreArgs) -> jax.sharding.Sharding | ShardingMetadata | None:
    """Return the sharding that restore arguments ask for, None if they leave it open."""
    if arg.mesh is not None and arg.mesh_axes is not None:
        return NamedSharding(arg.mesh, arg.mesh_axes)
    return arg.sharding


def check_width(path: KeyPath, dtype: object) -> None:
    """Check that JAX can hold a dtype as it is.

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


_WIDE_BYTES = 8
"""Dtypes that are narrower need no 64-bit mode."""

"""JAX arrays: written shard by shard, restored onto any sharding; typed PRNG keys included."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import aclosing
from typing import cast

import jax
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding
from msgspec import structs
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype, why_not_storable
from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.arrays.replicas import ReplicaOptions, WriterRotation, written_shards
from orbit_ckpt._src.arrays.sharding import describe_sharding
from orbit_ckpt._src.arrays.transfer import ArraySnapshot, DeferredData, is_on_host, shards_of
from orbit_ckpt._src.arrays.unchanged import is_unchanged
from orbit_ckpt._src.arrays.watch import SerializationStatusCallback
from orbit_ckpt._src.errors import UnsupportedLeafError
from orbit_ckpt._src.metadata.array_records import ArrayRecord
from orbit_ckpt._src.metadata.schema import JAX_ARRAY
from orbit_ckpt._src.metadata.values import ArrayMetadata
from orbit_ckpt._src.runtime.checks import as_flag, check_int, check_methods
from orbit_ckpt._src.runtime.futures import Future
from orbit_ckpt._src.runtime.process import this_process
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.layout import replica_database
from orbit_ckpt._src.text import shorten_list, warn_set
from orbit_ckpt._src.type_handlers.array_io import (
    USUAL,
    add_array,
    default_save_args,
    placement,
    schedule_of,
    warn_of_metadata_key,
    whole_reads,
)
from orbit_ckpt._src.type_handlers.array_target import ArrayTarget, plan_targets
from orbit_ckpt._src.type_handlers.base import (
    ParamInfo,
    RestoreArgs,
    SaveArgs,
    TypeHandler,
    load_batch_of,
    save_batch_of,
)
from orbit_ckpt._src.type_handlers.capabilities import (
    ArrayForm,
    ArrayStorage,
    FormHandler,
    LazyReader,
    ReadPlanner,
    SnapshotHandler,
    ValueChecker,
    check_converted,
)
from orbit_ckpt._src.type_handlers.described import array_metadata
from orbit_ckpt._src.type_handlers.exchange import ArrayExchange, SharedReads
from orbit_ckpt._src.type_handlers.prng import key_data, key_impl, unsupported_key

_MAX_DIMENSIONS = 64
_DELETED = "the array has been deleted or donated; save it before that, or a copy of it"

_PRIMARY_HOST = "give it to MultiprocessingOptions of the checkpointer or manager"
_REPLICA_ID = "processes that hold the same part of an array divide it or take turns"
_STORE = "arrays are recorded where a restore needs it, in the same form"
_DISPATCHER = "every process writes what its own devices hold"


class ArrayHandler(
    TypeHandler, ValueChecker, SnapshotHandler, FormHandler, ReadPlanner, ArrayStorage, LazyReader
):
    """Handles `jax.Array`."""

    # for subclasses that do not call `__init__`
    status_callback: SerializationStatusCallback | None = None
    _storage = USUAL
    _writes_shardings = True
    _has_replica_folder = False

    lazy_type: type = jax.Array

    def __init__(  # noqa: PLR0913, PLR0917 - Orbax's signature
        self,
        metadata_key: str | None = None,
        primary_host: int | None = 0,
        replica_id: int | None = 0,
        use_replica_parallel: bool | None = None,
        min_slice_bytes_for_replica_parallel: int | None = None,
        max_replicas_for_replica_parallel: int | None = None,
        enable_write_sharding_file: bool = True,
        array_metadata_store: object = None,
        enable_replica_parallel_separate_folder: bool = False,
        dispatcher: object = None,
        callback: SerializationStatusCallback | None = None,
    ) -> None:
        """Make a handler.

        Args:
            metadata_key: Name of the metadata documents of zarr2 arrays; None for the standard one.
                Documents of any name are read without it.
            primary_host: Ignored, like three others, which warn if set.
            replica_id: Ignored: processes that hold the same part of an array take turns.
            use_replica_parallel: Whether processes that hold the same part of an array each write a
                piece of it, else they take turns with whole parts. None enables it except on GPUs.
            min_slice_bytes_for_replica_parallel: Minimum bytes of such a piece; None for 4096, with
                at most 256 pieces per array.
            max_replicas_for_replica_parallel: Maximum number of processes that write pieces of the
                same part, None for no limit.
            enable_write_sharding_file: Whether to record the shardings of arrays.
            array_metadata_store: Ignored.
            enable_replica_parallel_separate_folder: Whether arrays that are replicated go into
                databases of their own, apart from arrays that are divided among devices.
            dispatcher: Ignored.
            callback: Receives reports of transfers and writes, and decides which arrays are copied
                first.

        Raises:
            ValueError: A number is out of range.
        """
        self._storage = placement(metadata_key, None)
        self._writes_shardings = as_flag("enable_write_sharding_file", enable_write_sharding_file)
        self._has_replica_folder = as_flag(
            "enable_replica_parallel_separate_folder", enable_replica_parallel_separate_folder
        )
        methods = ["key_priority", "on_transfer_end", "on_write_end"]
        check_methods(
            "callback", callback, methods, "Give an object of a SerializationStatusCallback."
        )
        self.status_callback = callback
        warn_set(
            type(self).__qualname__,
            {
                "primary_host": (primary_host, 0, _PRIMARY_HOST),
                "replica_id": (replica_id, 0, _REPLICA_ID),
                "array_metadata_store": (array_metadata_store, None, _STORE),
                "dispatcher": (dispatcher, None, _DISPATCHER),
            },
        )
        check_int(
            "min_slice_bytes_for_replica_parallel",
            min_slice_bytes_for_replica_parallel,
            least=0,
            optional=True,
        )
        check_int(
            "max_replicas_for_replica_parallel",
            max_replicas_for_replica_parallel,
            least=1,
            optional=True,
        )
        self._replicas = ReplicaOptions(
            use_replica_parallel,
            min_slice_bytes_for_replica_parallel,
            max_replicas_for_replica_parallel,
        )

    def has_dispatcher(self) -> bool:
        """Return False: built-in handlers send no work to other hosts."""
        return False

    @property
    def has_own_databases(self) -> bool:
        """Whether some arrays go into another database than that of the process."""
        return self._has_replica_folder

    @override
    def typestr(self) -> str:
        return JAX_ARRAY

    @override
    def check(self, value: object) -> str | None:
        array = _array(value)
        if array.is_deleted():
            return _DELETED
        single = isinstance(array.sharding, SingleDeviceSharding)
        if not single and not array.is_fully_addressable and this_process().is_alone:
            return (
                "the array spans several processes, and this one saves alone; call "
                "jax.distributed.initialize first, and give no primary_host=None"
            )
        if is_prng_dtype(array.dtype):
            return unsupported_key(array)
        if array.ndim > _MAX_DIMENSIONS:
            return f"{array.ndim} dimensions, at most {_MAX_DIMENSIONS} can be stored; reshape it"
        return why_not_storable(array.dtype)

    @override
    def forms(self, values: Sequence[object]) -> Sequence[Hashable]:
        arrays = cast(Sequence[jax.Array], values)
        return [(array.shape, array.dtype, array.sharding) for array in arrays]

    @override
    def unusable(self, values: Sequence[object]) -> Mapping[int, str]:
        arrays = cast(Sequence[jax.Array], values)
        return {i: _DELETED for i, array in enumerate(arrays) if array.is_deleted()}

    @override
    def array_form(self, value: object) -> ArrayForm | None:
        array = _array(value)
        is_usual = self._storage is USUAL and not self._has_replica_folder
        if not is_usual or is_prng_dtype(array.dtype) or len(array.sharding.device_set) > 1:
            return None
        if not is_on_host(array):
            return None
        sharding = describe_sharding(array.sharding) if self._writes_shardings else None
        shape = array.shape
        return ArrayForm(shape, array.dtype, write_shape=shape, sharding=sharding)

    @override
    def arrays(self, values: Sequence[object]) -> Sequence[np.ndarray | jax.Array]:
        return cast(Sequence[jax.Array], values)

    @override
    async def metadata(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayMetadata]:
        return array_metadata(infos, ArrayMetadata)

    @override
    def snapshot(self, values: Sequence[object]) -> Sequence[ArraySnapshot]:
        rotation = _rotation()
        return [self._snapshot(_array(value), rotation) for value in values]

    @override
    async def serialize(
        self,
        values: Sequence[object],
        infos: Sequence[ParamInfo],
        args: Sequence[SaveArgs] | None = None,
    ) -> Sequence[Future]:
        """Add the arrays to the batch of the save.

        Raises:
            UnsupportedLeafError: There are other processes, and they do not have these arrays.
        """
        check_converted(self, values, infos)
        warn_of_metadata_key(self._storage, infos)
        rotation, schedule = _rotation(), schedule_of(self, infos)
        taken: list[ArraySnapshot] = []
        for value, info in zip(values, infos, strict=True):
            if not isinstance(value, ArraySnapshot):
                value = self._snapshot(_array(value), rotation)  # noqa: PLW2901 - what is saved of it
                if schedule is not None:
                    schedule.apply(value, info.location)
            taken.append(value)
        _check_global(taken, infos)
        described: dict[object, ShardingMetadata | None] = {None: None}
        for array, info, arg in zip(taken, infos, default_save_args(infos, args), strict=True):
            self._add(array, info, arg)
            sharding = array.sharding if self._writes_shardings else None
            if sharding is not None and sharding not in described:
                described[sharding] = describe_sharding(sharding)
            recorded = described[sharding]
            if recorded is not None:
                save_batch_of(info).shardings[info.name] = recorded
        return []

    def _snapshot(self, array: jax.Array, rotation: WriterRotation | None) -> ArraySnapshot:
        impl = None
        if is_prng_dtype(array.dtype):
            impl, array = key_impl(array), key_data(array)
        write_shape = None
        if rotation is None:
            shards = shards_of(array)
        else:
            write_shape, shards = written_shards(array, self._replicas, rotation)
        if is_unchanged(array):
            shards = [structs.replace(shard, unchanged=True) for shard in shards]
        return ArraySnapshot(array.shape, array.dtype, shards, array.sharding, impl, write_shape)

    def _add(self, array: ArraySnapshot, info: ParamInfo, arg: SaveArgs) -> None:
        batch = save_batch_of(info)
        impl, shards = array.key_impl, array.shards
        if impl is not None:
            arg = SaveArgs()  # keys are not cast
        info.write_shape = array.write_shape
        if info.write_shape is None:
            info.write_shape = shards[0].region.shape if shards else array.shape
        storage = self._storage
        if self._has_replica_folder and _is_replicated(array.sharding):
            storage = structs.replace(storage, database=replica_database(batch.process.index))
        layout = add_array(
            array.shape, array.dtype, shards, info, arg, write_shape=info.write_shape, at=storage
        )
        if impl is not None or batch.has_all_records:
            # for other arrays of one process it repeats what is recorded elsewhere
            record = ArrayRecord(info.name, info.write_shape, layout.chunk_shape, impl)
            if not batch.process.is_alone:
                record = structs.replace(record, shape=layout.shape, dtype=layout.dtype.name)
            batch.arrays.append(record)

    @override
    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[jax.Array]:
        """Read the arrays, each on the sharding of its args or the recorded one.

        Every process reads only the parts its devices hold, each part once; or pieces of them, if
        the restore shares its reads.

        Raises:
            ProcessFailedError: Reads are shared, and another process could not read its pieces.
            TreeMismatchError: A shape differs from the requested one, and `strict` is set.
            UnsupportedLeafError: A dtype needs JAX's 64-bit mode, which is off.
            ValueError: A sharding does not divide a shape.
        """
        if not infos:
            return []
        exchange = self._exchange(infos)
        if exchange is not None:
            return await exchange.restore(infos, args, _read)
        return await _read(plan_targets(infos, args), load_batch_of(infos[0]).reader)

    @override
    def plan_reads(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[ArrayRead]:
        if not infos:
            return []
        exchange = self._exchange(infos)
        sharing = None if exchange is None else exchange.sharing
        return [target.read for target in plan_targets(infos, args, sharing)]

    @override
    def stored_arrays(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayRead]:
        return whole_reads(infos)

    @override
    def read_now(self, info: ParamInfo, arg: RestoreArgs) -> jax.Array:
        (target,) = plan_targets([info], [arg])
        reader = load_batch_of(info).reader
        return target.place(reader.read_now(target.read))

    def _exchange(self, infos: Sequence[ParamInfo]) -> ArrayExchange | None:
        """Return how processes divide the reading of these leaves; None if they do not."""
        return ArrayExchange(SharedReads()) if load_batch_of(infos[0]).share_reads else None

    @override
    async def read_alone(self, info: ParamInfo, arg: RestoreArgs) -> jax.Array:
        (value,) = await ArrayHandler.deserialize(self, [info], [arg])
        return value


async def _read(targets: Sequence[ArrayTarget], reader: BatchReader) -> list[jax.Array]:
    """Read the parts of arrays that this process needs."""
    arrays: list[jax.Array] = []
    reads = [target.read for target in targets]
    is_dropped = [target.is_dropped for target in targets]
    async with aclosing(reader.read_in_windows(reads, is_dropped)) as windows:
        async for window in windows:
            part = targets[len(arrays) : len(arrays) + len(window)]
            window.reverse()  # free the data of each array before the next is made
            arrays += [target.place(window.pop()) for target in part]
    return arrays


def _array(value: object) -> jax.Array:
    return cast(jax.Array, value)  # by the registration, or an object of the same interface


def _is_replicated(sharding: object) -> bool:
    """Return whether several devices hold the same part of an array."""
    if isinstance(sharding, SingleDeviceSharding):
        return True
    if not isinstance(sharding, Sharding):
        return False
    if isinstance(sharding, NamedSharding):
        spec: Sequence[object] = tuple(sharding.spec)
        return len(spec) < len(sharding.mesh.axis_names) or None in spec or not spec
    return sharding.is_fully_replicated


def _rotation() -> WriterRotation | None:
    """Return the writer rotation of a save; None with a single process."""
    return None if this_process().is_alone else WriterRotation()


def _check_global(arrays: Sequence[ArraySnapshot], infos: Sequence[ParamInfo]) -> None:
    """Check that all processes have the arrays.

    Raises:
        UnsupportedLeafError: Some are on devices of this process only: other processes may have
            arrays of the same name with other values, which would be lost. Or some are lazy, which
            every process would write whole.
    """
    if not infos or save_batch_of(infos[0]).process.is_alone:
        return
    lazy: list[str] = []
    local: list[str] = []
    for array, info in zip(arrays, infos, strict=True):
        if any(isinstance(shard.data, DeferredData) for shard in array.shards):
            lazy.append(info.label)
        elif isinstance(array.sharding, Sharding) and array.sharding.is_fully_addressable:
            local.append(info.label)
    if lazy:
        raise UnsupportedLeafError(
            f"{shorten_list(lazy)}: these arrays are lazy, and several processes do not divide "
            "what is read from another checkpoint among them. Load them with shardings of all "
            "processes before they are saved, with load(path, like=...) and no lazy=True, or let "
            "one process save alone.",
            paths=lazy,
        )
    if local:
        raise UnsupportedLeafError(
            f"{shorten_list(local)}: these arrays are on devices of one process only; the "
            "others may have other values. Put them on a mesh of all processes, with "
            "jax.device_put(x, NamedSharding(mesh, PartitionSpec())) for example, or save them as "
            "numpy arrays, which are those of the first process.",
            paths=local,
        )

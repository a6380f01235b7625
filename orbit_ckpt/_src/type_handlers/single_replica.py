"""JAX arrays that one replica reads from storage and broadcasts to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from typing_extensions import override

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.replicas import (
    broadcast,
    can_broadcast,
    first_failure,
    partition_of,
    replica_devices,
    sent_bytes,
)
from orbit_ckpt._src.arrays.slices import Region
from orbit_ckpt._src.errors import ProcessFailedError, ProcessTimeoutError
from orbit_ckpt._src.runtime.checks import check_int, check_number
from orbit_ckpt._src.runtime.jax_process_group import barrier_or_fail
from orbit_ckpt._src.runtime.process import process_of_jax
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.type_handlers.array import ArrayHandler
from orbit_ckpt._src.type_handlers.array_io import default_restore_args
from orbit_ckpt._src.type_handlers.array_target import (
    ArrayRestoreArgs,
    ArrayTarget,
    plan_targets,
    requested_sharding,
)
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, load_batch_of
from orbit_ckpt._src.type_handlers.prng import wrap_keys

_COPIES = 3
"""Data being sent is in memory three times: as the source, as the result, and for the sum."""

_DEFAULT_BYTES = 1 << 30
"""Maximum bytes being sent to one device if its memory is unknown."""


@dataclass
class SingleReplicaArrayRestoreArgs(ArrayRestoreArgs):
    """How `SingleReplicaArrayHandler` restores one leaf; see `ArrayRestoreArgs`.

    Attributes:
        single_replica_sharding: Ignored; it follows from the sharding.
    """

    single_replica_sharding: NamedSharding | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        why = "which devices a replica has follows from the sharding and the handler's axis"
        options = {"single_replica_sharding": (self.single_replica_sharding, None, why)}
        warn_set("SingleReplicaArrayRestoreArgs", options)


class SingleReplicaArrayHandler(ArrayHandler):
    """Handles `jax.Array`; one replica reads the arrays and broadcasts them to the others.

    The replicas lie along one axis of the mesh. An array that is not partitioned over that axis is
    read by the processes that have devices of the primary replica, and broadcast over the device
    interconnect. `ArrayHandler` reads all other arrays: those that are partitioned over the axis,
    those without a mesh, and those of dtypes smaller than a byte.

        register_type_handler(jax.Array, SingleReplicaArrayHandler(), override=True)

    All processes must restore the same leaves in the same way. If one fails to read, it raises its
    error and all others raise `ProcessFailedError`.
    """

    def __init__(
        self,
        replica_axis_index: int | None = 0,
        primary_replica_id: int | None = 0,
        broadcast_memory_limit_bytes: int | None = None,
        broadcast_memory_scaling_factor: float | None = 0.75,
        **options: Any,
    ) -> None:
        """Make a handler.

        Args:
            replica_axis_index: Position of the replicas' axis in the shape of the mesh.
            primary_replica_id: The replica that reads.
            broadcast_memory_limit_bytes: Maximum bytes in transfer to one device; a larger array is
                sent alone. None for a share of the device's memory.
            broadcast_memory_scaling_factor: That share, of the estimated free memory.
            **options: Further arguments are those of `ArrayHandler`.

        Raises:
            ValueError: A number is out of range.
        """
        super().__init__(**options)
        for name, number, least in (
            ("replica_axis_index", replica_axis_index, 0),
            ("primary_replica_id", primary_replica_id, 0),
            ("broadcast_memory_limit_bytes", broadcast_memory_limit_bytes, 1),
        ):
            check_int(name, number, least=least, optional=True)
        if broadcast_memory_scaling_factor is not None:
            name = "broadcast_memory_scaling_factor"
            check_number(name, broadcast_memory_scaling_factor, can_be_zero=False)
        self._axis = replica_axis_index or 0
        self._replica = primary_replica_id or 0
        self._max_bytes = broadcast_memory_limit_bytes
        self._factor = (
            0.75 if broadcast_memory_scaling_factor is None else (broadcast_memory_scaling_factor)
        )
        if not 0 < self._factor <= 1:
            raise ValueError(
                f"broadcast_memory_scaling_factor must be in (0, 1], got {self._factor}"
            )

    @override
    async def deserialize(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[jax.Array]:
        """Read arrays by one replica and broadcast them to the others.

        Raises:
            ProcessFailedError: Another process could not read the arrays that it sends, or their
                metadata.
            ProcessTimeoutError: Another process did not start its restore in time.
        """
        if not infos:
            return []
        targets = await self._planned(infos, args)
        is_sent = [self._is_sent(target) for target in targets]
        sent = [target for target, yes in zip(targets, is_sent, strict=True) if yes]
        received = iter(await self._receive(sent, load_batch_of(infos[0]).reader))
        others = [i for i, yes in enumerate(is_sent) if not yes]
        read = iter(
            await super().deserialize(
                [infos[i] for i in others], None if args is None else [args[i] for i in others]
            )
        )
        return [next(received if yes else read) for yes in is_sent]

    @override
    def plan_reads(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None = None
    ) -> Sequence[ArrayRead]:
        return [t.read for t in plan_targets(infos, args, self._readers)] if infos else []

    @override
    def stored_arrays(self, infos: Sequence[ParamInfo]) -> Sequence[ArrayRead]:
        # redefined to keep the capability: `deserialize` returns the values of the stored arrays
        return super().stored_arrays(infos)

    @override
    def read_now(self, info: ParamInfo, arg: RestoreArgs) -> jax.Array:
        # broadcasts nothing, because the other processes may not read the same leaf
        return super().read_now(info, arg)

    async def _planned(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None
    ) -> list[ArrayTarget]:
        """Plan arrays once all processes of the broadcast have their plans."""
        failure: Exception | None = None
        targets: list[ArrayTarget] = []
        try:
            targets = plan_targets(infos, args, self._readers)
        except Exception as error:  # noqa: BLE001 - raised after the others are informed
            failure = error
        what = f"restore of {infos[0].parent_dir}"
        for processes in self._groups(infos, args):
            try:
                await asyncio.to_thread(barrier_or_fail, what, processes, failure)
            except (ProcessFailedError, ProcessTimeoutError) as error:
                failure = failure or error  # the other groups must be informed too
        if failure is not None:
            raise failure
        return targets

    def _groups(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None
    ) -> list[tuple[int, ...]]:
        """Return the processes that share a mesh with this one and may send to each other.

        Does not depend on how arrays are stored, which some processes may be unable to read.
        """
        if process_of_jax().is_alone:
            return []
        batch = load_batch_of(infos[0])
        shardings: set[jax.sharding.Sharding] = set()
        for info, arg in zip(infos, default_restore_args(infos, args), strict=True):
            found = None
            if isinstance(arg, ArrayRestoreArgs):
                found = requested_sharding(arg, info.location)
            found = found or batch.shardings.get(info.name) or batch.resolver.fallback
            if found is not None and not isinstance(found, jax.sharding.Sharding):
                found = batch.resolver.find(found) or batch.resolver.fallback
            if found is not None:
                shardings.add(found)
        meshes = {
            partition_of(sharding)[1]
            for sharding in shardings
            if can_broadcast(sharding, np.dtype(np.uint8), self._axis)
        }
        # the same order on all processes, so that no two groups wait for each other
        return sorted({_processes_of(mesh) for mesh in meshes})

    def _readers(
        self, sharding: jax.sharding.Sharding, dtype: DType
    ) -> frozenset[jax.Device] | None:
        """Return the devices whose parts of an array are read, None for all."""
        if not can_broadcast(sharding, dtype, self._axis):
            return None
        _, mesh = partition_of(sharding)
        return replica_devices(mesh, self._axis, self._replica)

    def _is_sent(self, target: ArrayTarget) -> bool:
        return can_broadcast(target.sharding, target.final_dtype, self._axis)

    async def _receive(
        self, targets: Sequence[ArrayTarget], reader: BatchReader
    ) -> list[jax.Array]:
        """Read the parts that this process sends, and return the arrays."""
        sender = _Sender(self._axis, self._replica, self._limit())
        failure: Exception | None = None
        reads = [target.read for target in targets]
        try:
            async with aclosing(reader.read_in_windows(reads)) as windows:
                async for window in windows:
                    part = targets[len(sender.arrays) : len(sender.arrays) + len(window)]
                    for target, values in zip(part, window, strict=True):
                        await sender.send(target, target.parts(values))
        except Exception as error:  # noqa: BLE001 - raised after the others no longer wait
            failure = error
        for target in targets[len(sender.arrays) :]:
            await sender.send(target, {})
        culprits = [
            first_failure(mesh, has_failed=failure is not None)
            for mesh in dict.fromkeys(map(_mesh_of, targets))
        ]
        if failure is not None:
            raise failure
        for culprit in culprits:
            if culprit is not None:
                raise ProcessFailedError(
                    f"process {culprit}, which reads arrays for all others, could not read them. "
                    "Its own error says why.",
                    process=culprit,
                )
        return sender.arrays

    def _limit(self) -> int:
        """Return the maximum bytes being sent to one device; may differ between processes."""
        if self._max_bytes is not None:
            return self._max_bytes
        device: Any = jax.local_devices()[0]
        memory: dict[str, int] = device.memory_stats() or {}
        if "bytes_limit" not in memory:
            return _DEFAULT_BYTES
        free = memory["bytes_limit"] - memory.get("bytes_in_use", 0)
        return int(free * self._factor / _COPIES)


class _Sender:
    """Sends arrays one after the other; all processes must send the same ones in the same order."""

    def __init__(self, axis: int, replica: int, max_bytes: int) -> None:
        self.arrays: list[jax.Array] = []
        self._axis = axis
        self._replica = replica
        self._max_bytes = max_bytes
        self._under_way: list[jax.Array] = []
        self._held = 0

    async def send(self, target: ArrayTarget, values: Mapping[Region, HostArray]) -> None:
        """Join the broadcast of an array; wait for earlier ones if memory is short."""
        abstract = jax.ShapeDtypeStruct(target.shape, target.final_dtype, sharding=target.sharding)
        nbytes = sent_bytes(abstract)
        if self._held + nbytes > self._max_bytes:
            under_way, self._under_way, self._held = self._under_way, [], 0
            await asyncio.to_thread(_wait, under_way)
        senders = replica_devices(_mesh_of(target), self._axis, self._replica)
        array = broadcast(values, abstract, axis=self._axis, senders=senders)
        self._under_way.append(array)
        self._held += nbytes
        self.arrays.append(wrap_keys(array, target.key_impl))


def _processes_of(mesh: Mesh) -> tuple[int, ...]:
    return tuple(sorted({device.process_index for device in mesh.devices.flat}))


def _wait(arrays: Sequence[jax.Array]) -> None:
    for array in arrays:
        array.block_until_ready()


def _mesh_of(target: ArrayTarget) -> Mesh:
    return partition_of(target.sharding)[1]

"""Restore arrays that several processes read together and send to one another."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from typing_extensions import override

from orbit_ckpt._src.arrays.broadcast import (
    broadcast,
    first_failure,
    partition_of,
    sent_bytes,
    unused_axes,
)
from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.read_shares import ReadShares
from orbit_ckpt._src.arrays.slices import Region, Shape
from orbit_ckpt._src.errors import ProcessFailedError, ProcessTimeoutError
from orbit_ckpt._src.runtime.jax_process_group import barrier_or_fail
from orbit_ckpt._src.runtime.process import process_of_jax
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.type_handlers.array_io import default_restore_args
from orbit_ckpt._src.type_handlers.array_target import (
    ArrayRestoreArgs,
    ArrayTarget,
    Share,
    Sharing,
    plan_targets,
    requested_sharding,
)
from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, load_batch_of
from orbit_ckpt._src.type_handlers.prng import wrap_keys

_LEAST_BYTES = 1 << 16
"""Smaller parts cost less to read than to send."""

_COPIES = 3
"""Data being sent is in memory three times: as the source, as the result, and for the sum."""

_DEFAULT_BYTES = 1 << 30
"""Maximum bytes being sent to one device if its memory is unknown."""


class SharedReads(Sharing):
    """Lets the processes that need the same part of an array each read pieces of it."""

    def __init__(self) -> None:
        self._shares = ReadShares()

    @override
    def axes(self, sharding: jax.sharding.Sharding, dtype: DType) -> Sequence[str]:
        return unused_axes(sharding, dtype)

    @override
    def share(
        self, sharding: jax.sharding.Sharding, shape: Shape, dtype: DType, chunk_shape: Shape
    ) -> Share | None:
        if math.prod(sharding.shard_shape(shape)) * dtype.itemsize < _LEAST_BYTES:
            return None
        axes = self.axes(sharding, dtype)
        if not axes:
            return None
        return Share(axes, self._shares.pieces(sharding, shape, chunk_shape, dtype.itemsize))


class ArrayExchange:
    """Restores the arrays of one call of a type handler.

    All processes must restore the same leaves in the same way. If one fails to read, it raises its
    error and all others raise `ProcessFailedError`.

    Attributes:
        sharing: How the reading is divided.
    """

    def __init__(
        self, sharing: Sharing, *, max_bytes: int | None = None, share_of_free: float = 0.75
    ) -> None:
        """Make it.

        Args:
            sharing: How the reading is divided.
            max_bytes: Maximum bytes in transfer to one device; a larger array is sent alone. None
                for a share of the device's memory.
            share_of_free: That share, of the estimated free memory.
        """
        self.sharing = sharing
        self._max_bytes = max_bytes
        self._share_of_free = share_of_free

    async def restore(
        self,
        infos: Sequence[ParamInfo],
        args: Sequence[RestoreArgs] | None,
        read: Callable[[Sequence[ArrayTarget], BatchReader], Awaitable[Sequence[jax.Array]]],
    ) -> list[jax.Array]:
        """Restore arrays.

        Args:
            infos: The leaves, at least one.
            args: How each is restored, None for as saved.
            read: Restores those of which this process reads all that it needs.

        Raises:
            ProcessFailedError: Another process could not read the arrays that it sends, or their
                metadata.
            ProcessTimeoutError: Another process did not start its restore in time.
        """
        targets = await self._planned(infos, args)
        sent = [(t, t.placement.share) for t in targets if t.placement.share is not None]
        reader = load_batch_of(infos[0]).reader
        received = iter(await self._receive(sent, reader))
        others = iter(await read([t for t in targets if t.placement.share is None], reader))
        return [next(others if t.placement.share is None else received) for t in targets]

    async def _planned(
        self, infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None
    ) -> list[ArrayTarget]:
        """Plan arrays once all processes that send to each other have their plans."""
        failure: Exception | None = None
        targets: list[ArrayTarget] = []
        try:
            targets = plan_targets(infos, args, self.sharing)
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
            if self.sharing.axes(sharding, np.dtype(np.uint8))
        }
        # the same order on all processes, so that no two groups wait for each other
        return sorted({_processes_of(mesh) for mesh in meshes})

    async def _receive(
        self, targets: Sequence[tuple[ArrayTarget, Share]], reader: BatchReader
    ) -> list[jax.Array]:
        """Read the parts that this process sends, and return the arrays."""
        sender = _Sender(self._max_bytes or _transfer_bytes(self._share_of_free))
        failure: Exception | None = None
        reads = [target.read for target, _ in targets]
        try:
            async with aclosing(reader.read_in_windows(reads)) as windows:
                async for window in windows:
                    part = targets[len(sender.arrays) : len(sender.arrays) + len(window)]
                    for (target, share), values in zip(part, window, strict=True):
                        await sender.send(target, share, target.parts(values))
        except Exception as error:  # noqa: BLE001 - raised after the others no longer wait
            failure = error
        for target, share in targets[len(sender.arrays) :]:
            await sender.send(target, share, {})
        culprits = [
            first_failure(mesh, has_failed=failure is not None)
            for mesh in dict.fromkeys(partition_of(target.sharding)[1] for target, _ in targets)
        ]
        if failure is not None:
            raise failure
        for culprit in culprits:
            if culprit is not None:
                raise ProcessFailedError(
                    f"process {culprit}, which reads parts of arrays for the others, could not "
                    "read them. Its own error says why.",
                    process=culprit,
                )
        return sender.arrays


class _Sender:
    """Sends arrays one after the other; all processes must send the same ones in the same order."""

    def __init__(self, max_bytes: int) -> None:
        self.arrays: list[jax.Array] = []
        self._max_bytes = max_bytes
        self._under_way: list[jax.Array] = []
        self._held = 0

    async def send(
        self, target: ArrayTarget, share: Share, values: Mapping[Region, HostArray]
    ) -> None:
        """Join the broadcast of an array; wait for earlier ones if memory is short."""
        abstract = jax.ShapeDtypeStruct(target.shape, target.final_dtype, sharding=target.sharding)
        nbytes = sent_bytes(abstract)
        if self._held + nbytes > self._max_bytes:
            under_way, self._under_way, self._held = self._under_way, [], 0
            await asyncio.to_thread(_wait, under_way)
        array = broadcast(values, abstract, axes=share.axes, pieces=share.pieces)
        self._under_way.append(array)
        self._held += nbytes
        self.arrays.append(wrap_keys(array, target.key_impl))


def _transfer_bytes(share_of_free: float) -> int:
    """Return the maximum bytes being sent to one device; may differ between processes."""
    device: Any = jax.local_devices()[0]
    memory: dict[str, int] = device.memory_stats() or {}
    if "bytes_limit" not in memory:
        return _DEFAULT_BYTES
    free = memory["bytes_limit"] - memory.get("bytes_in_use", 0)
    return int(free * share_of_free / _COPIES)


def _processes_of(mesh: Mesh) -> tuple[int, ...]:
    return tuple(sorted({device.process_index for device in mesh.devices.flat}))


def _wait(arrays: Sequence[jax.Array]) -> None:
    for array in arrays:
        array.block_until_ready()

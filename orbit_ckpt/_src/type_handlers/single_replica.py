"""JAX arrays that one replica reads from storage and broadcasts to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding
from typing_extensions import override

from orbit_ckpt._src.arrays.broadcast import partition_of, replica_devices, unused_axes
from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.arrays.transfer import local_regions
from orbit_ckpt._src.runtime.checks import check_int, check_number
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.type_handlers.array import ArrayHandler
from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs, Share, Sharing
from orbit_ckpt._src.type_handlers.base import ParamInfo
from orbit_ckpt._src.type_handlers.exchange import ArrayExchange


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
    def _exchange(self, infos: Sequence[ParamInfo]) -> ArrayExchange:
        sharing = _PrimaryReplica(self._axis, self._replica)
        return ArrayExchange(sharing, max_bytes=self._max_bytes, share_of_free=self._factor)


class _PrimaryReplica(Sharing):
    """Lets the devices of one replica along an axis of the mesh read for the others."""

    def __init__(self, axis: int, replica: int) -> None:
        self._axis = axis
        self._replica = replica

    @override
    def axes(self, sharding: jax.sharding.Sharding, dtype: DType) -> Sequence[str]:
        unused = unused_axes(sharding, dtype)
        if not unused:
            return []
        names: Sequence[str] = partition_of(sharding)[1].axis_names
        return [name for name in names[self._axis : self._axis + 1] if name in unused]

    @override
    def share(
        self, sharding: jax.sharding.Sharding, shape: Shape, dtype: DType, chunk_shape: Shape
    ) -> Share | None:
        axes = self.axes(sharding, dtype)
        if not axes:
            return None
        readers = replica_devices(partition_of(sharding)[1], self._axis, self._replica)
        regions = local_regions(sharding, shape)
        return Share(axes, {d: [region] for d, region in regions.items() if d in readers})

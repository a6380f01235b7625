"""Copy arrays from one replica to all others over the device interconnect.

A collective sum does it: the devices of one replica hold the values, all others zeros. It adds the
bits as integers, because a float plus zero may have other bits than the float.

Every process with devices in a mesh must take part, in the same order. A process that cannot read
an array contributes zeros and reports that through `first_failure` at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape, from_index


def can_broadcast(sharding: jax.sharding.Sharding, dtype: DType, axis: int) -> bool:
    """Return whether one replica of an array along a mesh axis can be sent to the others.

    Args:
        sharding: Its sharding.
        dtype: Its dtype.
        axis: The position of the axis in the mesh shape.
    """
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return False
    mesh = sharding.mesh
    if axis >= mesh.devices.ndim or mesh.devices.shape[axis] == 1:
        return False
    if sharding.is_fully_addressable or not sharding.addressable_devices:
        return False  # no other process to send to, or no device here to receive
    return mesh.axis_names[axis] not in _used_axes(sharding.spec) and _is_whole_bytes(dtype)


def replica_devices(mesh: Mesh, axis: int, replica: int) -> frozenset[jax.Device]:
    """Return the devices of one replica.

    Raises:
        ValueError: The replica does not exist.
    """
    count = mesh.devices.shape[axis]
    if not 0 <= replica < count:
        raise ValueError(
            f"primary_replica_id={replica}: axis {axis} of the mesh has {count} replicas"
        )
    return frozenset(np.take(mesh.devices, replica, axis=axis).flat)


def broadcast(
    values: Mapping[Region, HostArray],
    target: jax.ShapeDtypeStruct,
    *,
    axis: int,
    senders: frozenset[jax.Device],
) -> jax.Array:
    """Send values from the devices of one replica to all others; return without waiting.

    Args:
        values: The values on the senders of this process, by region; empty after an error.
        target: Shape, dtype and sharding of the array, see `can_broadcast`.
        axis: The mesh axis along which the replicas lie.
        senders: The devices of one replica.
    """
    sharding = cast(NamedSharding, target.sharding)
    mesh = cast(Mesh, sharding.mesh)
    dtype = cast(DType, target.dtype)
    carrier, trailing = _carrier(dtype)
    spec = PartitionSpec(mesh.axis_names[axis], *sharding.spec)
    shape = (mesh.devices.shape[axis], *target.shape, *trailing)
    part_shape = (1, *sharding.shard_shape(target.shape), *trailing)
    buffers: list[jax.Array] = []
    for device, index in sharding.addressable_devices_indices_map(target.shape).items():
        host = values.get(from_index(index or (), target.shape)) if device in senders else None
        if host is None:
            buffers.append(jnp.zeros(part_shape, carrier, device=device))
        else:
            bits = np.ascontiguousarray(host).reshape(-1).view(carrier).reshape(part_shape)
            buffers.append(_put(bits, device))
    stacked = jax.make_array_from_single_device_arrays(
        shape, NamedSharding(mesh, spec), buffers, dtype=carrier
    )
    return _program(dtype, sharding)(stacked)


def sent_bytes(target: jax.ShapeDtypeStruct) -> int:
    """Return the bytes that each device needs to receive an array, besides the array itself."""
    sharding = cast(jax.sharding.Sharding, target.sharding)
    return math.prod(sharding.shard_shape(target.shape)) * target.dtype.itemsize


def first_failure(mesh: Mesh, *, has_failed: bool) -> int | None:
    """Return a process of the mesh that reports a failure, None if all succeeded."""
    everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    number = np.array([jax.process_index() + 1 if has_failed else 0], np.int32)
    numbers = jax.make_array_from_callback((mesh.size,), everywhere, lambda _: number)
    most = int(_maximum(mesh)(numbers).addressable_data(0))
    return most - 1 if most else None


@functools.lru_cache(maxsize=4096)
def _program(dtype: DType, sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    def sum_bits(stacked: jax.Array) -> jax.Array:
        bits = jnp.sum(stacked, axis=0, dtype=stacked.dtype)
        if dtype.kind == "b":
            return bits != 0
        if dtype.kind == "c":
            parts = _bitcast(bits, np.dtype(f"f{dtype.itemsize // 2}"))
            return jax.lax.complex(parts[..., 0], parts[..., 1])
        return _bitcast(bits, dtype)

    return _jit(sum_bits, out_shardings=sharding)


@functools.lru_cache(maxsize=64)
def _maximum(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    return _jit(jnp.max, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _carrier(dtype: DType) -> tuple[DType, Shape]:
    """Return the integer dtype with the bits of a dtype, and the trailing shape it needs."""
    itemsize = dtype.itemsize
    if dtype.kind == "c":
        return np.dtype(f"u{itemsize // 2}"), (2,)
    return np.dtype(f"u{itemsize}"), ()


def _is_whole_bytes(dtype: DType) -> bool:
    if dtype.kind in "bc":
        return True
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    info = cast(Any, jnp.iinfo(dtype) if is_integer else jnp.finfo(dtype))
    return info.bits == 8 * dtype.itemsize


def _used_axes(spec: PartitionSpec) -> set[object]:
    used: set[object] = set()
    for entry in cast(Iterable[object], spec):
        used.update(cast(Iterable[object], entry) if isinstance(entry, tuple) else (entry,))
    return used


_jit = cast(Callable[..., Callable[[jax.Array], jax.Array]], jax.jit)
_put = cast(Callable[[HostArray, jax.Device], jax.Array], jax.device_put)
_bitcast = cast(
    Callable[[jax.Array, DType], jax.Array],
    jax.lax.bitcast_convert_type,
)

"""Send parts of arrays that some devices have to all that need them.

The devices that need the same part of an array lie along axes of its mesh that its sharding does
not use. Each of them contributes pieces of the part, which do not overlap, and zeros elsewhere; a
collective sum over those axes makes it whole everywhere. It adds the bits as integers, because a
float plus zero may have other bits than the float. Every process with devices in the mesh must take
part, in the same order. A process that cannot read an array contributes zeros and reports that
through `first_failure` at the end.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orbit_ckpt._src.arrays.dtypes import DType, HostArray
from orbit_ckpt._src.arrays.slices import Region, Shape
from orbit_ckpt._src.arrays.transfer import local_regions
from orbit_ckpt._src.guards import is_tuple

_jit = cast(Callable[..., Callable[[jax.Array], jax.Array]], jax.jit)
_put = cast(Callable[[HostArray, jax.Device], jax.Array], jax.device_put)
_bitcast = cast(
    Callable[[jax.Array, DType], jax.Array],
    jax.lax.bitcast_convert_type,
)

Pieces = Mapping[jax.Device, Sequence[Region]]
"""The regions of an array that each device contributes; one without an entry contributes none."""


def unused_axes(sharding: jax.sharding.Sharding, dtype: DType) -> tuple[str, ...]:
    """Return the mesh axes along which devices hold equal parts of an array.

    They are empty where nothing is to be sent: between the devices of one process, in other
    shardings than those over a mesh, in dtypes smaller than a byte, and where no device of this
    process could receive it.
    """
    if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, Mesh):
        return ()
    if sharding.is_fully_addressable or not sharding.addressable_devices:
        return ()  # no other process to send to, or no device here to receive
    if not _is_whole_bytes(dtype):
        return ()
    mesh, used = sharding.mesh, _used_axes(sharding.spec)
    names: Sequence[str] = mesh.axis_names
    free = [axis for axis, name in enumerate(names) if name not in used]
    return tuple(names[axis] for axis in free if mesh.devices.shape[axis] > 1)


def partition_of(sharding: object) -> tuple[NamedSharding, Mesh]:
    """Return a sharding that has `unused_axes`, and its mesh.

    Raises:
        TypeError: It is another sharding.
    """
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
        return sharding, sharding.mesh
    raise TypeError(f"{sharding} is no NamedSharding over a mesh of devices")


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
    axes: Sequence[str],
    pieces: Pieces,
) -> jax.Array:
    """Send pieces of an array to all devices that need them; return without waiting.

    Args:
        values: The values of the pieces that this process sends, by region; empty after an error.
        target: Shape, dtype and sharding of the array.
        axes: Some of its `unused_axes`. Devices that differ in other unused axes contribute equal
            pieces.
        pieces: What each device of this process contributes.
    """
    sharding, mesh = partition_of(target.sharding)
    dtype = target.dtype
    carrier, trailing = _carrier(dtype)
    spec = PartitionSpec(tuple(axes), *sharding.spec)
    replicas = math.prod(mesh.shape[axis] for axis in axes)
    part_shape = (1, *sharding.shard_shape(target.shape), *trailing)
    buffers: list[jax.Array] = []
    for device, part in local_regions(sharding, target.shape).items():
        sent = [region for region in pieces.get(device, ()) if region in values]
        if sent:
            bits = _joined([(r.within(part), values[r]) for r in sent], part.shape, dtype)
            buffers.append(_put(bits.view(carrier).reshape(part_shape), device))
        else:
            buffers.append(jnp.zeros(part_shape, carrier, device=device))
    stacked = jax.make_array_from_single_device_arrays(
        (replicas, *target.shape, *trailing), NamedSharding(mesh, spec), buffers, dtype=carrier
    )
    return _program(dtype, sharding)(stacked)


def _joined(pieces: Sequence[tuple[Region, HostArray]], shape: Shape, dtype: DType) -> HostArray:
    """Return the flat values of a part, zeros outside its pieces."""
    first, values = pieces[0]
    if first.shape == shape:
        return np.ascontiguousarray(values).reshape(-1)
    part = np.zeros(shape, dtype)
    for region, host in pieces:
        part[region.slices] = host
    return part.reshape(-1)


def sent_bytes(target: jax.ShapeDtypeStruct) -> int:
    """Return the bytes that each device needs to receive an array, besides the array itself."""
    sharding, _ = partition_of(target.sharding)
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
    entries: Iterable[object] = spec
    for entry in entries:
        used.update(entry if is_tuple(entry) else (entry,))
    return used

"""Convert between JAX's shardings, what callers pass and what checkpoints record."""

from __future__ import annotations

import logging
import math
import string
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from orbit_ckpt._src.arrays.recorded_sharding import (
    NamedShardingMetadata,
    ShardingMetadata,
    SingleDeviceShardingMetadata,
)
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.text import visible

_logger = logging.getLogger(__name__)


def describe_sharding(
    sharding: jax.sharding.Sharding | ShardingMetadata,
) -> ShardingMetadata | None:
    """Return the metadata to record of a sharding, None for kinds without an Orbax form.

    Metadata is returned unchanged.
    """
    match sharding:
        case NamedSharding(mesh=Mesh()):
            return NamedShardingMetadata.from_jax_sharding(sharding)
        case SingleDeviceSharding():
            return SingleDeviceShardingMetadata.from_jax_sharding(sharding)
        case NamedShardingMetadata() | SingleDeviceShardingMetadata():
            return sharding
        case _:
            return None


def as_sharding(value: object, where: str) -> jax.sharding.Sharding:
    """Convert a caller's value to a sharding.

    Args:
        value: A sharding; a memory layout, which wraps one; or a device, which holds whole arrays.
        where: The argument or leaf it belongs to, for the message.

    Raises:
        TypeError: It is something else, or a sharding without devices.
    """
    if isinstance(value, NamedSharding) and type(value.mesh) is Mesh:
        return value  # the common case
    inner: object = value
    if not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        inner = getattr(value, "sharding", value)  # of a jax.experimental.layout.Format
    if isinstance(inner, jax.Device):
        return SingleDeviceSharding(inner)
    if isinstance(inner, jax.sharding.Sharding):
        if not isinstance(inner, NamedSharding) or isinstance(inner.mesh, Mesh):
            return inner
        found = f"{inner}, whose mesh is abstract and has no devices"
    else:
        found = f"{type(value).__name__} {str(value)[:200]!r}"
    raise TypeError(
        f"{where}: expected a jax.sharding.Sharding or a jax.Device, found {found}. Give a "
        "jax.sharding.NamedSharding(mesh, PartitionSpec(...)); to choose by leaf names, give "
        "sharding=orbit_ckpt.transform.partition(mesh, {'**/kernel': PartitionSpec('x'), ...})."
    )


def check_divides(sharding: jax.sharding.Sharding, shape: Shape, rank: int) -> None:
    """Check that an array can have a sharding.

    Args:
        sharding: The sharding.
        shape: The array's shape.
        rank: The number of dimensions that the caller sees; typed keys have more.

    Raises:
        ValueError: The sharding has more dimensions than the array, or does not divide one evenly.
    """
    entries = tuple(sharding.spec) if isinstance(sharding, NamedSharding) else ()
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    # the trailing dimensions of keys are recorded as None entries
    if len(entries) > len(shape) or any(entry is not None for entry in entries[rank:]):
        problem = f"the spec has {len(entries)} entries, the array {rank} dimensions"
    else:
        try:
            sharding.shard_shape(shape)
        except (ValueError, IndexError) as error:
            problem = str(error)
        else:
            return
    raise ValueError(
        f"shape {shape[:rank]} cannot have a sharding with {spec}: {problem}. Give this leaf "
        "another sharding, by its name in sharding={...} or in the target."
    )


def default_sharding() -> jax.sharding.Sharding:
    """Return the sharding of JAX's default device."""
    default: object = jax.config.jax_default_device
    device = default if isinstance(default, jax.Device) else jax.local_devices()[0]
    return SingleDeviceSharding(device)


class ShardingResolver:
    """Converts recorded shardings to JAX's; each is a hint, not a requirement.

    One resolver serves one restore: it builds equal shardings once and reports once if recorded
    devices do not exist here.
    """

    def __init__(self, fallback: jax.sharding.Sharding | None = None) -> None:
        """Make a resolver.

        Args:
            fallback: Sharding of arrays whose own is unusable; None is the default device.
        """
        self.fallback = fallback
        self._resolved: dict[ShardingMetadata, jax.sharding.Sharding] = {}
        self._reported = False

    def resolve(self, metadata: ShardingMetadata | None, shape: Shape) -> jax.sharding.Sharding:
        """Return the recorded sharding, or the fallback if the array cannot have it here."""
        if metadata is None:
            return self.fallback or default_sharding()
        try:
            self._build(metadata).shard_shape(shape)
            return self._resolved[metadata]
        except Exception as error:  # noqa: BLE001 - a hint may be wrong in any way
            instead = self.fallback or default_sharding()
            if not self._reported:
                self._reported = True
                _logger.warning(
                    "Recorded sharding cannot be used here (%s); placing arrays on %s instead. "
                    "Give a target with shardings to choose.",
                    visible(str(error)),
                    instead,
                )
            return instead

    def find(self, metadata: ShardingMetadata) -> jax.sharding.Sharding | None:
        """Return the recorded sharding for any shape; None if its devices do not exist here."""
        try:
            return self._build(metadata)
        except Exception:  # noqa: BLE001 - a hint may be wrong in any way
            return None

    def _build(self, metadata: ShardingMetadata) -> jax.sharding.Sharding:
        if metadata not in self._resolved:
            self._resolved[metadata] = metadata.to_jax_sharding()
        return self._resolved[metadata]


def construct_maximal_shardings(
    abstract_state: object, devices: Sequence[jax.Device] | None = None
) -> Any:  # a tree of the state's structure
    """Return shardings that split every array among as many devices as its shape allows.

    Arrays whose dimensions are all smaller than the number of devices are replicated.

    Args:
        abstract_state: A tree of arrays or `jax.ShapeDtypeStruct`.
        devices: The devices, by default all.
    """
    used = jax.devices() if devices is None else list(devices)

    def split(leaf: Any) -> NamedSharding:
        return _maximal_sharding(leaf.shape, used)

    return jax.tree_util.tree_map(split, abstract_state)


def _maximal_sharding(shape: Shape, devices: Sequence[jax.Device]) -> NamedSharding:
    """Split the largest dimensions first, each by what it shares with the remaining devices."""
    remaining = len(devices)
    sizes: list[int] = []
    axes: list[str | None] = [None] * len(shape)
    if max(shape, default=0) >= jax.device_count():
        for dimension in map(int, np.argsort(shape)[::-1]):
            common = math.gcd(shape[dimension], remaining)
            if shape[dimension] >= remaining and common > 1:
                axes[dimension] = string.ascii_lowercase[len(sizes)]
                sizes.append(common)
                remaining //= common
    if remaining > 1 or not sizes:
        sizes.append(remaining)
    mesh = Mesh(np.asarray(devices).reshape(sizes), tuple(string.ascii_lowercase[: len(sizes)]))
    return NamedSharding(mesh, PartitionSpec(*(axes if any(axes) else ())))


def fully_replicated_host_local_array_to_global_array(arr: jax.Array) -> jax.Array:
    """Convert an array replicated on each process to one replicated on all devices.

    Args:
        arr: An array replicated on this process's devices, such as a result of `jax.pmap`, whose
            first axis is dropped.
    """
    pieces = [shard.data for shard in arr.addressable_shards]
    if pieces[0].shape != arr.shape:
        pieces = [piece[0] for piece in pieces]
    sharding = NamedSharding(Mesh(np.asarray(jax.devices()), ("x",)), PartitionSpec())
    return jax.make_array_from_single_device_arrays(pieces[0].shape, sharding, pieces)

"""Copies of arrays on the devices that hold them, which a background save streams to the host.

A device copies its own memory tens of times as fast as it sends it to the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp

from orbit_ckpt._src.arrays.references import views_keep_values

MemoryStats = Callable[[jax.Device], Mapping[str, int] | None]
"""Returns the memory statistics of a device, in bytes; None if it has none."""

_SHARE = 2
"""Copies take up to half of the memory that training has never used."""

DeviceError = cast(type[Exception], cast(Any, jax.errors).JaxRuntimeError)
"""What JAX raises where a device has no memory left, for example."""

_copy = cast(Callable[[jax.Array], jax.Array], cast(Any, jax.jit)(jnp.copy))
"""Without donation, an output of XLA never shares the memory of an input."""


class DeviceBudgets:
    """How many bytes of copies fit on devices beside training, from one save to the next."""

    def __init__(self, memory_stats: MemoryStats | None = None) -> None:
        """Make one that knows no device.

        Args:
            memory_stats: Replaces `Device.memory_stats`.
        """
        self._stats = memory_stats or _memory_stats
        self._peaks: dict[jax.Device, int] = {}
        self._copied: dict[jax.Device, int] = {}

    def free_bytes(self, device: jax.Device) -> int | None:
        """Return the bytes that copies may take now; None if the device does not report it."""
        stats = self._stats(device)
        if not stats or "bytes_limit" not in stats or "bytes_in_use" not in stats:
            return None
        in_use = stats["bytes_in_use"]
        peak = max(in_use, stats.get("peak_bytes_in_use", in_use))
        if device in self._peaks:  # earlier copies are part of the peak
            peak = max(in_use, self._peaks[device], peak - self._copied.get(device, 0))
        self._peaks[device] = peak
        return max(0, stats["bytes_limit"] - peak) // _SHARE

    def note_copied(self, device: jax.Device, nbytes: int) -> None:
        """Note the size of the copies that one save has made on a device."""
        self._copied[device] = max(nbytes, self._copied.get(device, 0))


def _memory_stats(device: jax.Device) -> Mapping[str, int] | None:
    return cast("Mapping[str, int] | None", cast(Any, device).memory_stats())


def device_of(array: jax.Array) -> jax.Device:
    """Return the device of an array that is on one only."""
    return next(iter(array.sharding.device_set))


def is_in_device_memory(array: jax.Array) -> bool:
    """Return whether an array on one device is in its own memory, not in that of the host."""
    kind = array.sharding.memory_kind
    return kind is None or kind == cast(Any, device_of(array)).default_memory().kind


def has_pinned_memory(device: jax.Device) -> bool:
    """Return whether a device is a GPU that can copy to pinned host memory."""
    memories = cast(Any, device).addressable_memories()
    return device.platform == "gpu" and any(memory.kind == PINNED for memory in memories)


PINNED = "pinned_host"
"""JAX's kind of that memory."""


class DeviceCopy:
    """A copy of an array on its device, deleted once all of it is written."""

    def __init__(self, array: jax.Array) -> None:
        """Take over an array to which nothing else refers."""
        self.array = array
        self._is_remote = device_of(array).platform != "cpu"  # else views of it may be in use
        self._pending = array.size
        self._lock = threading.Lock()

    def release(self, size: int) -> None:
        """Note that some elements are written; free the memory after the last one."""
        with self._lock:
            self._pending -= size
            is_last = self._pending <= 0
        if is_last and (self._is_remote or views_keep_values()):
            self.array.delete()


def copies_of(makers: Iterable[Callable[[], jax.Array]]) -> list[DeviceCopy | None]:
    """Make copies of arrays on devices; return once they are complete.

    Args:
        makers: Start to make a copy each.

    Returns:
        The copies; None for those for which the device has no memory left.
    """
    return [_completed(copy) for copy in [_started(make) for make in makers]]


def copy_on_device(array: jax.Array) -> jax.Array:
    """Start to copy an array on its device."""
    return _copy(array)


def _started(make: Callable[[], jax.Array]) -> jax.Array | None:
    try:
        return make()
    except DeviceError:
        return None


def _completed(copy: jax.Array | None) -> DeviceCopy | None:
    try:
        return None if copy is None else DeviceCopy(copy.block_until_ready())
    except DeviceError:  # found only when it runs
        return None

"""Information about JAX's processes, and barriers between them, under Orbax's names.

Barriers use JAX's coordination service and need no device.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Collection, Sequence
from typing import Any, Protocol, cast

import jax
import numpy as np
from jax.experimental import multihost_utils

from orbit_ckpt._src.runtime.jax_process_group import barrier_or_fail, has_preemption_service
from orbit_ckpt._src.runtime.process import distributed_state

_TIMEOUT_S = 300


class BarrierSyncFn(Protocol):
    """A barrier, to be called by all its processes."""

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Wait until all processes have called it.

        Args:
            key: Name of the barrier; the same on all of them.
            timeout_ms: Maximum milliseconds to wait.
        """
        ...


def coordination_timeout() -> int:
    """Return the seconds that a barrier waits by default."""
    return _TIMEOUT_S


def process_index() -> int:
    """Return the index of this process among JAX's."""
    return jax.process_index()


def process_count() -> int:
    """Return the number of JAX's processes."""
    return jax.process_count()


def is_primary_host(primary_host: int | None) -> bool:
    """Return whether this process is the primary one; with None every process is."""
    return primary_host is None or primary_host == process_index()


def process_index_from_device(device: jax.Device) -> int:
    """Return the index of the process to which a device belongs."""
    return device.process_index


def unique_processes_from_devices(device_array: Any) -> set[int]:
    """Return the indices of the processes to which an array of devices belongs."""
    return {process_index_from_device(device) for device in np.asarray(device_array).flat}


def should_skip_process_sync(processes: Collection[int] | None = None) -> bool:
    """Return whether this process has no other process to wait for.

    Args:
        processes: The processes that wait, None for all.
    """
    return process_count() == 1 or (bool(processes) and {*processes} == {process_index()})


def unique_barrier_key(key: str, *, prefix: str | None = None, suffix: str | None = None) -> str:
    """Return the name of a barrier with a prefix and a suffix."""
    key = key if prefix is None else f"{prefix}_{key}"
    return key if suffix is None else f"{key}.{suffix}"


def is_jax_distributed_client_initialized() -> bool:
    """Return whether `jax.distributed.initialize` has been called."""
    state = distributed_state()
    return state is not None and state.client is not None


def get_jax_distributed_client() -> Any:
    """Return JAX's client of its coordination service.

    Raises:
        ValueError: There is none.
    """
    if not is_jax_distributed_client_initialized():
        raise ValueError(
            "There is no coordination service; call jax.distributed.initialize() at the start of "
            "the program."
        )
    return distributed_state().client


def get_barrier_sync_fn(*, processes: Collection[int] | None = None) -> BarrierSyncFn:
    """Return a barrier of some processes; a process that is alone does not wait.

    Args:
        processes: Indices of the processes, None for all.

    Raises:
        ValueError: This process is not among them, or `jax.distributed` is not initialized.
    """
    if should_skip_process_sync(processes):
        return _no_barrier
    get_jax_distributed_client()
    members = sorted(processes or range(process_count()))
    if process_index() not in members:
        raise ValueError(
            f"This process, {process_index()}, is not among the processes of the barrier: "
            f"{members}. Call it on those only."
        )
    return functools.partial(_barrier, members)


def _no_barrier(*, key: str, timeout_ms: int) -> None:
    del key, timeout_ms


def _barrier(members: Collection[int], *, key: str, timeout_ms: int) -> None:
    barrier_or_fail(key, members, timeout_s=timeout_ms / 1000)


def sync_global_processes(
    name: str,
    *,
    timeout: float | None = None,
    processes: Collection[int] | None = None,
    barrier_sync_fn: BarrierSyncFn | None = None,
    record_event_name: str = "/jax/checkpoint/sync_global_devices_duration_sec",
) -> None:
    """Wait until all processes have called this.

    Args:
        name: Name of the barrier; the same on all of them.
        timeout: Maximum seconds to wait, None for 300.
        processes: Indices of the processes that wait, None for all.
        barrier_sync_fn: Another barrier to use.
        record_event_name: Name of the event that reports the duration to `jax.monitoring`.

    Raises:
        ProcessTimeoutError: Another process did not arrive in time.
    """
    if should_skip_process_sync(processes):
        return
    start = time.monotonic()
    barrier = barrier_sync_fn or get_barrier_sync_fn(processes=processes)
    barrier(key=name, timeout_ms=round(1000 * (timeout or _TIMEOUT_S)))
    jax.monitoring.record_event_duration_secs(record_event_name, time.monotonic() - start)


def broadcast_one_to_all(
    in_tree: Any, is_source: bool | None = None
) -> Any:  # a tree like `in_tree`
    """Return one process's tree on all processes, with NumPy arrays as leaves.

    Args:
        in_tree: A tree of arrays and numbers, of the same structure, shapes and dtypes everywhere.
        is_source: Whether it is this process's, by default that of the first.
    """
    if is_source is None:
        is_source = process_index() == 0
    return multihost_utils.broadcast_one_to_all(in_tree, is_source=is_source)


def global_max(values: Sequence[int]) -> list[int]:
    """Return the maximum of each of several numbers among all processes.

    Args:
        values: This process's numbers, which 32 bits can represent.

    Raises:
        OverflowError: A number is too large.
    """
    mine = np.asarray(values, np.int32).reshape(1, -1)
    every = multihost_utils.process_allgather(mine, tiled=True)
    return [int(value) for value in np.asarray(every).max(axis=0)]


def reached_preemption(step: int) -> bool:
    """Return whether all processes have reached the step to save before a preemption.

    Args:
        step: The current step.
    """
    if not has_preemption_service():
        return False
    try:
        return bool(multihost_utils.reached_preemption_sync_point(step))
    except RuntimeError:  # the service is turned off in JAX's configuration
        return False


def is_runtime_to_distributed_ids_initialized() -> bool:
    """Return True: a process has a single index here, so no mapping is needed."""
    return True


def initialize_runtime_to_distributed_ids() -> None:
    """Do nothing; see `is_runtime_to_distributed_ids_initialized`."""


def _backend() -> Any:
    return cast(Any, jax.devices()[0]).client


def is_native_pathways_backend() -> bool:
    """Return whether JAX runs on Pathways, without its proxy."""
    return hasattr(_backend(), "pathways") or _backend().runtime_type == "pathways"


def is_proxy_pathways_backend() -> bool:
    """Return whether JAX runs on Pathways through its proxy."""
    return _backend().runtime_type == "proxy/pathways"


def is_pathways_backend() -> bool:
    """Return whether JAX runs on Pathways, where one process controls all devices."""
    return is_native_pathways_backend() or is_proxy_pathways_backend()


def is_cloud_pathways_persistence_enabled() -> bool:
    """Return whether `ENABLE_PATHWAYS_PERSISTENCE` is 1.

    Raises:
        ValueError: The variable is neither 0 nor 1.
    """
    value = os.environ.get("ENABLE_PATHWAYS_PERSISTENCE", "0")
    if value not in ("0", "1"):
        raise ValueError(
            f"ENABLE_PATHWAYS_PERSISTENCE is {value!r}; set it to 0 or 1, or unset it."
        )
    return value == "1"

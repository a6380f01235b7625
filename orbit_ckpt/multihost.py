"""The processes of JAX, under Orbax's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.runtime.multihost import (
        BarrierSyncFn,
        broadcast_one_to_all,
        coordination_timeout,
        get_barrier_sync_fn,
        get_jax_distributed_client,
        global_max,
        initialize_runtime_to_distributed_ids,
        is_cloud_pathways_persistence_enabled,
        is_jax_distributed_client_initialized,
        is_native_pathways_backend,
        is_pathways_backend,
        is_primary_host,
        is_proxy_pathways_backend,
        is_runtime_to_distributed_ids_initialized,
        process_count,
        process_index,
        process_index_from_device,
        reached_preemption,
        should_skip_process_sync,
        sync_global_processes,
        unique_barrier_key,
        unique_processes_from_devices,
    )

__all__ = [
    "BarrierSyncFn",
    "broadcast_one_to_all",
    "coordination_timeout",
    "get_barrier_sync_fn",
    "get_jax_distributed_client",
    "global_max",
    "initialize_runtime_to_distributed_ids",
    "is_cloud_pathways_persistence_enabled",
    "is_jax_distributed_client_initialized",
    "is_native_pathways_backend",
    "is_pathways_backend",
    "is_primary_host",
    "is_proxy_pathways_backend",
    "is_runtime_to_distributed_ids_initialized",
    "process_count",
    "process_index",
    "process_index_from_device",
    "reached_preemption",
    "should_skip_process_sync",
    "sync_global_processes",
    "unique_barrier_key",
    "unique_processes_from_devices",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "runtime.multihost": (
            "BarrierSyncFn, broadcast_one_to_all, coordination_timeout, get_barrier_sync_fn, "
            "get_jax_distributed_client, global_max, initialize_runtime_to_distributed_ids, "
            "is_cloud_pathways_persistence_enabled, is_jax_distributed_client_initialized, "
            "is_native_pathways_backend, is_pathways_backend, is_primary_host, "
            "is_proxy_pathways_backend, is_runtime_to_distributed_ids_initialized, "
            "process_count, process_index, process_index_from_device, reached_preemption, "
            "should_skip_process_sync, sync_global_processes, unique_barrier_key, "
            "unique_processes_from_devices"
        ),
    },
)

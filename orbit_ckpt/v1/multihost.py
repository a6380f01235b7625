"""The processes of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.runtime.multihost import (
        is_pathways_backend,
        is_primary_host,
        process_count,
        process_index,
    )
    from orbit_ckpt._src.v1.multihost import sync_global_processes

__all__ = [
    "is_pathways_backend",
    "is_primary_host",
    "process_count",
    "process_index",
    "sync_global_processes",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "runtime.multihost": ("is_pathways_backend, is_primary_host, process_count, process_index"),
        "v1.multihost": "sync_global_processes",
    },
)

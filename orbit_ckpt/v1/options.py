"""The options of a context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.storage.atomic import AtomicityMode
    from orbit_ckpt._src.v1.options import (
        ArrayOptions,
        AsyncOptions,
        AtomicityOptions,
        CheckpointablesOptions,
        CheckpointLayout,
        DeletionOptions,
        FileOptions,
        MemoryOptions,
        MultiprocessingOptions,
        PathwaysOptions,
        PyTreeOptions,
        SafetensorsOptions,
    )

__all__ = [
    "ArrayOptions",
    "AsyncOptions",
    "AtomicityMode",
    "AtomicityOptions",
    "CheckpointLayout",
    "CheckpointablesOptions",
    "DeletionOptions",
    "FileOptions",
    "MemoryOptions",
    "MultiprocessingOptions",
    "PathwaysOptions",
    "PyTreeOptions",
    "SafetensorsOptions",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "storage.atomic": "AtomicityMode",
        "v1.options": (
            "ArrayOptions, AsyncOptions, AtomicityOptions, CheckpointLayout, "
            "CheckpointablesOptions, DeletionOptions, FileOptions, MemoryOptions, "
            "MultiprocessingOptions, PathwaysOptions, PyTreeOptions, "
            "SafetensorsOptions"
        ),
    },
)

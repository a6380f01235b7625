"""Options of checkpointers and managers, under Orbax's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.checkpointer.options import (
        AsyncOptions,
        AtomicityOptions,
        FileOptions,
        MultiprocessingOptions,
    )
    from orbit_ckpt._src.pytree.engine import MemoryLimitOptions, MemoryOptions
    from orbit_ckpt._src.storage.atomic import AtomicityMode

__all__ = [
    "AsyncOptions",
    "AtomicityMode",
    "AtomicityOptions",
    "FileOptions",
    "MemoryLimitOptions",
    "MemoryOptions",
    "MultiprocessingOptions",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "checkpointer.options": (
            "AsyncOptions, AtomicityOptions, FileOptions, MultiprocessingOptions"
        ),
        "pytree.engine": "MemoryLimitOptions, MemoryOptions",
        "storage.atomic": "AtomicityMode",
    },
)

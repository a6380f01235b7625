"""Save a tree in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.v1.partial import finalize, save, save_async

__all__ = [
    "finalize",
    "save",
    "save_async",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "v1.partial": "finalize, save, save_async",
    },
)

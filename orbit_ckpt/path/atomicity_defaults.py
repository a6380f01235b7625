"""The way in which a checkpoint at a path becomes visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.checkpointer.unfinished import get_default_temporary_path_class

__all__ = [
    "get_default_temporary_path_class",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "checkpointer.unfinished": "get_default_temporary_path_class",
    },
)

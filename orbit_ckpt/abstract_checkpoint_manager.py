"""The interface of managers, under Orbax's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.abstract import AbstractCheckpointManager

__all__ = [
    "AbstractCheckpointManager",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.abstract": "AbstractCheckpointManager",
    },
)

"""Events of managers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.statistics import RestoreStepStatistics, SaveStepStatistics

__all__ = [
    "RestoreStepStatistics",
    "SaveStepStatistics",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.statistics": "RestoreStepStatistics, SaveStepStatistics",
    },
)

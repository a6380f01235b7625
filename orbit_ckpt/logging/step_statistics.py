"""Events of managers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.statistics import (
        CommitStepStatistics,
        RestoreStepStatistics,
        SaveStepStatistics,
    )

__all__ = [
    "CommitStepStatistics",
    "RestoreStepStatistics",
    "SaveStepStatistics",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.statistics": "CommitStepStatistics, RestoreStepStatistics, SaveStepStatistics",
    },
)

"""Which steps to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.combined_preservation import AnyPreservationPolicy
    from orbit_ckpt._src.manager.preservation import (
        BestN,
        CustomSteps,
        EveryNSeconds,
        EveryNSteps,
        EveryNStepsClosest,
        LatestDuration,
        LatestN,
        PreservationContext,
        PreservationPolicy,
        PreserveAll,
    )

__all__ = [
    "AnyPreservationPolicy",
    "BestN",
    "CustomSteps",
    "EveryNSeconds",
    "EveryNSteps",
    "EveryNStepsClosest",
    "LatestDuration",
    "LatestN",
    "PreservationContext",
    "PreservationPolicy",
    "PreserveAll",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.combined_preservation": "AnyPreservationPolicy",
        "manager.preservation": (
            "BestN, CustomSteps, EveryNSeconds, EveryNSteps, EveryNStepsClosest, "
            "LatestDuration, LatestN, PreservationContext, PreservationPolicy, "
            "PreserveAll"
        ),
    },
)

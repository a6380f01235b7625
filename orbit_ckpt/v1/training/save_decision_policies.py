"""When to save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.save_policies import (
        AnySavePolicy,
        ContinuousCheckpointingPolicy,
        DecisionContext,
        FixedIntervalPolicy,
        InitialSavePolicy,
        PreemptionCheckpointingPolicy,
        SaveDecisionPolicy,
        SpecificStepsPolicy,
    )

__all__ = [
    "AnySavePolicy",
    "ContinuousCheckpointingPolicy",
    "DecisionContext",
    "FixedIntervalPolicy",
    "InitialSavePolicy",
    "PreemptionCheckpointingPolicy",
    "SaveDecisionPolicy",
    "SpecificStepsPolicy",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.save_policies": (
            "AnySavePolicy, ContinuousCheckpointingPolicy, DecisionContext, "
            "FixedIntervalPolicy, InitialSavePolicy, PreemptionCheckpointingPolicy, "
            "SaveDecisionPolicy, SpecificStepsPolicy"
        ),
    },
)

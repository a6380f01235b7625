"""Policies that decide when a `CheckpointManager` saves and which steps it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.combined_preservation import (
        AllPreservationPolicy,
        AmongPermanent,
        AnyPreservationPolicy,
        InTurn,
    )
    from orbit_ckpt._src.manager.plugin_policies import find_policy
    from orbit_ckpt._src.manager.preservation import (
        BestN,
        CustomSteps,
        EveryNSeconds,
        EveryNSteps,
        EveryNStepsClosest,
        LatestDuration,
        LatestN,
        LatestTemporary,
        Pinned,
        PreservationContext,
        PreservationPolicy,
        PreserveAll,
        SaveBest,
    )
    from orbit_ckpt._src.manager.retention import RetentionPlan, RetentionRules, StepRetention
    from orbit_ckpt._src.manager.save_policies import (
        AllSavePolicy,
        AnySavePolicy,
        BoundedOverheadPolicy,
        CheckpointInterval,
        ContinuousCheckpointingPolicy,
        DecisionContext,
        FixedIntervalPolicy,
        FunctionPolicy,
        InitialSavePolicy,
        IntervalsPolicy,
        PreemptionCheckpointingPolicy,
        SaveDecision,
        SaveDecisionPolicy,
        SpecificStepsPolicy,
        TemporaryPolicy,
        TimeIntervalPolicy,
        decide,
    )
    from orbit_ckpt._src.manager.step_info import StepInfo
    from orbit_ckpt._src.manager.step_info import StepInfo as PolicyCheckpointInfo

__all__ = [
    "AllPreservationPolicy",
    "AllSavePolicy",
    "AmongPermanent",
    "AnyPreservationPolicy",
    "AnySavePolicy",
    "BestN",
    "BoundedOverheadPolicy",
    "CheckpointInterval",
    "ContinuousCheckpointingPolicy",
    "CustomSteps",
    "DecisionContext",
    "EveryNSeconds",
    "EveryNSteps",
    "EveryNStepsClosest",
    "FixedIntervalPolicy",
    "FunctionPolicy",
    "InTurn",
    "InitialSavePolicy",
    "IntervalsPolicy",
    "LatestDuration",
    "LatestN",
    "LatestTemporary",
    "Pinned",
    "PolicyCheckpointInfo",
    "PreemptionCheckpointingPolicy",
    "PreservationContext",
    "PreservationPolicy",
    "PreserveAll",
    "RetentionPlan",
    "RetentionRules",
    "SaveBest",
    "SaveDecision",
    "SaveDecisionPolicy",
    "SpecificStepsPolicy",
    "StepInfo",
    "StepRetention",
    "TemporaryPolicy",
    "TimeIntervalPolicy",
    "decide",
    "find_policy",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.combined_preservation": (
            "AllPreservationPolicy, AmongPermanent, AnyPreservationPolicy, InTurn"
        ),
        "manager.plugin_policies": "find_policy",
        "manager.preservation": (
            "BestN, CustomSteps, EveryNSeconds, EveryNSteps, EveryNStepsClosest, LatestDuration, "
            "LatestN, LatestTemporary, Pinned, PreservationContext, PreservationPolicy, "
            "PreserveAll, SaveBest"
        ),
        "manager.retention": "RetentionPlan, RetentionRules, StepRetention",
        "manager.save_policies": (
            "AllSavePolicy, AnySavePolicy, BoundedOverheadPolicy, CheckpointInterval, "
            "ContinuousCheckpointingPolicy, decide, DecisionContext, FixedIntervalPolicy, "
            "FunctionPolicy, InitialSavePolicy, IntervalsPolicy, PreemptionCheckpointingPolicy, "
            "SaveDecision, SaveDecisionPolicy, SpecificStepsPolicy, TemporaryPolicy, "
            "TimeIntervalPolicy"
        ),
        "manager.step_info": "StepInfo as PolicyCheckpointInfo, StepInfo",
    },
)

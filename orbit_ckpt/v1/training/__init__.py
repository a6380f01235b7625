"""Runs of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.v1.step_metadata import CheckpointMetadata
    from orbit_ckpt._src.v1.training import Checkpointer
    from orbit_ckpt._src.v1.training_run import RootMetadata
    from orbit_ckpt.v1.training import (
        errors,
        pathways,
        preservation_policies,
        save_decision_policies,
    )

__all__ = [
    "CheckpointMetadata",
    "Checkpointer",
    "RootMetadata",
    "errors",
    "pathways",
    "preservation_policies",
    "save_decision_policies",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": (
            "v1.training.errors as errors, v1.training.pathways as pathways, "
            "v1.training.preservation_policies as preservation_policies, "
            "v1.training.save_decision_policies as save_decision_policies"
        ),
        "v1.step_metadata": "CheckpointMetadata",
        "v1.training": "Checkpointer",
        "v1.training_run": "RootMetadata",
    },
)

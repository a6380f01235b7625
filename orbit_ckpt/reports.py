"""Results of `plan`, `diff`, `statistics` and `verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.arrays.compare import ValueChange
    from orbit_ckpt._src.arrays.statistics import ArrayStatistics
    from orbit_ckpt._src.pytree.compare.report import CheckpointDiff, LeafChange, UnmatchedLeaf
    from orbit_ckpt._src.pytree.restore.explain import LeafPlan, RestorePlan
    from orbit_ckpt._src.verify.report import Damage, Unchecked, Unverifiable, VerifyReport

__all__ = [
    "ArrayStatistics",
    "CheckpointDiff",
    "Damage",
    "LeafChange",
    "LeafPlan",
    "RestorePlan",
    "Unchecked",
    "UnmatchedLeaf",
    "Unverifiable",
    "ValueChange",
    "VerifyReport",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "arrays.compare": "ValueChange",
        "arrays.statistics": "ArrayStatistics",
        "pytree.compare.report": "CheckpointDiff, LeafChange, UnmatchedLeaf",
        "pytree.restore.explain": "LeafPlan, RestorePlan",
        "verify.report": "Damage, Unchecked, Unverifiable, VerifyReport",
    },
)

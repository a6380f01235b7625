"""Orbax's transforms; the rules in `orbit_ckpt.transform` are more general."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.transform.legacy import RestoreTransform, Transform, apply_transformations
    from orbit_ckpt._src.transform.trees import intersect_trees, merge_trees

__all__ = [
    "RestoreTransform",
    "Transform",
    "apply_transformations",
    "intersect_trees",
    "merge_trees",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "transform.legacy": "apply_transformations, RestoreTransform, Transform",
        "transform.trees": "intersect_trees, merge_trees",
    },
)

"""Orbax's transforms, under the name of Orbax's module; see `transform.rules` for rules of ours."""

from orbit_ckpt.transform.legacy import RestoreTransform, Transform, apply_transformations
from orbit_ckpt.transform.trees import intersect_trees, merge_trees

__all__ = [
    "RestoreTransform",
    "Transform",
    "apply_transformations",
    "intersect_trees",
    "merge_trees",
]

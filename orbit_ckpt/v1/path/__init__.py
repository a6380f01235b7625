"""Types of paths, and names of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.v1.types import Path, PathAwaitingCreation, PathLike
    from orbit_ckpt.v1.path import (
        step,
    )

__all__ = [
    "Path",
    "PathAwaitingCreation",
    "PathLike",
    "step",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": ("v1.path.step as step"),
        "v1.types": "Path, PathAwaitingCreation, PathLike",
    },
)

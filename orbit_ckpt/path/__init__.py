"""Paths of checkpoints and steps, under the names of Orbax's `path`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt.path import (
        atomicity,
        atomicity_defaults,
        atomicity_types,
        deleter,
        format_utils,
        step,
    )

__all__ = [
    "atomicity",
    "atomicity_defaults",
    "atomicity_types",
    "deleter",
    "format_utils",
    "step",
]

__getattr__, __dir__ = lazy_names(
    globals(), {"": ", ".join(f"path.{name} as {name}" for name in __all__)}
)

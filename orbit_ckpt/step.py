"""Names and paths of steps: the helpers of Orbax's `step`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.step_paths import (
        build_step_path,
        checkpoint_steps,
        find_step_path,
        is_path_finalized,
        latest_step_metadata,
        standard_name_format,
    )

__all__ = [
    "build_step_path",
    "checkpoint_steps",
    "find_step_path",
    "is_path_finalized",
    "latest_step_metadata",
    "standard_name_format",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.step_paths": (
            "build_step_path, checkpoint_steps, find_step_path, is_path_finalized, "
            "latest_step_metadata, standard_name_format"
        ),
    },
)

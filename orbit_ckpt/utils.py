"""Helpers of Orbax's `utils`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.step_paths import checkpoint_steps
    from orbit_ckpt._src.manager.step_paths import is_path_finalized as is_checkpoint_finalized
    from orbit_ckpt._src.pytree.restore.target import to_shape_dtype_struct

__all__ = [
    "checkpoint_steps",
    "is_checkpoint_finalized",
    "to_shape_dtype_struct",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.step_paths": "checkpoint_steps, is_path_finalized as is_checkpoint_finalized",
        "pytree.restore.target": "to_shape_dtype_struct",
    },
)

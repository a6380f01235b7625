"""Helpers of Orbax's module of the same name."""

from orbit_ckpt.pytree.target import to_shape_dtype_struct
from orbit_ckpt.step import checkpoint_steps
from orbit_ckpt.step import is_path_finalized as is_checkpoint_finalized

__all__ = ["checkpoint_steps", "is_checkpoint_finalized", "to_shape_dtype_struct"]

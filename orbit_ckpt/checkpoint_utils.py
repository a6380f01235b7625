"""Helpers of Orbax's `checkpoint_utils`, and eFormer's `find_latest_checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.locate import find_latest_checkpoint
    from orbit_ckpt._src.manager.follow import checkpoints_iterator, wait_for_new_checkpoint
    from orbit_ckpt._src.pytree.restore.target import construct_restore_args

__all__ = [
    "checkpoints_iterator",
    "construct_restore_args",
    "find_latest_checkpoint",
    "wait_for_new_checkpoint",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "formats.locate": "find_latest_checkpoint",
        "manager.follow": "checkpoints_iterator, wait_for_new_checkpoint",
        "pytree.restore.target": "construct_restore_args",
    },
)

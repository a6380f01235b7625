"""Helpers of Orbax's `checkpoint_utils`, and eFormer's `find_latest_checkpoint`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.locate import find_latest_checkpoint
    from orbit_ckpt._src.manager.follow import checkpoints_iterator, wait_for_new_checkpoint
    from orbit_ckpt._src.manager.snapshots import get_snapshot_dir_from_step_dir
    from orbit_ckpt._src.pytree.restore.abstract import STANDARD_ARRAY_TYPES
    from orbit_ckpt._src.pytree.restore.target import construct_restore_args
    from orbit_ckpt._src.tree.build import PLACEHOLDER

__all__ = [
    "PLACEHOLDER",
    "STANDARD_ARRAY_TYPES",
    "checkpoints_iterator",
    "construct_restore_args",
    "find_latest_checkpoint",
    "get_snapshot_dir_from_step_dir",
    "wait_for_new_checkpoint",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "formats.locate": "find_latest_checkpoint",
        "manager.follow": "checkpoints_iterator, wait_for_new_checkpoint",
        "manager.snapshots": "get_snapshot_dir_from_step_dir",
        "pytree.restore.abstract": "STANDARD_ARRAY_TYPES",
        "pytree.restore.target": "construct_restore_args",
        "tree.build": "PLACEHOLDER",
    },
)

"""Helpers of Orbax's module of the same name, and `find_latest_checkpoint` of eFormer's."""

from orbit_ckpt.formats.locate import find_latest_checkpoint
from orbit_ckpt.manager.follow import checkpoints_iterator, wait_for_new_checkpoint
from orbit_ckpt.pytree.target import construct_restore_args

__all__ = [
    "checkpoints_iterator",
    "construct_restore_args",
    "find_latest_checkpoint",
    "wait_for_new_checkpoint",
]

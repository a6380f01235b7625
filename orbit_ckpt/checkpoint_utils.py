"""Helpers of Orbax's module of the same name."""

from orbit_ckpt.manager.follow import checkpoints_iterator, wait_for_new_checkpoint
from orbit_ckpt.pytree.target import construct_restore_args

__all__ = ["checkpoints_iterator", "construct_restore_args", "wait_for_new_checkpoint"]

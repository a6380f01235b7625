"""Helpers of Orbax's module of the same name."""

from orbit_ckpt.pytree.target import construct_restore_args

__all__ = ["construct_restore_args"]

"""Arguments of item handlers, by Orbax's names."""

from orbit_ckpt.items.base import CheckpointArgs, register_with_handler
from orbit_ckpt.items.pytree import PyTreeRestoreArgs as PyTreeRestore
from orbit_ckpt.items.pytree import PyTreeSaveArgs as PyTreeSave
from orbit_ckpt.items.standard import StandardRestoreArgs as StandardRestore
from orbit_ckpt.items.standard import StandardSaveArgs as StandardSave

__all__ = [
    "CheckpointArgs",
    "PyTreeRestore",
    "PyTreeSave",
    "StandardRestore",
    "StandardSave",
    "register_with_handler",
]

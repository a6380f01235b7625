"""Delete steps of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.deleter import CheckpointDeleter, create_checkpoint_deleter

__all__ = [
    "CheckpointDeleter",
    "create_checkpoint_deleter",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.deleter": "CheckpointDeleter, create_checkpoint_deleter",
    },
)

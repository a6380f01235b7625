"""Names of Orbax's manager that copies local checkpoints between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.emergency import PeerCheckpointManager as CheckpointManager

__all__ = [
    "CheckpointManager",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.emergency": "PeerCheckpointManager as CheckpointManager",
    },
)

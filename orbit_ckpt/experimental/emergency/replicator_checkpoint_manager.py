"""Names of Orbax's manager for the replication service of Google's clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.emergency import (
        ReplicatorCheckpointManager,
        ReplicatorCheckpointManagerOptions,
    )

__all__ = [
    "ReplicatorCheckpointManager",
    "ReplicatorCheckpointManagerOptions",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.emergency": "ReplicatorCheckpointManager, ReplicatorCheckpointManagerOptions",
    },
)

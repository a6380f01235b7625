"""Names of Orbax's emergency manager; see `CheckpointManager` for what serves instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.emergency import EmergencyCheckpointManager as CheckpointManager
    from orbit_ckpt._src.manager.emergency import (
        EmergencyManagerOptions as CheckpointManagerOptions,
    )
    from orbit_ckpt._src.manager.emergency import (
        EmergencyMultiprocessingOptions as MultiprocessingOptions,
    )
    from orbit_ckpt._src.manager.emergency import (
        LocalCheckpointOptions,
        PersistentCheckpointOptions,
    )

__all__ = [
    "CheckpointManager",
    "CheckpointManagerOptions",
    "LocalCheckpointOptions",
    "MultiprocessingOptions",
    "PersistentCheckpointOptions",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.emergency": (
            "LocalCheckpointOptions, PersistentCheckpointOptions, EmergencyCheckpointManager as "
            "CheckpointManager, EmergencyManagerOptions as CheckpointManagerOptions, "
            "EmergencyMultiprocessingOptions as MultiprocessingOptions"
        ),
    },
)

"""Options of Orbax's manager that copies local checkpoints between processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.emergency import (
        EmergencyManagerOptions as CheckpointManagerOptions,
    )
    from orbit_ckpt._src.manager.emergency import (
        LocalCheckpointOptions,
        PersistentCheckpointOptions,
    )

__all__ = [
    "CheckpointManagerOptions",
    "LocalCheckpointOptions",
    "PersistentCheckpointOptions",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.emergency": (
            "LocalCheckpointOptions, PersistentCheckpointOptions, EmergencyManagerOptions as "
            "CheckpointManagerOptions"
        ),
    },
)

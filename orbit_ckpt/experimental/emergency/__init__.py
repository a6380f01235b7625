"""Names of Orbax's managers for Google's clusters; not supported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt.experimental.emergency import (
        checkpoint_manager,
        multi_tier_checkpointing,
        p2p,
        replicator_checkpoint_manager,
    )

__all__ = ["checkpoint_manager", "multi_tier_checkpointing", "p2p", "replicator_checkpoint_manager"]

__getattr__, __dir__ = lazy_names(
    globals(), {"": ", ".join(f"experimental.emergency.{name} as {name}" for name in __all__)}
)

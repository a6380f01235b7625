"""Names of Orbax's support for the replication service of Google's clusters; not supported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt.experimental.emergency.multi_tier_checkpointing import (
        initialization,
        replicator_checkpoint_manager,
    )

__all__ = ["initialization", "replicator_checkpoint_manager"]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": ", ".join(
            f"experimental.emergency.multi_tier_checkpointing.{name} as {name}" for name in __all__
        )
    },
)

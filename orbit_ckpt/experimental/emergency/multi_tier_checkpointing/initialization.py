"""Names of Orbax's start of the replication service of Google's clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.emergency import initialize_multi_tier_checkpointing

__all__ = [
    "initialize_multi_tier_checkpointing",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.emergency": "initialize_multi_tier_checkpointing",
    },
)

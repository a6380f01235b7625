"""Managers and their policies, under Orbax's module name; see `orbit_ckpt.policies`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt import policies
from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt import policies as preservation_policy
    from orbit_ckpt import policies as save_decision_policy
    from orbit_ckpt._src.manager.abstract import AbstractCheckpointManager
    from orbit_ckpt._src.manager.manager import CheckpointManager
    from orbit_ckpt._src.manager.options import CheckpointManagerOptions
    from orbit_ckpt.policies import *  # noqa: F403 - the same names

__all__ = [
    "AbstractCheckpointManager",
    "CheckpointManager",
    "CheckpointManagerOptions",
    "preservation_policy",
    "save_decision_policy",
]
__all__ += policies.__all__

_POLICIES = [f"policies:{name} as {name}" for name in policies.__all__]
_MODULES = [f"policies as {name}" for name in ("preservation_policy", "save_decision_policy")]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": ", ".join([*_POLICIES, *_MODULES]),
        "manager.abstract": "AbstractCheckpointManager",
        "manager.manager": "CheckpointManager",
        "manager.options": "CheckpointManagerOptions",
    },
)

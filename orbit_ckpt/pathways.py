"""Names of Orbax's support for Pathways, a runtime of Google; not supported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.manager.emergency import CheckpointingImpl
    from orbit_ckpt._src.manager.emergency import (
        register_pathways_handlers as register_type_handlers,
    )

__all__ = [
    "CheckpointingImpl",
    "register_type_handlers",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "manager.emergency": (
            "CheckpointingImpl, register_pathways_handlers as register_type_handlers"
        ),
    },
)

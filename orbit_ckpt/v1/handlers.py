"""Handlers of checkpointables, and where they are registered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.v1.handlers import (
        CheckpointableHandlerRegistry,
        JsonHandler,
        ProtoHandler,
        PyTreeHandler,
        global_registry,
        local_registry,
        register_handler,
    )
    from orbit_ckpt._src.v1.types import (
        AbstractCheckpointable,
        Checkpointable,
        CheckpointableHandler,
        StatefulCheckpointable,
    )

__all__ = [
    "AbstractCheckpointable",
    "Checkpointable",
    "CheckpointableHandler",
    "CheckpointableHandlerRegistry",
    "JsonHandler",
    "ProtoHandler",
    "PyTreeHandler",
    "StatefulCheckpointable",
    "global_registry",
    "local_registry",
    "register_handler",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "v1.types": (
            "AbstractCheckpointable, Checkpointable, CheckpointableHandler, StatefulCheckpointable"
        ),
        "v1.handlers": (
            "CheckpointableHandlerRegistry, JsonHandler, ProtoHandler, "
            "PyTreeHandler, global_registry, local_registry, register_handler"
        ),
    },
)

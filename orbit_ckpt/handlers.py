"""Item handlers, under Orbax's names, and the interfaces of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.items.array import ArrayCheckpointHandler
    from orbit_ckpt._src.items.base import AsyncCheckpointHandler, CheckpointHandler, StagingHandler
    from orbit_ckpt._src.items.composite import CompositeHandler
    from orbit_ckpt._src.items.composite import CompositeHandler as CompositeCheckpointHandler
    from orbit_ckpt._src.items.json import JsonHandler
    from orbit_ckpt._src.items.json import JsonHandler as JsonCheckpointHandler
    from orbit_ckpt._src.items.proto import ProtoHandler
    from orbit_ckpt._src.items.proto import ProtoHandler as ProtoCheckpointHandler
    from orbit_ckpt._src.items.pytree import PyTreeHandler
    from orbit_ckpt._src.items.pytree import PyTreeHandler as PyTreeCheckpointHandler
    from orbit_ckpt._src.items.random_key import JaxRandomKeyHandler, NumpyRandomKeyHandler
    from orbit_ckpt._src.items.random_key import (
        JaxRandomKeyHandler as JaxRandomKeyCheckpointHandler,
    )
    from orbit_ckpt._src.items.random_key import (
        NumpyRandomKeyHandler as NumpyRandomKeyCheckpointHandler,
    )
    from orbit_ckpt._src.items.registry import DefaultCheckpointHandlerRegistry
    from orbit_ckpt._src.items.standard import StandardHandler
    from orbit_ckpt._src.items.standard import StandardHandler as StandardCheckpointHandler
    from orbit_ckpt._src.items.stateful import StatefulHandler
    from orbit_ckpt._src.runtime.commit import Commit

__all__ = [
    "ArrayCheckpointHandler",
    "AsyncCheckpointHandler",
    "CheckpointHandler",
    "Commit",
    "CompositeCheckpointHandler",
    "CompositeHandler",
    "DefaultCheckpointHandlerRegistry",
    "JaxRandomKeyCheckpointHandler",
    "JaxRandomKeyHandler",
    "JsonCheckpointHandler",
    "JsonHandler",
    "NumpyRandomKeyCheckpointHandler",
    "NumpyRandomKeyHandler",
    "ProtoCheckpointHandler",
    "ProtoHandler",
    "PyTreeCheckpointHandler",
    "PyTreeHandler",
    "StagingHandler",
    "StandardCheckpointHandler",
    "StandardHandler",
    "StatefulHandler",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "items.array": "ArrayCheckpointHandler",
        "items.base": "AsyncCheckpointHandler, CheckpointHandler, StagingHandler",
        "items.composite": "CompositeHandler as CompositeCheckpointHandler, CompositeHandler",
        "items.json": "JsonHandler as JsonCheckpointHandler, JsonHandler",
        "items.proto": "ProtoHandler as ProtoCheckpointHandler, ProtoHandler",
        "items.pytree": "PyTreeHandler as PyTreeCheckpointHandler, PyTreeHandler",
        "items.random_key": (
            "JaxRandomKeyHandler as JaxRandomKeyCheckpointHandler, JaxRandomKeyHandler, "
            "NumpyRandomKeyHandler as NumpyRandomKeyCheckpointHandler, NumpyRandomKeyHandler"
        ),
        "items.registry": "DefaultCheckpointHandlerRegistry",
        "items.standard": "StandardHandler as StandardCheckpointHandler, StandardHandler",
        "items.stateful": "StatefulHandler",
        "runtime.commit": "Commit",
    },
)

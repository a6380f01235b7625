"""Item handlers and their arguments, under Orbax's names, and the interfaces of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.checkpointer.options import CompositeOptions
    from orbit_ckpt._src.items import registry as handler_registration
    from orbit_ckpt._src.items.array import ArrayCheckpointHandler, ArrayRestoreArgs, ArraySaveArgs
    from orbit_ckpt._src.items.base import AsyncCheckpointHandler, CheckpointHandler, StagingHandler
    from orbit_ckpt._src.items.base_pytree import (
        BasePyTreeCheckpointHandler,
        BasePyTreeRestoreArgs,
        BasePyTreeSaveArgs,
    )
    from orbit_ckpt._src.items.composite import Composite as CompositeArgs
    from orbit_ckpt._src.items.composite import Composite as CompositeResults
    from orbit_ckpt._src.items.composite import CompositeHandler
    from orbit_ckpt._src.items.composite import CompositeHandler as CompositeCheckpointHandler
    from orbit_ckpt._src.items.json import JsonHandler, JsonRestoreArgs, JsonSaveArgs
    from orbit_ckpt._src.items.json import JsonHandler as JsonCheckpointHandler
    from orbit_ckpt._src.items.proto import ProtoHandler, ProtoRestoreArgs, ProtoSaveArgs
    from orbit_ckpt._src.items.proto import ProtoHandler as ProtoCheckpointHandler
    from orbit_ckpt._src.items.pytree import PyTreeHandler, PyTreeRestoreArgs, PyTreeSaveArgs
    from orbit_ckpt._src.items.pytree import PyTreeHandler as PyTreeCheckpointHandler
    from orbit_ckpt._src.items.random_key import (
        JaxRandomKeyHandler,
        JaxRandomKeyRestoreArgs,
        JaxRandomKeySaveArgs,
        NumpyRandomKeyHandler,
        NumpyRandomKeyRestoreArgs,
        NumpyRandomKeySaveArgs,
    )
    from orbit_ckpt._src.items.random_key import (
        JaxRandomKeyHandler as JaxRandomKeyCheckpointHandler,
    )
    from orbit_ckpt._src.items.random_key import (
        NumpyRandomKeyHandler as NumpyRandomKeyCheckpointHandler,
    )
    from orbit_ckpt._src.items.registry import (
        CheckpointHandlerRegistry,
        DefaultCheckpointHandlerRegistry,
        create_default_handler_registry,
    )
    from orbit_ckpt._src.items.standard import (
        StandardHandler,
        StandardRestoreArgs,
        StandardSaveArgs,
    )
    from orbit_ckpt._src.items.standard import StandardHandler as StandardCheckpointHandler
    from orbit_ckpt._src.items.stateful import (
        StatefulHandler,
        StatefulRestoreArgs,
        StatefulSaveArgs,
    )
    from orbit_ckpt._src.runtime.commit import Commit

__all__ = [
    "ArrayCheckpointHandler",
    "ArrayRestoreArgs",
    "ArraySaveArgs",
    "AsyncCheckpointHandler",
    "BasePyTreeCheckpointHandler",
    "BasePyTreeRestoreArgs",
    "BasePyTreeSaveArgs",
    "CheckpointHandler",
    "CheckpointHandlerRegistry",
    "Commit",
    "CompositeArgs",
    "CompositeCheckpointHandler",
    "CompositeHandler",
    "CompositeOptions",
    "CompositeResults",
    "DefaultCheckpointHandlerRegistry",
    "JaxRandomKeyCheckpointHandler",
    "JaxRandomKeyHandler",
    "JaxRandomKeyRestoreArgs",
    "JaxRandomKeySaveArgs",
    "JsonCheckpointHandler",
    "JsonHandler",
    "JsonRestoreArgs",
    "JsonSaveArgs",
    "NumpyRandomKeyCheckpointHandler",
    "NumpyRandomKeyHandler",
    "NumpyRandomKeyRestoreArgs",
    "NumpyRandomKeySaveArgs",
    "ProtoCheckpointHandler",
    "ProtoHandler",
    "ProtoRestoreArgs",
    "ProtoSaveArgs",
    "PyTreeCheckpointHandler",
    "PyTreeHandler",
    "PyTreeRestoreArgs",
    "PyTreeSaveArgs",
    "StagingHandler",
    "StandardCheckpointHandler",
    "StandardHandler",
    "StandardRestoreArgs",
    "StandardSaveArgs",
    "StatefulHandler",
    "StatefulRestoreArgs",
    "StatefulSaveArgs",
    "create_default_handler_registry",
    "handler_registration",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": "_src.items.registry as handler_registration",
        "items.array": "ArrayCheckpointHandler, ArrayRestoreArgs, ArraySaveArgs",
        "items.base": "AsyncCheckpointHandler, CheckpointHandler, StagingHandler",
        "items.base_pytree": (
            "BasePyTreeCheckpointHandler, BasePyTreeRestoreArgs, BasePyTreeSaveArgs"
        ),
        "items.composite": (
            "CompositeHandler, Composite as CompositeArgs, CompositeHandler as "
            "CompositeCheckpointHandler, Composite as CompositeResults"
        ),
        "items.json": (
            "JsonHandler, JsonRestoreArgs, JsonSaveArgs, JsonHandler as JsonCheckpointHandler"
        ),
        "items.proto": (
            "ProtoHandler, ProtoRestoreArgs, ProtoSaveArgs, ProtoHandler as ProtoCheckpointHandler"
        ),
        "items.pytree": (
            "PyTreeHandler, PyTreeRestoreArgs, PyTreeSaveArgs, PyTreeHandler as "
            "PyTreeCheckpointHandler"
        ),
        "items.random_key": (
            "JaxRandomKeyHandler, JaxRandomKeyRestoreArgs, JaxRandomKeySaveArgs, "
            "NumpyRandomKeyHandler, NumpyRandomKeyRestoreArgs, NumpyRandomKeySaveArgs, "
            "JaxRandomKeyHandler as JaxRandomKeyCheckpointHandler, NumpyRandomKeyHandler as "
            "NumpyRandomKeyCheckpointHandler"
        ),
        "items.registry": (
            "CheckpointHandlerRegistry, DefaultCheckpointHandlerRegistry, "
            "create_default_handler_registry"
        ),
        "items.standard": (
            "StandardHandler, StandardRestoreArgs, StandardSaveArgs, StandardHandler as "
            "StandardCheckpointHandler"
        ),
        "items.stateful": "StatefulHandler, StatefulRestoreArgs, StatefulSaveArgs",
        "checkpointer.options": "CompositeOptions",
        "runtime.commit": "Commit",
    },
)

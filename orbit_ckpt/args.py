"""Arguments of item handlers, under Orbax's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.items.arguments import (
        CheckpointArgs,
        get_registered_args_cls,
        has_registered_args,
        register_with_handler,
    )
    from orbit_ckpt._src.items.arguments import handler_class_of as get_registered_handler_cls
    from orbit_ckpt._src.items.array import ArrayRestoreArgs as ArrayRestore
    from orbit_ckpt._src.items.array import ArraySaveArgs as ArraySave
    from orbit_ckpt._src.items.base_pytree import BasePyTreeRestoreArgs as BasePyTreeRestore
    from orbit_ckpt._src.items.base_pytree import BasePyTreeSaveArgs as BasePyTreeSave
    from orbit_ckpt._src.items.composite import Composite
    from orbit_ckpt._src.items.json import JsonRestoreArgs as JsonRestore
    from orbit_ckpt._src.items.json import JsonSaveArgs as JsonSave
    from orbit_ckpt._src.items.proto import ProtoRestoreArgs as ProtoRestore
    from orbit_ckpt._src.items.proto import ProtoSaveArgs as ProtoSave
    from orbit_ckpt._src.items.pytree import PyTreeRestoreArgs as PyTreeRestore
    from orbit_ckpt._src.items.pytree import PyTreeSaveArgs as PyTreeSave
    from orbit_ckpt._src.items.random_key import JaxRandomKeyRestoreArgs as JaxRandomKeyRestore
    from orbit_ckpt._src.items.random_key import JaxRandomKeySaveArgs as JaxRandomKeySave
    from orbit_ckpt._src.items.random_key import NumpyRandomKeyRestoreArgs as NumpyRandomKeyRestore
    from orbit_ckpt._src.items.random_key import NumpyRandomKeySaveArgs as NumpyRandomKeySave
    from orbit_ckpt._src.items.standard import StandardRestoreArgs as StandardRestore
    from orbit_ckpt._src.items.standard import StandardSaveArgs as StandardSave
    from orbit_ckpt._src.items.stateful import StatefulRestoreArgs as StatefulRestore
    from orbit_ckpt._src.items.stateful import StatefulSaveArgs as StatefulSave

__all__ = [
    "ArrayRestore",
    "ArraySave",
    "BasePyTreeRestore",
    "BasePyTreeSave",
    "CheckpointArgs",
    "Composite",
    "JaxRandomKeyRestore",
    "JaxRandomKeySave",
    "JsonRestore",
    "JsonSave",
    "NumpyRandomKeyRestore",
    "NumpyRandomKeySave",
    "ProtoRestore",
    "ProtoSave",
    "PyTreeRestore",
    "PyTreeSave",
    "StandardRestore",
    "StandardSave",
    "StatefulRestore",
    "StatefulSave",
    "get_registered_args_cls",
    "get_registered_handler_cls",
    "has_registered_args",
    "register_with_handler",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "items.array": "ArrayRestoreArgs as ArrayRestore, ArraySaveArgs as ArraySave",
        "items.arguments": (
            "CheckpointArgs, get_registered_args_cls, has_registered_args, register_with_handler, "
            "handler_class_of as get_registered_handler_cls"
        ),
        "items.base_pytree": (
            "BasePyTreeRestoreArgs as BasePyTreeRestore, BasePyTreeSaveArgs as BasePyTreeSave"
        ),
        "items.composite": "Composite",
        "items.json": "JsonRestoreArgs as JsonRestore, JsonSaveArgs as JsonSave",
        "items.proto": "ProtoRestoreArgs as ProtoRestore, ProtoSaveArgs as ProtoSave",
        "items.pytree": "PyTreeRestoreArgs as PyTreeRestore, PyTreeSaveArgs as PyTreeSave",
        "items.random_key": (
            "JaxRandomKeyRestoreArgs as JaxRandomKeyRestore, "
            "JaxRandomKeySaveArgs as JaxRandomKeySave, "
            "NumpyRandomKeyRestoreArgs as NumpyRandomKeyRestore, "
            "NumpyRandomKeySaveArgs as NumpyRandomKeySave"
        ),
        "items.standard": (
            "StandardRestoreArgs as StandardRestore, StandardSaveArgs as StandardSave"
        ),
        "items.stateful": (
            "StatefulRestoreArgs as StatefulRestore, StatefulSaveArgs as StatefulSave"
        ),
    },
)

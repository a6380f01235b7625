"""Type handlers and their registry, under Orbax's names; optional capabilities of handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.arrays.transfer import ArraySnapshot
    from orbit_ckpt._src.runtime.futures import Future
    from orbit_ckpt._src.storage.chunk_read import ArrayRead
    from orbit_ckpt._src.type_handlers.array import ArrayHandler
    from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
    from orbit_ckpt._src.type_handlers.base import (
        ParamInfo,
        RestoreArgs,
        SaveArgs,
        TypeHandler,
    )
    from orbit_ckpt._src.type_handlers.capabilities import (
        ArrayStorage,
        LazyComposer,
        LazyReader,
        LeafNode,
        OpenArray,
        ReadPlanner,
        SnapshotHandler,
        TextStorage,
        ValueChecker,
    )
    from orbit_ckpt._src.type_handlers.numpy import NumpyHandler
    from orbit_ckpt._src.type_handlers.registry import (
        GLOBAL_TYPE_HANDLER_REGISTRY,
        TypeHandlerRegistry,
        create_type_handler_registry,
        get_type_handler,
        has_type_handler,
        register_type_handler,
        supported_types,
    )
    from orbit_ckpt._src.type_handlers.scalar import ScalarHandler
    from orbit_ckpt._src.type_handlers.single_replica import (
        SingleReplicaArrayHandler,
        SingleReplicaArrayRestoreArgs,
    )
    from orbit_ckpt._src.type_handlers.string import StringHandler

__all__ = [
    "GLOBAL_TYPE_HANDLER_REGISTRY",
    "ArrayHandler",
    "ArrayRead",
    "ArrayRestoreArgs",
    "ArraySnapshot",
    "ArrayStorage",
    "Future",
    "LazyComposer",
    "LazyReader",
    "LeafNode",
    "NumpyHandler",
    "OpenArray",
    "ParamInfo",
    "ReadPlanner",
    "RestoreArgs",
    "SaveArgs",
    "ScalarHandler",
    "SingleReplicaArrayHandler",
    "SingleReplicaArrayRestoreArgs",
    "SnapshotHandler",
    "StringHandler",
    "TextStorage",
    "TypeHandler",
    "TypeHandlerRegistry",
    "ValueChecker",
    "create_type_handler_registry",
    "get_type_handler",
    "has_type_handler",
    "register_type_handler",
    "supported_types",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "arrays.transfer": "ArraySnapshot",
        "runtime.futures": "Future",
        "storage.chunk_read": "ArrayRead",
        "type_handlers.array": "ArrayHandler",
        "type_handlers.array_target": "ArrayRestoreArgs",
        "type_handlers.base": "ParamInfo, RestoreArgs, SaveArgs, TypeHandler",
        "type_handlers.capabilities": (
            "ArrayStorage, LazyComposer, LazyReader, LeafNode, OpenArray, ReadPlanner, "
            "SnapshotHandler, TextStorage, ValueChecker"
        ),
        "type_handlers.numpy": "NumpyHandler",
        "type_handlers.registry": (
            "create_type_handler_registry, get_type_handler, GLOBAL_TYPE_HANDLER_REGISTRY, "
            "has_type_handler, register_type_handler, supported_types, TypeHandlerRegistry"
        ),
        "type_handlers.scalar": "ScalarHandler",
        "type_handlers.single_replica": "SingleReplicaArrayHandler, SingleReplicaArrayRestoreArgs",
        "type_handlers.string": "StringHandler",
    },
)

"""Type handlers and their registry, under Orbax's names; optional capabilities of handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.arrays.transfer import ArraySnapshot
    from orbit_ckpt._src.arrays.watch import SerializationStatusCallback
    from orbit_ckpt._src.runtime.futures import Future
    from orbit_ckpt._src.storage.buckets import get_ts_context
    from orbit_ckpt._src.storage.chunk_read import ArrayRead
    from orbit_ckpt._src.type_handlers.array import ArrayHandler
    from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
    from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, SaveArgs, TypeHandler
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
    from orbit_ckpt._src.type_handlers.orbax_names import (
        check_input_arguments,
        is_ocdbt_checkpoint,
        is_supported_empty_value,
        is_supported_type,
        merge_ocdbt_per_process_files,
        register_standard_handlers_with_options,
    )
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
    from orbit_ckpt._src.type_handlers.tensorstore_specs import (
        get_cast_tspec_deserialize,
        get_cast_tspec_serialize,
        get_json_tspec_read,
        get_json_tspec_write,
    )
    from orbit_ckpt._src.type_handlers.transfers import TransferPriority

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
    "SerializationStatusCallback",
    "SingleReplicaArrayHandler",
    "SingleReplicaArrayRestoreArgs",
    "SnapshotHandler",
    "StringHandler",
    "TextStorage",
    "TransferPriority",
    "TypeHandler",
    "TypeHandlerRegistry",
    "ValueChecker",
    "check_input_arguments",
    "create_type_handler_registry",
    "get_cast_tspec_deserialize",
    "get_cast_tspec_serialize",
    "get_json_tspec_read",
    "get_json_tspec_write",
    "get_ts_context",
    "get_type_handler",
    "has_type_handler",
    "is_ocdbt_checkpoint",
    "is_supported_empty_value",
    "is_supported_type",
    "merge_ocdbt_per_process_files",
    "register_standard_handlers_with_options",
    "register_type_handler",
    "supported_types",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "arrays.transfer": "ArraySnapshot",
        "arrays.watch": "SerializationStatusCallback",
        "runtime.futures": "Future",
        "storage.buckets": "get_ts_context",
        "storage.chunk_read": "ArrayRead",
        "type_handlers.array": "ArrayHandler",
        "type_handlers.array_target": "ArrayRestoreArgs",
        "type_handlers.base": "ParamInfo, RestoreArgs, SaveArgs, TypeHandler",
        "type_handlers.capabilities": (
            "ArrayStorage, LazyComposer, LazyReader, LeafNode, OpenArray, ReadPlanner, "
            "SnapshotHandler, TextStorage, ValueChecker"
        ),
        "type_handlers.numpy": "NumpyHandler",
        "type_handlers.orbax_names": (
            "check_input_arguments, is_ocdbt_checkpoint, is_supported_empty_value, "
            "is_supported_type, merge_ocdbt_per_process_files, "
            "register_standard_handlers_with_options"
        ),
        "type_handlers.registry": (
            "create_type_handler_registry, get_type_handler, GLOBAL_TYPE_HANDLER_REGISTRY, "
            "has_type_handler, register_type_handler, supported_types, TypeHandlerRegistry"
        ),
        "type_handlers.scalar": "ScalarHandler",
        "type_handlers.single_replica": "SingleReplicaArrayHandler, SingleReplicaArrayRestoreArgs",
        "type_handlers.string": "StringHandler",
        "type_handlers.tensorstore_specs": (
            "get_cast_tspec_deserialize, get_cast_tspec_serialize, get_json_tspec_read, "
            "get_json_tspec_write"
        ),
        "type_handlers.transfers": "TransferPriority",
    },
)

"""The manager of a run and what belongs to it, under Orbax's module name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.checkpointer.abstract import AbstractCheckpointer
    from orbit_ckpt._src.checkpointer.asynchronous import AsyncCheckpointer, is_async_checkpointer
    from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer
    from orbit_ckpt._src.checkpointer.options import (
        AsyncOptions,
        FileOptions,
        MultiprocessingOptions,
    )
    from orbit_ckpt._src.errors import StepAlreadyExistsError
    from orbit_ckpt._src.items.arguments import CheckpointArgs
    from orbit_ckpt._src.items.base import CheckpointHandler
    from orbit_ckpt._src.items.composite import CompositeHandler as CompositeCheckpointHandler
    from orbit_ckpt._src.items.json import JsonHandler as JsonCheckpointHandler
    from orbit_ckpt._src.items.proto import ProtoHandler as ProtoCheckpointHandler
    from orbit_ckpt._src.items.registry import CheckpointHandlerRegistry
    from orbit_ckpt._src.manager.abstract import AbstractCheckpointManager
    from orbit_ckpt._src.manager.index import METRICS_ITEM as METRIC_ITEM_NAME
    from orbit_ckpt._src.manager.manager import CheckpointManager
    from orbit_ckpt._src.manager.options import CheckpointManagerOptions
    from orbit_ckpt._src.manager.step_info import StepInfo as CheckpointInfo
    from orbit_ckpt._src.manager.step_items import DEFAULT_ITEM as DEFAULT_ITEM_NAME
    from orbit_ckpt._src.manager.step_items import RESERVED_ITEMS as RESERVED_ITEM_NAMES
    from orbit_ckpt._src.manager.step_store import METADATA_ITEM as METADATA_ITEM_NAME
    from orbit_ckpt._src.metadata.values import RootMetadata, StepMetadata

__all__ = [
    "DEFAULT_ITEM_NAME",
    "METADATA_ITEM_NAME",
    "METRIC_ITEM_NAME",
    "RESERVED_ITEM_NAMES",
    "AbstractCheckpointManager",
    "AbstractCheckpointer",
    "AsyncCheckpointer",
    "AsyncOptions",
    "CheckpointArgs",
    "CheckpointHandler",
    "CheckpointHandlerRegistry",
    "CheckpointInfo",
    "CheckpointManager",
    "CheckpointManagerOptions",
    "Checkpointer",
    "CompositeCheckpointHandler",
    "FileOptions",
    "JsonCheckpointHandler",
    "MultiprocessingOptions",
    "ProtoCheckpointHandler",
    "RootMetadata",
    "StepAlreadyExistsError",
    "StepMetadata",
    "is_async_checkpointer",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "checkpointer.abstract": "AbstractCheckpointer",
        "checkpointer.asynchronous": "AsyncCheckpointer, is_async_checkpointer",
        "checkpointer.checkpointer": "Checkpointer",
        "checkpointer.options": "AsyncOptions, FileOptions, MultiprocessingOptions",
        "errors": "StepAlreadyExistsError",
        "items.arguments": "CheckpointArgs",
        "items.base": "CheckpointHandler",
        "items.composite": "CompositeHandler as CompositeCheckpointHandler",
        "items.json": "JsonHandler as JsonCheckpointHandler",
        "items.proto": "ProtoHandler as ProtoCheckpointHandler",
        "items.registry": "CheckpointHandlerRegistry",
        "manager.abstract": "AbstractCheckpointManager",
        "manager.manager": "CheckpointManager",
        "manager.options": "CheckpointManagerOptions",
        "manager.step_info": "StepInfo as CheckpointInfo",
        "manager.index": "METRICS_ITEM as METRIC_ITEM_NAME",
        "manager.step_items": (
            "DEFAULT_ITEM as DEFAULT_ITEM_NAME, RESERVED_ITEMS as RESERVED_ITEM_NAMES"
        ),
        "manager.step_store": "METADATA_ITEM as METADATA_ITEM_NAME",
        "metadata.values": "RootMetadata, StepMetadata",
    },
)

"""Save and restore JAX checkpoints in Orbax's format, with checksums, on any devices.

    import orbit_ckpt as ocp

    ocp.save("run/step_100", {"params": params, "opt_state": opt_state})
    state = ocp.load("run/step_100", like={"params": params, "opt_state": opt_state})

The classes of Orbax's API have the same names here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names
from orbit_ckpt._src.version import __version__ as __version__

if TYPE_CHECKING:
    from orbit_ckpt import (
        args,
        checkpoint_managers,
        checkpoint_utils,
        errors,
        formats,
        future,
        handlers,
        policies,
        reports,
        step,
        stores,
        t5x,
        transform,
        transform_utils,
        type_handlers,
        utils,
    )
    from orbit_ckpt._src.checkpointer.api import load, plan, save, save_async
    from orbit_ckpt._src.checkpointer.asynchronous import AsyncCheckpointer, StandardCheckpointer
    from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer, PyTreeCheckpointer
    from orbit_ckpt._src.checkpointer.copy import convert
    from orbit_ckpt._src.checkpointer.inspect import CheckpointDiff, diff
    from orbit_ckpt._src.checkpointer.options import (
        AsyncOptions,
        AtomicityOptions,
        FileOptions,
        MultiprocessingOptions,
    )
    from orbit_ckpt._src.checkpointer.save import SaveHandle
    from orbit_ckpt._src.formats.locate import detect_format
    from orbit_ckpt._src.items.array import ArrayCheckpointHandler
    from orbit_ckpt._src.items.base import AsyncCheckpointHandler, CheckpointHandler
    from orbit_ckpt._src.items.composite import CompositeHandler
    from orbit_ckpt._src.items.composite import CompositeHandler as CompositeCheckpointHandler
    from orbit_ckpt._src.items.json import JsonHandler
    from orbit_ckpt._src.items.json import JsonHandler as JsonCheckpointHandler
    from orbit_ckpt._src.items.proto import ProtoHandler
    from orbit_ckpt._src.items.proto import ProtoHandler as ProtoCheckpointHandler
    from orbit_ckpt._src.items.pytree import PyTreeHandler, PyTreeMetadataOptions
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
    from orbit_ckpt._src.manager.manager import CheckpointManager
    from orbit_ckpt._src.manager.options import CheckpointManagerOptions
    from orbit_ckpt._src.manager.steps import StepNameFormat
    from orbit_ckpt._src.manager.tensorboard import TensorBoardMetrics
    from orbit_ckpt._src.metadata_module import MetadataModule
    from orbit_ckpt._src.pytree.engine import MemoryOptions
    from orbit_ckpt._src.pytree.restore.explain import LeafPlan, RestorePlan
    from orbit_ckpt._src.storage.atomic import AtomicityMode
    from orbit_ckpt._src.transform.legacy import RestoreTransform, Transform, apply_transformations
    from orbit_ckpt._src.transform.trees import merge_trees
    from orbit_ckpt._src.tree.build import PLACEHOLDER
    from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
    from orbit_ckpt._src.type_handlers.base import ParamInfo, RestoreArgs, SaveArgs
    from orbit_ckpt._src.type_handlers.lazy import LazyArray
    from orbit_ckpt._src.verify.report import VerifyReport
    from orbit_ckpt._src.verify.verifier import verify

    metadata: MetadataModule

__all__ = [
    "PLACEHOLDER",
    "ArrayCheckpointHandler",
    "ArrayRestoreArgs",
    "AsyncCheckpointHandler",
    "AsyncCheckpointer",
    "AsyncOptions",
    "AtomicityMode",
    "AtomicityOptions",
    "CheckpointDiff",
    "CheckpointHandler",
    "CheckpointManager",
    "CheckpointManagerOptions",
    "Checkpointer",
    "CompositeCheckpointHandler",
    "CompositeHandler",
    "DefaultCheckpointHandlerRegistry",
    "FileOptions",
    "JaxRandomKeyCheckpointHandler",
    "JaxRandomKeyHandler",
    "JsonCheckpointHandler",
    "JsonHandler",
    "LazyArray",
    "LeafPlan",
    "MemoryOptions",
    "MultiprocessingOptions",
    "NumpyRandomKeyCheckpointHandler",
    "NumpyRandomKeyHandler",
    "ParamInfo",
    "ProtoCheckpointHandler",
    "ProtoHandler",
    "PyTreeCheckpointHandler",
    "PyTreeCheckpointer",
    "PyTreeHandler",
    "PyTreeMetadataOptions",
    "RestoreArgs",
    "RestorePlan",
    "RestoreTransform",
    "SaveArgs",
    "SaveHandle",
    "StandardCheckpointHandler",
    "StandardCheckpointer",
    "StandardHandler",
    "StatefulHandler",
    "StepNameFormat",
    "TensorBoardMetrics",
    "Transform",
    "VerifyReport",
    "apply_transformations",
    "args",
    "checkpoint_managers",
    "checkpoint_utils",
    "convert",
    "detect_format",
    "diff",
    "errors",
    "formats",
    "future",
    "handlers",
    "load",
    "merge_trees",
    "metadata",
    "plan",
    "policies",
    "reports",
    "save",
    "save_async",
    "step",
    "stores",
    "t5x",
    "transform",
    "transform_utils",
    "type_handlers",
    "utils",
    "verify",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": (
            "args, checkpoint_managers, checkpoint_utils, errors, formats, future, handlers, "
            "metadata, policies, reports, step, stores, t5x, transform, transform_utils, "
            "type_handlers, utils"
        ),
        "checkpointer.asynchronous": "AsyncCheckpointer, StandardCheckpointer",
        "checkpointer.checkpointer": "Checkpointer, PyTreeCheckpointer",
        "checkpointer.inspect": "CheckpointDiff, diff",
        "checkpointer.copy": "convert",
        "checkpointer.api": "load, plan, save, save_async",
        "checkpointer.options": (
            "AsyncOptions, AtomicityOptions, FileOptions, MultiprocessingOptions"
        ),
        "checkpointer.save": "SaveHandle",
        "verify.report": "VerifyReport",
        "verify.verifier": "verify",
        "formats.locate": "detect_format",
        "items.array": "ArrayCheckpointHandler",
        "items.base": "AsyncCheckpointHandler, CheckpointHandler",
        "items.composite": "CompositeHandler as CompositeCheckpointHandler, CompositeHandler",
        "items.json": "JsonHandler as JsonCheckpointHandler, JsonHandler",
        "items.proto": "ProtoHandler as ProtoCheckpointHandler, ProtoHandler",
        "items.pytree": (
            "PyTreeHandler as PyTreeCheckpointHandler, PyTreeHandler, PyTreeMetadataOptions"
        ),
        "items.random_key": (
            "JaxRandomKeyHandler as JaxRandomKeyCheckpointHandler, JaxRandomKeyHandler, "
            "NumpyRandomKeyHandler as NumpyRandomKeyCheckpointHandler, NumpyRandomKeyHandler"
        ),
        "items.registry": "DefaultCheckpointHandlerRegistry",
        "items.standard": "StandardHandler as StandardCheckpointHandler, StandardHandler",
        "items.stateful": "StatefulHandler",
        "manager.manager": "CheckpointManager",
        "manager.options": "CheckpointManagerOptions",
        "manager.steps": "StepNameFormat",
        "manager.tensorboard": "TensorBoardMetrics",
        "pytree.engine": "MemoryOptions",
        "pytree.restore.explain": "LeafPlan, RestorePlan",
        "storage.atomic": "AtomicityMode",
        "transform.legacy": "apply_transformations, RestoreTransform, Transform",
        "transform.trees": "merge_trees",
        "tree.build": "PLACEHOLDER",
        "type_handlers.lazy": "LazyArray",
        "type_handlers.array_target": "ArrayRestoreArgs",
        "type_handlers.base": "ParamInfo, RestoreArgs, SaveArgs",
    },
)

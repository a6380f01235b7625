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
        abstract_checkpoint_manager,
        aggregate_handlers,
        args,
        arrays,
        checkpoint_args,
        checkpoint_manager,
        checkpoint_managers,
        checkpoint_utils,
        checkpointers,
        errors,
        experimental,
        formats,
        future,
        handlers,
        logging,
        msgpack_utils,
        multihost,
        options,
        path,
        pathways,
        policies,
        reports,
        serialization,
        step,
        stores,
        t5x,
        test_utils,
        transform,
        transform_utils,
        tree,
        type_handlers,
        utils,
        v1,
    )
    from orbit_ckpt._src.as_orbax import install_as_orbax
    from orbit_ckpt._src.checkpointer.abstract import AbstractCheckpointer
    from orbit_ckpt._src.checkpointer.api import load, plan, save, save_async
    from orbit_ckpt._src.checkpointer.asynchronous import AsyncCheckpointer, StandardCheckpointer
    from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer, PyTreeCheckpointer
    from orbit_ckpt._src.checkpointer.compare import CheckpointDiff, diff
    from orbit_ckpt._src.checkpointer.convert import convert, rechunk
    from orbit_ckpt._src.checkpointer.copy import copy
    from orbit_ckpt._src.checkpointer.handle import SaveHandle
    from orbit_ckpt._src.checkpointer.options import (
        AsyncOptions,
        AtomicityOptions,
        CompositeOptions,
        FileOptions,
        MultiprocessingOptions,
    )
    from orbit_ckpt._src.checkpointer.statistics import statistics
    from orbit_ckpt._src.formats.locate import detect_format, latest_step
    from orbit_ckpt._src.items.array import ArrayCheckpointHandler
    from orbit_ckpt._src.items.base import AsyncCheckpointHandler, CheckpointHandler
    from orbit_ckpt._src.items.base_pytree import BasePyTreeCheckpointHandler
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
    from orbit_ckpt._src.items.registry import (
        CheckpointHandlerRegistry,
        DefaultCheckpointHandlerRegistry,
    )
    from orbit_ckpt._src.items.standard import StandardHandler
    from orbit_ckpt._src.items.standard import StandardHandler as StandardCheckpointHandler
    from orbit_ckpt._src.items.stateful import StatefulHandler
    from orbit_ckpt._src.manager.abstract import AbstractCheckpointManager
    from orbit_ckpt._src.manager.manager import CheckpointManager
    from orbit_ckpt._src.manager.options import CheckpointManagerOptions
    from orbit_ckpt._src.manager.step_names import StepNameFormat
    from orbit_ckpt._src.manager.tensorboard import TensorBoardMetrics
    from orbit_ckpt._src.metadata_module import MetadataModule
    from orbit_ckpt._src.pytree.engine import MemoryOptions
    from orbit_ckpt._src.pytree.restore.explain import LeafPlan, RestorePlan
    from orbit_ckpt._src.runtime.futures import Future
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
    "AbstractCheckpointManager",
    "AbstractCheckpointer",
    "ArrayCheckpointHandler",
    "ArrayRestoreArgs",
    "AsyncCheckpointHandler",
    "AsyncCheckpointer",
    "AsyncOptions",
    "AtomicityMode",
    "AtomicityOptions",
    "BasePyTreeCheckpointHandler",
    "CheckpointDiff",
    "CheckpointHandler",
    "CheckpointHandlerRegistry",
    "CheckpointManager",
    "CheckpointManagerOptions",
    "Checkpointer",
    "CompositeCheckpointHandler",
    "CompositeHandler",
    "CompositeOptions",
    "DefaultCheckpointHandlerRegistry",
    "FileOptions",
    "Future",
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
    "abstract_checkpoint_manager",
    "aggregate_handlers",
    "apply_transformations",
    "args",
    "arrays",
    "checkpoint_args",
    "checkpoint_manager",
    "checkpoint_managers",
    "checkpoint_utils",
    "checkpointers",
    "convert",
    "copy",
    "detect_format",
    "diff",
    "errors",
    "experimental",
    "formats",
    "future",
    "handlers",
    "install_as_orbax",
    "latest_step",
    "load",
    "logging",
    "merge_trees",
    "metadata",
    "msgpack_utils",
    "multihost",
    "options",
    "path",
    "pathways",
    "plan",
    "policies",
    "rechunk",
    "reports",
    "save",
    "save_async",
    "serialization",
    "statistics",
    "step",
    "stores",
    "t5x",
    "test_utils",
    "transform",
    "transform_utils",
    "tree",
    "type_handlers",
    "utils",
    "v1",
    "verify",
]

_MODULES = (
    "abstract_checkpoint_manager",
    "aggregate_handlers",
    "args",
    "arrays",
    "checkpoint_args",
    "checkpoint_manager",
    "checkpoint_managers",
    "checkpoint_utils",
    "checkpointers",
    "errors",
    "experimental",
    "formats",
    "future",
    "handlers",
    "logging",
    "metadata",
    "msgpack_utils",
    "multihost",
    "options",
    "path",
    "pathways",
    "policies",
    "reports",
    "serialization",
    "step",
    "stores",
    "t5x",
    "test_utils",
    "transform",
    "transform_utils",
    "tree",
    "type_handlers",
    "utils",
    "v1",
)

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": ", ".join(_MODULES),
        "as_orbax": "install_as_orbax",
        "checkpointer.abstract": "AbstractCheckpointer",
        "checkpointer.api": "load, plan, save, save_async",
        "checkpointer.asynchronous": "AsyncCheckpointer, StandardCheckpointer",
        "checkpointer.checkpointer": "Checkpointer, PyTreeCheckpointer",
        "checkpointer.convert": "convert, rechunk",
        "checkpointer.copy": "copy",
        "checkpointer.compare": "CheckpointDiff, diff",
        "checkpointer.options": (
            "AsyncOptions, AtomicityOptions, CompositeOptions, FileOptions, MultiprocessingOptions"
        ),
        "checkpointer.handle": "SaveHandle",
        "checkpointer.statistics": "statistics",
        "formats.locate": "detect_format, latest_step",
        "items.array": "ArrayCheckpointHandler",
        "items.base": "AsyncCheckpointHandler, CheckpointHandler",
        "items.base_pytree": "BasePyTreeCheckpointHandler",
        "items.composite": "CompositeHandler, CompositeHandler as CompositeCheckpointHandler",
        "items.json": "JsonHandler, JsonHandler as JsonCheckpointHandler",
        "items.proto": "ProtoHandler, ProtoHandler as ProtoCheckpointHandler",
        "items.pytree": (
            "PyTreeHandler, PyTreeHandler as PyTreeCheckpointHandler, PyTreeMetadataOptions"
        ),
        "items.random_key": (
            "JaxRandomKeyHandler, JaxRandomKeyHandler as JaxRandomKeyCheckpointHandler, "
            "NumpyRandomKeyHandler, NumpyRandomKeyHandler as NumpyRandomKeyCheckpointHandler"
        ),
        "items.registry": "CheckpointHandlerRegistry, DefaultCheckpointHandlerRegistry",
        "items.standard": "StandardHandler, StandardHandler as StandardCheckpointHandler",
        "items.stateful": "StatefulHandler",
        "manager.abstract": "AbstractCheckpointManager",
        "manager.manager": "CheckpointManager",
        "manager.options": "CheckpointManagerOptions",
        "manager.step_names": "StepNameFormat",
        "manager.tensorboard": "TensorBoardMetrics",
        "pytree.engine": "MemoryOptions",
        "pytree.restore.explain": "LeafPlan, RestorePlan",
        "runtime.futures": "Future",
        "storage.atomic": "AtomicityMode",
        "transform.legacy": "apply_transformations, RestoreTransform, Transform",
        "transform.trees": "merge_trees",
        "tree.build": "PLACEHOLDER",
        "type_handlers.array_target": "ArrayRestoreArgs",
        "type_handlers.base": "ParamInfo, RestoreArgs, SaveArgs",
        "type_handlers.lazy": "LazyArray",
        "verify.report": "VerifyReport",
        "verify.verifier": "verify",
    },
)

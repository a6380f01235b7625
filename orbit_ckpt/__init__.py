"""Checkpoints for JAX: Orbax's format, checked byte by byte, restored anywhere.

    import orbit_ckpt as ocp

    ocp.save("run/step_100", {"params": params, "opt_state": opt_state})
    state = ocp.load("run/step_100", like={"params": params, "opt_state": opt_state})

The classes of Orbax's API are here under Orbax's names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt import args, errors, transform, type_handlers
from orbit_ckpt.checkpointer.asynchronous import AsyncCheckpointer, StandardCheckpointer
from orbit_ckpt.checkpointer.checkpointer import Checkpointer, PyTreeCheckpointer
from orbit_ckpt.checkpointer.functions import load, metadata, plan, save, save_async
from orbit_ckpt.checkpointer.options import (
    AsyncOptions,
    AtomicityOptions,
    FileOptions,
    MultiprocessingOptions,
)
from orbit_ckpt.checkpointer.saving import SaveHandle
from orbit_ckpt.handlers.base import ArrayRestoreArgs, ParamInfo, RestoreArgs, SaveArgs
from orbit_ckpt.handlers.lazy import LazyArray
from orbit_ckpt.items.base import CheckpointHandler
from orbit_ckpt.items.composite import CompositeHandler
from orbit_ckpt.items.json import JsonHandler
from orbit_ckpt.items.memory import MemoryOptions
from orbit_ckpt.items.pytree import PyTreeHandler, PyTreeMetadataOptions
from orbit_ckpt.items.registry import DefaultCheckpointHandlerRegistry
from orbit_ckpt.items.standard import StandardHandler
from orbit_ckpt.later import import_later
from orbit_ckpt.storage.atomic import AtomicityMode
from orbit_ckpt.tree.flatten import PLACEHOLDER

if TYPE_CHECKING:
    from orbit_ckpt import (
        checkpoint_managers,
        checkpoint_utils,
        policies,
        step,
        t5x,
        transform_utils,
        utils,
    )
    from orbit_ckpt.checkpointer.compare import CheckpointDiff, diff
    from orbit_ckpt.checkpointer.convert import convert
    from orbit_ckpt.checkpointer.verify import VerifyReport, verify
    from orbit_ckpt.formats.registry import detect_format
    from orbit_ckpt.items.array import ArrayHandler as ArrayCheckpointHandler
    from orbit_ckpt.items.proto import ProtoHandler
    from orbit_ckpt.items.proto import ProtoHandler as ProtoCheckpointHandler
    from orbit_ckpt.items.random_key import JaxRandomKeyHandler, NumpyRandomKeyHandler
    from orbit_ckpt.items.random_key import JaxRandomKeyHandler as JaxRandomKeyCheckpointHandler
    from orbit_ckpt.items.random_key import NumpyRandomKeyHandler as NumpyRandomKeyCheckpointHandler
    from orbit_ckpt.items.stateful import StatefulHandler
    from orbit_ckpt.manager.manager import CheckpointManager
    from orbit_ckpt.manager.options import CheckpointManagerOptions
    from orbit_ckpt.manager.steps import StepNameFormat
    from orbit_ckpt.manager.tensorboard import TensorBoardMetrics
    from orbit_ckpt.pytree.explain import LeafPlan, RestorePlan
    from orbit_ckpt.transform_utils import (
        RestoreTransform,
        Transform,
        apply_transformations,
        merge_trees,
    )

CompositeCheckpointHandler = CompositeHandler
JsonCheckpointHandler = JsonHandler
PyTreeCheckpointHandler = PyTreeHandler
StandardCheckpointHandler = StandardHandler

__version__ = "0.1.0"

_NAMES = {
    "ArrayCheckpointHandler": "items.array:ArrayHandler",
    "CheckpointDiff": "checkpointer.compare:CheckpointDiff",
    "CheckpointManager": "manager.manager:CheckpointManager",
    "CheckpointManagerOptions": "manager.options:CheckpointManagerOptions",
    "JaxRandomKeyCheckpointHandler": "items.random_key:JaxRandomKeyHandler",
    "JaxRandomKeyHandler": "items.random_key:JaxRandomKeyHandler",
    "LeafPlan": "pytree.explain:LeafPlan",
    "NumpyRandomKeyCheckpointHandler": "items.random_key:NumpyRandomKeyHandler",
    "NumpyRandomKeyHandler": "items.random_key:NumpyRandomKeyHandler",
    "ProtoCheckpointHandler": "items.proto:ProtoHandler",
    "ProtoHandler": "items.proto:ProtoHandler",
    "RestorePlan": "pytree.explain:RestorePlan",
    "RestoreTransform": "transform_utils:RestoreTransform",
    "StatefulHandler": "items.stateful:StatefulHandler",
    "StepNameFormat": "manager.steps:StepNameFormat",
    "TensorBoardMetrics": "manager.tensorboard:TensorBoardMetrics",
    "Transform": "transform_utils:Transform",
    "VerifyReport": "checkpointer.verify:VerifyReport",
    "apply_transformations": "transform_utils:apply_transformations",
    "checkpoint_managers": "checkpoint_managers",
    "checkpoint_utils": "checkpoint_utils",
    "convert": "checkpointer.convert:convert",
    "detect_format": "formats.registry:detect_format",
    "diff": "checkpointer.compare:diff",
    "merge_trees": "transform_utils:merge_trees",
    "policies": "policies",
    "step": "step",
    "t5x": "t5x",
    "transform_utils": "transform_utils",
    "utils": "utils",
    "verify": "checkpointer.verify:verify",
}
# What most saves and loads do not need is imported when it is first asked for.
__getattr__ = import_later(globals(), {name: f"orbit_ckpt.{at}" for name, at in _NAMES.items()})


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "PLACEHOLDER",
    "ArrayCheckpointHandler",
    "ArrayRestoreArgs",
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
    "load",
    "merge_trees",
    "metadata",
    "plan",
    "policies",
    "save",
    "save_async",
    "step",
    "t5x",
    "transform",
    "transform_utils",
    "type_handlers",
    "utils",
    "verify",
]

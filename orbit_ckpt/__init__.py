"""Checkpoints for JAX: Orbax's format, checked byte by byte, restored anywhere.

    import orbit_ckpt as ocp

    ocp.save("run/step_100", {"params": params, "opt_state": opt_state})
    state = ocp.load("run/step_100", like={"params": params, "opt_state": opt_state})

The classes of Orbax's API are here under Orbax's names.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from orbit_ckpt.later import import_later

if TYPE_CHECKING:
    from orbit_ckpt import (
        args,
        checkpoint_managers,
        checkpoint_utils,
        errors,
        policies,
        step,
        t5x,
        transform,
        transform_utils,
        type_handlers,
        utils,
    )
    from orbit_ckpt.checkpointer.asynchronous import AsyncCheckpointer, StandardCheckpointer
    from orbit_ckpt.checkpointer.checkpointer import Checkpointer, PyTreeCheckpointer
    from orbit_ckpt.checkpointer.compare import CheckpointDiff, diff
    from orbit_ckpt.checkpointer.convert import convert
    from orbit_ckpt.checkpointer.functions import load, metadata, plan, save, save_async
    from orbit_ckpt.checkpointer.options import (
        AsyncOptions,
        AtomicityOptions,
        FileOptions,
        MultiprocessingOptions,
    )
    from orbit_ckpt.checkpointer.saving import SaveHandle
    from orbit_ckpt.checkpointer.verify import VerifyReport, verify
    from orbit_ckpt.formats.detect import detect_format
    from orbit_ckpt.handlers.base import ArrayRestoreArgs, ParamInfo, RestoreArgs, SaveArgs
    from orbit_ckpt.handlers.lazy import LazyArray
    from orbit_ckpt.items.array import ArrayHandler as ArrayCheckpointHandler
    from orbit_ckpt.items.base import CheckpointHandler
    from orbit_ckpt.items.composite import CompositeHandler
    from orbit_ckpt.items.composite import CompositeHandler as CompositeCheckpointHandler
    from orbit_ckpt.items.json import JsonHandler
    from orbit_ckpt.items.json import JsonHandler as JsonCheckpointHandler
    from orbit_ckpt.items.memory import MemoryOptions
    from orbit_ckpt.items.proto import ProtoHandler
    from orbit_ckpt.items.proto import ProtoHandler as ProtoCheckpointHandler
    from orbit_ckpt.items.pytree import PyTreeHandler, PyTreeMetadataOptions
    from orbit_ckpt.items.pytree import PyTreeHandler as PyTreeCheckpointHandler
    from orbit_ckpt.items.random_key import JaxRandomKeyHandler, NumpyRandomKeyHandler
    from orbit_ckpt.items.random_key import JaxRandomKeyHandler as JaxRandomKeyCheckpointHandler
    from orbit_ckpt.items.random_key import NumpyRandomKeyHandler as NumpyRandomKeyCheckpointHandler
    from orbit_ckpt.items.registry import DefaultCheckpointHandlerRegistry
    from orbit_ckpt.items.standard import StandardHandler
    from orbit_ckpt.items.standard import StandardHandler as StandardCheckpointHandler
    from orbit_ckpt.items.stateful import StatefulHandler
    from orbit_ckpt.manager.manager import CheckpointManager
    from orbit_ckpt.manager.options import CheckpointManagerOptions
    from orbit_ckpt.manager.steps import StepNameFormat
    from orbit_ckpt.manager.tensorboard import TensorBoardMetrics
    from orbit_ckpt.pytree.explain import LeafPlan, RestorePlan
    from orbit_ckpt.storage.atomic import AtomicityMode
    from orbit_ckpt.transform_utils import (
        RestoreTransform,
        Transform,
        apply_transformations,
        merge_trees,
    )
    from orbit_ckpt.tree.flatten import PLACEHOLDER

__version__ = "0.1.0"

_NAMES = {
    "ArrayCheckpointHandler": "items.array:ArrayHandler",
    "ArrayRestoreArgs": "handlers.base:ArrayRestoreArgs",
    "AsyncCheckpointer": "checkpointer.asynchronous:AsyncCheckpointer",
    "AsyncOptions": "checkpointer.options:AsyncOptions",
    "AtomicityMode": "storage.atomic:AtomicityMode",
    "AtomicityOptions": "checkpointer.options:AtomicityOptions",
    "CheckpointDiff": "checkpointer.compare:CheckpointDiff",
    "CheckpointHandler": "items.base:CheckpointHandler",
    "CheckpointManager": "manager.manager:CheckpointManager",
    "CheckpointManagerOptions": "manager.options:CheckpointManagerOptions",
    "Checkpointer": "checkpointer.checkpointer:Checkpointer",
    "CompositeCheckpointHandler": "items.composite:CompositeHandler",
    "CompositeHandler": "items.composite:CompositeHandler",
    "DefaultCheckpointHandlerRegistry": "items.registry:DefaultCheckpointHandlerRegistry",
    "FileOptions": "checkpointer.options:FileOptions",
    "JaxRandomKeyCheckpointHandler": "items.random_key:JaxRandomKeyHandler",
    "JaxRandomKeyHandler": "items.random_key:JaxRandomKeyHandler",
    "JsonCheckpointHandler": "items.json:JsonHandler",
    "JsonHandler": "items.json:JsonHandler",
    "LazyArray": "handlers.lazy:LazyArray",
    "LeafPlan": "pytree.explain:LeafPlan",
    "MemoryOptions": "items.memory:MemoryOptions",
    "MultiprocessingOptions": "checkpointer.options:MultiprocessingOptions",
    "NumpyRandomKeyCheckpointHandler": "items.random_key:NumpyRandomKeyHandler",
    "NumpyRandomKeyHandler": "items.random_key:NumpyRandomKeyHandler",
    "PLACEHOLDER": "tree.flatten:PLACEHOLDER",
    "ParamInfo": "handlers.base:ParamInfo",
    "ProtoCheckpointHandler": "items.proto:ProtoHandler",
    "ProtoHandler": "items.proto:ProtoHandler",
    "PyTreeCheckpointHandler": "items.pytree:PyTreeHandler",
    "PyTreeCheckpointer": "checkpointer.checkpointer:PyTreeCheckpointer",
    "PyTreeHandler": "items.pytree:PyTreeHandler",
    "PyTreeMetadataOptions": "items.pytree:PyTreeMetadataOptions",
    "RestoreArgs": "handlers.base:RestoreArgs",
    "RestorePlan": "pytree.explain:RestorePlan",
    "RestoreTransform": "transform_utils:RestoreTransform",
    "SaveArgs": "handlers.base:SaveArgs",
    "SaveHandle": "checkpointer.saving:SaveHandle",
    "StandardCheckpointHandler": "items.standard:StandardHandler",
    "StandardCheckpointer": "checkpointer.asynchronous:StandardCheckpointer",
    "StandardHandler": "items.standard:StandardHandler",
    "StatefulHandler": "items.stateful:StatefulHandler",
    "StepNameFormat": "manager.steps:StepNameFormat",
    "TensorBoardMetrics": "manager.tensorboard:TensorBoardMetrics",
    "Transform": "transform_utils:Transform",
    "VerifyReport": "checkpointer.verify:VerifyReport",
    "apply_transformations": "transform_utils:apply_transformations",
    "args": "args",
    "checkpoint_managers": "checkpoint_managers",
    "checkpoint_utils": "checkpoint_utils",
    "convert": "checkpointer.convert:convert",
    "detect_format": "formats.detect:detect_format",
    "diff": "checkpointer.compare:diff",
    "errors": "errors",
    "load": "checkpointer.functions:load",
    "merge_trees": "transform_utils:merge_trees",
    "plan": "checkpointer.functions:plan",
    "policies": "policies",
    "save": "checkpointer.functions:save",
    "save_async": "checkpointer.functions:save_async",
    "step": "step",
    "t5x": "t5x",
    "transform": "transform",
    "transform_utils": "transform_utils",
    "type_handlers": "type_handlers",
    "utils": "utils",
    "verify": "checkpointer.verify:verify",
}
# Each is imported when it is first asked for, so that nothing imports JAX that does not need it.
__getattr__ = import_later(globals(), {name: f"orbit_ckpt.{at}" for name, at in _NAMES.items()})


class _Package(ModuleType):
    """Keep `metadata` the function, although importing the package of that name sets it."""

    @property
    def metadata(self) -> object:
        from orbit_ckpt.checkpointer.functions import metadata  # noqa: PLC0415 - imported when asked for

        return metadata

    @metadata.setter
    def metadata(self, _: object) -> None:
        pass


sys.modules[__name__].__class__ = _Package


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

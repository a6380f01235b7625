"""Orbax's v1 API: states, named checkpointables and contexts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orbit_ckpt._src.lazy_imports import lazy_names

if TYPE_CHECKING:
    from orbit_ckpt._src.tree.build import PLACEHOLDER
    from orbit_ckpt._src.v1.checkpoint_metadata import CheckpointMetadata
    from orbit_ckpt._src.v1.context import Context
    from orbit_ckpt._src.v1.deletion import delete, delete_async
    from orbit_ckpt._src.v1.layout import is_orbax_checkpoint
    from orbit_ckpt._src.v1.loading import (
        checkpointables_metadata,
        load,
        load_async,
        load_checkpointables,
        load_checkpointables_async,
        load_pytree,  # pyright: ignore[reportDeprecated] - Orbax's older name
        load_pytree_async,  # pyright: ignore[reportDeprecated] - Orbax's older name
        metadata,
        pytree_metadata,  # pyright: ignore[reportDeprecated] - Orbax's older name
    )
    from orbit_ckpt._src.v1.saving import (
        save,
        save_async,
        save_checkpointables,
        save_checkpointables_async,
        save_pytree,  # pyright: ignore[reportDeprecated] - Orbax's older name
        save_pytree_async,  # pyright: ignore[reportDeprecated] - Orbax's older name
    )
    from orbit_ckpt._src.v1.types import (
        AbstractCheckpointable,
        AsyncResponse,
        Checkpointable,
        CheckpointableHandler,
        PyTreeMetadata,
        StatefulCheckpointable,
    )
    from orbit_ckpt.v1 import (
        arrays,
        errors,
        handlers,
        multihost,
        options,
        partial,
        path,
        training,
        tree,
    )

__all__ = [
    "PLACEHOLDER",
    "AbstractCheckpointable",
    "AsyncResponse",
    "CheckpointMetadata",
    "Checkpointable",
    "CheckpointableHandler",
    "Context",
    "PyTreeMetadata",
    "StatefulCheckpointable",
    "arrays",
    "checkpointables_metadata",
    "delete",
    "delete_async",
    "errors",
    "handlers",
    "is_orbax_checkpoint",
    "load",
    "load_async",
    "load_checkpointables",
    "load_checkpointables_async",
    "load_pytree",
    "load_pytree_async",
    "metadata",
    "multihost",
    "options",
    "partial",
    "path",
    "pytree_metadata",
    "save",
    "save_async",
    "save_checkpointables",
    "save_checkpointables_async",
    "save_pytree",
    "save_pytree_async",
    "training",
    "tree",
]

__getattr__, __dir__ = lazy_names(
    globals(),
    {
        "": (
            "v1.arrays as arrays, v1.errors as errors, v1.handlers as handlers, "
            "v1.multihost as multihost, v1.options as options, v1.partial as partial, "
            "v1.path as path, v1.training as training, v1.tree as tree"
        ),
        "v1.types": (
            "AbstractCheckpointable, AsyncResponse, Checkpointable, "
            "CheckpointableHandler, PyTreeMetadata, StatefulCheckpointable"
        ),
        "v1.checkpoint_metadata": "CheckpointMetadata",
        "v1.context": "Context",
        "tree.build": "PLACEHOLDER",
        "v1.layout": "is_orbax_checkpoint",
        "v1.saving": (
            "save, save_async, save_checkpointables, save_checkpointables_async, "
            "save_pytree, save_pytree_async"
        ),
        "v1.loading": (
            "load, load_async, load_checkpointables, load_checkpointables_async, "
            "load_pytree, load_pytree_async, metadata, checkpointables_metadata, "
            "pytree_metadata"
        ),
        "v1.deletion": "delete, delete_async",
    },
)

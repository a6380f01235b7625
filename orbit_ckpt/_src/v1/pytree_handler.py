"""The handler of trees."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
from msgspec.structs import replace
from typing_extensions import override

from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.pytree.engine import TreeIO
from orbit_ckpt._src.pytree.restore.hints import MismatchHints
from orbit_ckpt._src.pytree.restore.target import RestoreOptions
from orbit_ckpt._src.pytree.save.options import StagingOptions
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.tree.build import PLACEHOLDER
from orbit_ckpt._src.type_handlers.array import ArrayHandler
from orbit_ckpt._src.type_handlers.array_target import ArrayRestoreArgs
from orbit_ckpt._src.type_handlers.base import SaveArgs
from orbit_ckpt._src.type_handlers.numpy import NumpyHandler
from orbit_ckpt._src.type_handlers.registry import (
    GLOBAL_TYPE_HANDLER_REGISTRY,
    TypeHandlerRegistry,
)
from orbit_ckpt._src.type_handlers.single_replica import (
    SingleReplicaArrayHandler,
    SingleReplicaArrayRestoreArgs,
)
from orbit_ckpt._src.v1.abstract import abstract_tree, is_abstract_leaf, load_arguments
from orbit_ckpt._src.v1.context import Context, current_context
from orbit_ckpt._src.v1.engine_handler import RECORDED, EngineHandler
from orbit_ckpt._src.v1.options import ArrayOptions

_OF_ARRAYS = (
    "use_replica_parallel",
    "min_slice_bytes_for_replica_parallel",
    "max_replicas_for_replica_parallel",
    "enable_replica_parallel_separate_folder",
    "enable_write_sharding_file",
)
"""Options of saves that the handler of JAX arrays takes."""

_PARTIAL = "set `pytree.loading.partial_load = True` on the Context"
_HINTS = MismatchHints(
    missing=f"to get back leaves that the checkpoint lacks as they are given, {_PARTIAL}",
    unexpected=f"to leave out leaves of the checkpoint {_PARTIAL}, or use PLACEHOLDER leaves",
    shapes="to pad or cut arrays set `array.loading.enable_padding_and_truncation = True` on the "
    "Context",
    dtypes="to cast to another kind of number load the array as it was saved, then use `astype`",
)


@final
class PyTreeHandler(EngineHandler):
    """Saves and loads trees."""

    RECORDED_AS = f"{RECORDED}pytree_handler.PyTreeHandler"

    def __init__(
        self,
        *,
        context: Context | None = None,
        leaf_handler_registry: TypeHandlerRegistry | None = None,
    ) -> None:
        """Make a handler.

        Args:
            context: The options; None for those of the active context.
            leaf_handler_registry: The handlers of leaves, as in `type_handlers`.
        """
        context = context or current_context()
        self._saving = context.array.saving
        self._loading = context.array.loading
        self._partial = context.pytree.loading.partial_load
        self._registry = leaf_handler_registry or GLOBAL_TYPE_HANDLER_REGISTRY
        self._trees = TreeIO(
            _with_options(self._registry, context),
            context.memory.limits(),
            context.pytree.saving.pytree_metadata_options.support_rich_types,
            use_ocdbt=self._saving.use_ocdbt,
            use_zarr3=self._saving.use_zarr3,
            use_compression=self._saving.use_compression,
            staging=StagingOptions(context.memory.is_prioritized_key_fn),
        )

    @override
    async def stage(self, directory: Path, checkpointable: Any, *, copy: bool) -> Commit:
        """Copy a tree and return the commit that writes it; see `TreeIO.stage`."""
        return await self._trees.stage(
            directory,
            checkpointable,
            copy=copy,
            save_args=_save_args(checkpointable, self._saving),
            data_file_bytes=self._saving.ocdbt_target_data_file_size,
        )

    @override
    def read(self, directory: Path, abstract: Any, *, reader: Format | None = None) -> Any:
        """Return a stored tree.

        Args:
            directory: Where it is.
            abstract: How to load it, None for as it was saved.
            reader: The format to read as, None to detect it.
        """
        options = replace(self._restore_options(abstract), reader=reader)
        return self._trees.restore(directory, options)

    @override
    async def metadata(self, directory: Path) -> Any:
        """Return the stored tree with abstract leaves."""
        return await asyncio.to_thread(self.describe, resolve_path(directory))

    def describe(self, directory: Path, *, reader: Format | None = None) -> Any:
        """Return a stored tree with abstract leaves."""
        return abstract_tree(self._trees.metadata(directory, reader=reader).tree)

    @override
    def is_handleable(self, checkpointable: Any) -> bool:
        """Return whether all leaves have a type handler."""
        leaves: list[object] = jax.tree.leaves(checkpointable)
        return all(leaf is PLACEHOLDER or self._registry.has(type(leaf)) for leaf in leaves)

    @override
    def is_abstract_handleable(self, abstract_checkpointable: Any) -> bool:
        """Return whether all leaves say how to load one."""
        return all(map(is_abstract_leaf, jax.tree.leaves(abstract_checkpointable)))

    def _restore_options(self, abstract: Any) -> RestoreOptions:
        if abstract is None:
            return RestoreOptions()
        broadcasts = self._loading.use_load_and_broadcast
        return RestoreOptions(
            target=abstract,
            restore_args=load_arguments(
                abstract,
                strict=not self._loading.enable_padding_and_truncation,
                array_args=SingleReplicaArrayRestoreArgs if broadcasts else ArrayRestoreArgs,
            ),
            missing="as_given" if self._partial else "error",
            unexpected="ignore" if self._partial else "error",
            hints=_HINTS,
        )


def _with_options(registry: TypeHandlerRegistry, context: Context) -> TypeHandlerRegistry:
    """Return the registry, with other handlers of arrays if options ask for them."""
    saving, loading, memory = context.array.saving, context.array.loading, context.memory
    default = ArrayOptions.Saving()
    given: dict[str, Any] = {
        name: getattr(saving, name)
        for name in _OF_ARRAYS
        if getattr(saving, name) != getattr(default, name)
    }
    if memory.serialization_status_callback is not None:
        given["callback"] = memory.serialization_status_callback
    handlers: dict[type, Any] = {}
    if loading.use_load_and_broadcast:
        options = vars(loading.load_and_broadcast_options)
        handlers[jax.Array] = SingleReplicaArrayHandler(**options, **given)
    elif given:
        handlers[jax.Array] = ArrayHandler(**given)
    if not memory.deepcopy_host_arrays:
        handlers[np.ndarray] = NumpyHandler(deepcopy_host_arrays=False)
    if not handlers:
        return registry
    changed = registry.copied()
    for kind, handler in handlers.items():
        changed.add(kind, handler, override=True)
    return changed


def _save_args(tree: object, saving: ArrayOptions.Saving) -> object:
    """Return the engine's arguments of every leaf; None if all are the defaults."""
    general, choose = saving.storage_options, saving.scoped_storage_options_creator
    if choose is None and general == ArrayOptions.Saving.StorageOptions():
        return None

    def arguments(key: Any, leaf: object) -> SaveArgs:
        own = choose(key, leaf) if choose is not None else None
        own = general if own is None else own
        size, axes = own.chunk_byte_size, own.shard_axes
        return SaveArgs(
            dtype=general.dtype if own.dtype is None else own.dtype,
            chunk_byte_size=general.chunk_byte_size if size is None else size,
            shard_axes=(general.shard_axes if axes is None else axes) or (),
        )

    return jax.tree_util.tree_map_with_path(arguments, tree)

"""A pytree as an item, restored to the types, shapes, dtypes and shardings of a target."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import jax
from typing_extensions import override

from orbit_ckpt._src.arrays.sharding import ShardingResolver, as_sharding
from orbit_ckpt._src.items.arguments import CheckpointArgs, register_with_handler
from orbit_ckpt._src.items.base import ORBAX_PREFIX, warn_of_unused
from orbit_ckpt._src.items.phases import ItemHandler
from orbit_ckpt._src.items.pytree import (
    PyTreeMetadataOptions,
    check_objects,
    memory_within,
)
from orbit_ckpt._src.metadata.values import TreeMetadata
from orbit_ckpt._src.pytree.engine import MemoryOptions, TreeIO
from orbit_ckpt._src.pytree.restore.target import RestoreOptions
from orbit_ckpt._src.pytree.save.kept import KeptPlan
from orbit_ckpt._src.runtime.checks import as_flag, check_flag_fields
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY, TypeHandlerRegistry


class StandardHandler(ItemHandler["StandardSaveArgs"]):
    """Saves a pytree; restores it to the types, shapes, dtypes and shardings of a target."""

    def __init__(  # noqa: PLR0913 - Orbax's signature
        self,
        *,
        save_concurrent_gb: float | None = None,
        restore_concurrent_gb: float | None = None,
        memory_options: MemoryOptions | None = None,
        pytree_metadata_options: PyTreeMetadataOptions = PyTreeMetadataOptions(),  # noqa: B008 - frozen
        use_ocdbt: bool = True,
        use_zarr3: bool = True,
        type_handler_registry: TypeHandlerRegistry = GLOBAL_TYPE_HANDLER_REGISTRY,
        multiprocessing_options: object = None,
    ) -> None:
        """Make a handler; for the arguments see `PyTreeHandler`."""
        warn_of_unused(self, multiprocessing_options=multiprocessing_options)
        check_objects(memory_options, type_handler_registry, pytree_metadata_options)
        self._trees = TreeIO(
            type_handler_registry,
            memory_within(memory_options, save_concurrent_gb, restore_concurrent_gb),
            pytree_metadata_options.support_rich_types,
            use_ocdbt=as_flag("use_ocdbt", use_ocdbt),
            use_zarr3=as_flag("use_zarr3", use_zarr3),
            kept=KeptPlan(),
        )

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return f"{ORBAX_PREFIX}standard_checkpoint_handler.StandardCheckpointHandler"

    @override
    def _arguments(self, item: object, save_args: object) -> StandardSaveArgs:
        return StandardSaveArgs(item, save_args)

    @override
    async def stage(self, directory: Path, args: StandardSaveArgs, *, copy: bool) -> Commit:
        return await self._trees.stage(
            directory,
            args.item,
            copy=copy,
            save_args=args.save_args,
            custom_metadata=args.custom_metadata,
        )

    @override
    def restore(
        self,
        directory: str | os.PathLike[str],
        item: object = None,
        args: StandardRestoreArgs | None = None,
    ) -> object:
        """Read a tree.

        Args:
            directory: Where it is.
            item: Target of the restore, if `args` is not given.
            args: Arguments of the restore.

        Raises:
            CheckpointNotFoundError: The directory holds no tree.
            TreeMismatchError: The structure, a shape or the kind of a dtype differs from the
                target.
            CorruptionError: Stored data is missing or damaged.
        """
        args = args or StandardRestoreArgs(item)
        options = RestoreOptions(
            target=args.item,
            match_leaf_types=True,
            strict=args.strict,
            allow_empty=args.allow_empty,
        )
        fallback = args.fallback_sharding
        if fallback is not None:
            fallback = as_sharding(fallback, "fallback_sharding")
        resolver = ShardingResolver(fallback)
        return self._trees.restore(resolve_path(directory), options, resolver=resolver)

    def metadata(self, directory: str | os.PathLike[str]) -> TreeMetadata:
        """Return metadata of the leaves."""
        return self._trees.metadata(resolve_path(directory))

    @override
    def close(self) -> None:
        """Release resources."""
        self._trees.close()


@register_with_handler(StandardHandler, for_save=True)
@dataclass
class StandardSaveArgs(CheckpointArgs):
    """A tree to save, and its options.

    Attributes:
        item: The tree.
        save_args: Tree of `SaveArgs` with the same structure; may lack leaves.
        custom_metadata: Any JSON value to store with the tree.
    """

    item: object
    save_args: object = None
    custom_metadata: object = None


@register_with_handler(StandardHandler, for_restore=True)
@dataclass
class StandardRestoreArgs(CheckpointArgs):
    """A target to restore to, and options.

    Attributes:
        item: Target: a tree of arrays, `jax.ShapeDtypeStruct`, scalars, strings or leaf metadata.
            None restores the tree as saved.
        strict: Whether shapes must equal the stored ones; otherwise arrays are zero-padded or
            truncated.
        support_layout: Ignored.
        fallback_sharding: Sharding of arrays whose recorded one is unavailable.
        allow_empty: See `PyTreeRestoreArgs`.
    """

    item: object = None
    strict: bool = True
    support_layout: bool = False
    fallback_sharding: jax.sharding.Sharding | None = None
    allow_empty: bool = False

    def __post_init__(self) -> None:
        check_flag_fields(self, "strict", "allow_empty")
        why = "arrays come back in the default layout"
        warn_set("StandardRestore", {"support_layout": (self.support_layout, False, why)})
        if isinstance(self.item, TreeMetadata):
            self.item = self.item.tree

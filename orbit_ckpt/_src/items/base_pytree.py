"""Orbax's handler of pytrees with limits in bytes and without transforms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from typing_extensions import override

from orbit_ckpt._src.items.arguments import register_with_handler
from orbit_ckpt._src.items.base import ORBAX_PREFIX
from orbit_ckpt._src.items.pytree import (
    PyTreeHandler,
    PyTreeMetadataOptions,
    PyTreeRestoreArgs,
    PyTreeSaveArgs,
)
from orbit_ckpt._src.pytree.engine import MemoryLimitOptions, MemoryOptions
from orbit_ckpt._src.pytree.restore.transformed import LegacyFunction
from orbit_ckpt._src.pytree.save.options import RecordsValidator
from orbit_ckpt._src.runtime.checks import check_flag_fields
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY, TypeHandlerRegistry
from orbit_ckpt._src.type_handlers.transfers import PriorityFunction


class BasePyTreeCheckpointHandler(PyTreeHandler):
    """A `PyTreeHandler` whose memory limits are in bytes."""

    def __init__(  # noqa: PLR0913 - Orbax's signature
        self,
        *,
        save_concurrent_bytes: int | None = None,
        restore_concurrent_bytes: int | None = None,
        save_device_host_concurrent_bytes: int | Literal["auto"] | None = None,
        memory_limit_options: MemoryLimitOptions | None = None,
        use_ocdbt: bool = True,
        use_zarr3: bool = True,
        use_compression: bool = True,
        multiprocessing_options: object = None,
        type_handler_registry: TypeHandlerRegistry = GLOBAL_TYPE_HANDLER_REGISTRY,
        enable_post_merge_validation: bool = True,
        pytree_metadata_options: PyTreeMetadataOptions = PyTreeMetadataOptions(),  # noqa: B008 - frozen
        array_metadata_validator: RecordsValidator | None = None,
        enable_pinned_host_transfer: bool | None = None,
        is_prioritized_key_fn: PriorityFunction | None = None,
    ) -> None:
        """Make a handler; for the other arguments see `PyTreeHandler`.

        Args:
            save_concurrent_bytes: Most bytes held in memory for writing at once.
            restore_concurrent_bytes: The same for reading.
            save_device_host_concurrent_bytes: Most bytes copied from devices at once; `"auto"` is
                half of the free host memory.
            memory_limit_options: Upper bound of what is copied from devices at once.
            use_ocdbt: Whether arrays share one database.
            use_zarr3: Whether to write zarr3 instead of zarr2.
            use_compression: Whether to compress arrays.
            multiprocessing_options: See `PyTreeHandler`.
            type_handler_registry: The type handlers.
            enable_post_merge_validation: Ignored; every save is validated.
            pytree_metadata_options: What to record of the tree.
            array_metadata_validator: See `PyTreeHandler`, as for the next two.
            enable_pinned_host_transfer: See there.
            is_prioritized_key_fn: See there.
        """
        why = "a save always checks that the processes wrote the same arrays completely"
        options = {"enable_post_merge_validation": (enable_post_merge_validation, True, why)}
        warn_set(type(self).__qualname__, options)
        memory = MemoryOptions(
            save_concurrent_bytes, restore_concurrent_bytes, save_device_host_concurrent_bytes
        )
        super().__init__(
            memory_options=memory,
            memory_limit_options=memory_limit_options,
            use_ocdbt=use_ocdbt,
            use_zarr3=use_zarr3,
            use_compression=use_compression,
            multiprocessing_options=multiprocessing_options,
            type_handler_registry=type_handler_registry,
            pytree_metadata_options=pytree_metadata_options,
            array_metadata_validator=array_metadata_validator,
            enable_pinned_host_transfer=enable_pinned_host_transfer,
            is_prioritized_key_fn=is_prioritized_key_fn,
        )

    @classmethod
    @override
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return f"{ORBAX_PREFIX}base_pytree_checkpoint_handler.BasePyTreeCheckpointHandler"


@register_with_handler(BasePyTreeCheckpointHandler, for_save=True)
@dataclass
class BasePyTreeSaveArgs(PyTreeSaveArgs):
    """A tree to save, and its options.

    Attributes:
        partial_save_mode: Not supported: a save writes its whole tree.
    """

    partial_save_mode: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag_fields(self, "partial_save_mode")
        if self.partial_save_mode:
            raise ValueError(
                "partial_save_mode=True is not supported, because a checkpoint is not changed once "
                "it is complete. Save the whole tree, or save the parts as items of a Composite."
            )


@register_with_handler(BasePyTreeCheckpointHandler, for_restore=True)
@dataclass
class BasePyTreeRestoreArgs(PyTreeRestoreArgs):
    """What to restore of a tree, and how: `PyTreeRestoreArgs` without transforms."""

    transforms: object = field(default=None, init=False)
    transforms_default_to_original: bool = field(default=True, init=False)
    legacy_transform_fn: LegacyFunction | None = field(default=None, init=False)

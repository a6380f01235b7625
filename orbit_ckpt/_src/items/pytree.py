"""Any pytree as an item."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Literal, cast

from typing_extensions import override

from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.items.arguments import CheckpointArgs, own_args, register_with_handler
from orbit_ckpt._src.items.base import CheckpointHandler, check_handler, warn_of_unused
from orbit_ckpt._src.items.foreign import foreign_path
from orbit_ckpt._src.items.phases import ItemHandler, restore_item, stage_item
from orbit_ckpt._src.metadata.values import TreeMetadata
from orbit_ckpt._src.pytree.engine import TREE_TYPESTR, MemoryLimitOptions, MemoryOptions, TreeIO
from orbit_ckpt._src.pytree.restore.target import RestoreOptions
from orbit_ckpt._src.pytree.restore.transformed import LegacyFunction
from orbit_ckpt._src.pytree.save.kept import KeptPlan
from orbit_ckpt._src.pytree.save.options import RecordsValidator, StagingOptions
from orbit_ckpt._src.runtime.checks import (
    as_flag,
    check_callable,
    check_flag_fields,
    check_int,
    check_methods,
    check_type,
    show,
)
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.process import Process
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.transform.legacy import LegacyRules
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY, TypeHandlerRegistry
from orbit_ckpt._src.type_handlers.transfers import PriorityFunction


@dataclass(frozen=True)
class PyTreeMetadataOptions:
    """What to record of a tree.

    Attributes:
        support_rich_types: Whether to record tuples and namedtuples, so that they are restored
            without a target.
    """

    support_rich_types: bool = False

    def __post_init__(self) -> None:
        check_flag_fields(self, "support_rich_types")


def check_objects(memory: object, registry: object, recorded: object) -> None:
    """Check the object-valued arguments of a tree handler.

    Raises:
        TypeError: One has another type, for example is a class.
    """
    limits = "Give MemoryOptions(read_concurrent_bytes=2**30), for example."
    check_type("memory_options", memory, MemoryOptions, "a MemoryOptions", limits)
    types = "Give that of type_handlers.create_type_handler_registry(...), or leave it out."
    check_methods("type_handler_registry", registry or object, ["get", "has"], types)
    if isinstance(recorded, type) or not hasattr(recorded, "support_rich_types"):
        raise TypeError(
            f"pytree_metadata_options must be a PyTreeMetadataOptions, found {show(recorded)}. "
            "Give PyTreeMetadataOptions(support_rich_types=True), or leave it out."
        )


def memory_within(
    memory: MemoryOptions | None,
    save_gb: float | None,
    restore_gb: float | None,
    save_device_host_gb: float | Literal["auto"] | None = None,
    limits: object = None,
) -> MemoryOptions:
    """Combine a handler's memory limits, given in bytes or in GB.

    Raises:
        ValueError: They are given in both, or one is not positive.
        TypeError: `limits` has no `max_transfer_concurrent_gb`.
    """
    if limits is not None and not hasattr(limits, "max_transfer_concurrent_gb"):
        raise TypeError(
            f"memory_limit_options must be a MemoryLimitOptions, found {show(limits)}. Give "
            "MemoryLimitOptions(max_transfer_concurrent_gb=8), for example."
        )
    in_gb = (save_gb, restore_gb, save_device_host_gb)
    if memory is not None and any(limit is not None for limit in in_gb):
        raise ValueError("Give memory limits in GB or as memory_options, not both.")
    most: float | None = getattr(limits, "max_transfer_concurrent_gb", None)
    return (memory or MemoryOptions.from_gb(*in_gb)).within(MemoryLimitOptions(most))


class PyTreeHandler(ItemHandler["PyTreeSaveArgs"]):
    """Saves and restores a pytree."""

    def __init__(  # noqa: PLR0913 - Orbax's signature
        self,
        aggregate_filename: str | None = None,
        *,
        save_concurrent_gb: float | None = None,
        restore_concurrent_gb: float | None = None,
        save_device_host_concurrent_gb: float | Literal["auto"] | None = None,
        memory_options: MemoryOptions | None = None,
        use_ocdbt: bool = True,
        use_zarr3: bool = True,
        use_compression: bool = True,
        type_handler_registry: TypeHandlerRegistry = GLOBAL_TYPE_HANDLER_REGISTRY,
        pytree_metadata_options: PyTreeMetadataOptions = PyTreeMetadataOptions(),
        process: Process | None = None,
        memory_limit_options: object = None,
        multiprocessing_options: object = None,
        handler_impl: object = None,
        array_metadata_validator: RecordsValidator | None = None,
        enable_pinned_host_transfer: bool | None = None,
        is_prioritized_key_fn: PriorityFunction | None = None,
    ) -> None:
        """Make a handler.

        Args:
            aggregate_filename: Name of early Orbax's msgpack file; None for `checkpoint`.
            save_concurrent_gb: Most GB (10**9 bytes) held in memory for writing at once; a larger
                array is written alone. None for the default.
            restore_concurrent_gb: The same for reading.
            save_device_host_concurrent_gb: Most GB copied from devices at once; `"auto"` is half of
                the free host memory.
            memory_options: The three limits in bytes instead of GB.
            use_ocdbt: Whether arrays share one database instead of having a directory each.
            use_zarr3: Whether to write zarr3, with a checksum in every chunk, instead of zarr2.
            use_compression: Whether to compress arrays with zstd; small ones never are.
            type_handler_registry: The type handlers.
            pytree_metadata_options: What to record of the tree.
            process: The saving process and the number of processes; None for JAX's. A single
                process saves its own tree.
            memory_limit_options: Its `max_transfer_concurrent_gb` is the upper limit of
                `save_device_host_concurrent_gb`, and the limit itself if that is not given.
            multiprocessing_options: Ignored with a warning; give it to the checkpointer or manager.
            handler_impl: A handler that saves and restores instead of this one, like Orbax's
                `BasePyTreeCheckpointHandler`, except for restores with transforms.
            array_metadata_validator: An object with `validate_all_array_metadatas`, which receives
                the records of arrays by process before a checkpoint is complete.
            enable_pinned_host_transfer: Passed to type handlers in `ParamInfo`; the built-in ones
                do not use it, and warn.
            is_prioritized_key_fn: Returns the `TransferPriority` of a leaf, given its path. With a
                limit of transfers, JAX arrays that are not `SYNCHRONOUS` are copied from devices
                only when they are written, which bounds the memory of a save. Do not delete or
                donate them before it ends.

        Raises:
            TypeError: A flag is not True, False, 1 or 0.
            ValueError: A limit is not positive, or is given in GB and in bytes.
        """
        warn_of_unused(
            self,
            multiprocessing_options=multiprocessing_options,
            enable_pinned_host_transfer=enable_pinned_host_transfer,
        )
        if handler_impl is not None:
            check_handler("handler_impl", handler_impl)
        self._impl = cast("CheckpointHandler | None", handler_impl)
        function = "Give a function of a path that returns a TransferPriority."
        check_callable("is_prioritized_key_fn", is_prioritized_key_fn, function)
        method = ["validate_all_array_metadatas"]
        check_methods("array_metadata_validator", array_metadata_validator, method, "Leave it out.")
        name = "Give the name of a file."
        check_type("aggregate_filename", aggregate_filename, str, "a str", name)
        check_type("process", process, Process, "a Process", "Leave it out for JAX's.")
        check_objects(memory_options, type_handler_registry, pytree_metadata_options)
        in_gb = (save_concurrent_gb, restore_concurrent_gb, save_device_host_concurrent_gb)
        self._trees = TreeIO(
            type_handler_registry,
            memory_within(memory_options, *in_gb, memory_limit_options),
            pytree_metadata_options.support_rich_types,
            use_ocdbt=as_flag("use_ocdbt", use_ocdbt),
            use_zarr3=as_flag("use_zarr3", use_zarr3),
            use_compression=as_flag("use_compression", use_compression),
            aggregate=aggregate_filename,
            process=process,
            staging=StagingOptions(
                is_prioritized_key_fn, bool(enable_pinned_host_transfer), array_metadata_validator
            ),
            kept=KeptPlan(),
        )

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return TREE_TYPESTR

    @override
    def _arguments(self, item: object, save_args: object) -> PyTreeSaveArgs:
        return PyTreeSaveArgs(_not_args(item), save_args)

    @override
    async def stage(self, directory: Path, args: PyTreeSaveArgs, *, copy: bool) -> Commit:
        """Copy the tree and return the commit; see `TreeIO.stage`."""
        if self._impl is not None:
            given = {"args": _args_of(self._impl, args, 0)}
            return await stage_item(self._impl, directory, given, copy=copy)
        return await self._trees.stage(
            directory,
            args.item,
            copy=copy,
            save_args=args.save_args,
            data_file_bytes=args.ocdbt_target_data_file_size,
            custom_metadata=args.custom_metadata,
        )

    @override
    def restore(
        self,
        directory: str | os.PathLike[str],
        item: object = None,
        restore_args: object = None,
        transforms: object = None,
        transforms_default_to_original: bool = True,
        legacy_transform_fn: LegacyFunction | None = None,
        args: PyTreeRestoreArgs | None = None,
    ) -> object:
        """Read a tree.

        Args:
            directory: Where it is.
            item: Tree that gives the structure of the result, if `args` is not given, like the next
                four.
            restore_args: Tree of `RestoreArgs`.
            transforms: See `PyTreeRestoreArgs`, as for the next two.
            transforms_default_to_original: See there.
            legacy_transform_fn: See there.
            args: Arguments of the restore.

        Raises:
            CheckpointNotFoundError: The directory holds no tree.
            TreeMismatchError: The target differs from the checkpoint.
            CorruptionError: Stored data is missing or damaged.
        """
        transform = (transforms, transforms_default_to_original, legacy_transform_fn)
        args = args or PyTreeRestoreArgs(_not_args(item), restore_args, *transform)
        legacy, path = args.legacy(), resolve_path(directory)
        if self._impl is not None and legacy is None:
            return restore_item(self._impl, path, {"args": _args_of(self._impl, args, 1)})
        options = RestoreOptions(
            target=args.item,
            restore_args=args.restore_args,
            missing="keep" if args.partial_restore else "error",
            unexpected="ignore" if args.partial_restore else "error",
            allow_empty=args.allow_empty,
            legacy=legacy,
        )
        return self._trees.restore(path, options)

    def metadata(
        self, directory: str | os.PathLike[str], *, reader: Format | None = None
    ) -> TreeMetadata:
        """Return metadata of the leaves; see `TreeIO.metadata`."""
        describe = getattr(self._impl, "metadata", None)
        if describe is not None:
            return describe(foreign_path(self._impl, resolve_path(directory)))
        return self._trees.metadata(resolve_path(directory), reader=reader)

    @override
    def close(self) -> None:
        """Release resources, also those of `handler_impl`."""
        self._trees.close()
        if self._impl is not None:
            self._impl.close()


@register_with_handler(PyTreeHandler, for_save=True)
@dataclass
class PyTreeSaveArgs(CheckpointArgs):
    """A tree to save, and its options.

    Attributes:
        item: The tree.
        save_args: Tree of `SaveArgs` with the same structure; may lack leaves.
        ocdbt_target_data_file_size: Size in bytes at which to start a new data file; None means
            2 GiB, 0 no limit.
        custom_metadata: Any JSON value to store with the tree.
    """

    item: object
    save_args: object = None
    ocdbt_target_data_file_size: int | None = None
    custom_metadata: object = None

    def __post_init__(self) -> None:
        if isinstance(self.item, TreeMetadata):
            raise ValueError("Cannot save TreeMetadata.")
        size = self.ocdbt_target_data_file_size
        check_int("ocdbt_target_data_file_size", size, least=0, optional=True)


@register_with_handler(PyTreeHandler, for_restore=True)
@dataclass
class PyTreeRestoreArgs(CheckpointArgs):
    """What to restore of a tree, and how.

    Attributes:
        item: Tree that gives the structure of the result. Its leaves have two uses only:
            PLACEHOLDER leaves are not read, and leaves with `ArrayRestoreArgs` complete these. None
            for the recorded structure.
        restore_args: Tree of `RestoreArgs` like the result. Strict `ArrayRestoreArgs` without a
            shape or dtype require that of the leaf of `item`.
        transforms: Tree of `Transform` and `RestoreTransform`, by regular expressions for leaves of
            `item`; maps them to leaves of the checkpoint. `{}` differs from None: with it, `item`
            may differ from the checkpoint.
        transforms_default_to_original: Whether leaves that no transform matches come from the
            checkpoint if it has them, otherwise from `item`.
        legacy_transform_fn: Instead of `transforms`, a function of `item`, the stored tree and a
            tree of `ParamInfo`; returns the last two in the structure of the result.
        partial_restore: Whether `item` may lack leaves of the checkpoint, and have leaves that the
            checkpoint lacks: these keep their values and are logged. Always allowed with
            `transforms`.
        allow_empty: Whether leaves of `item` may be None or empty containers in the checkpoint,
            such as `optax.MaskedNode()`. The result then has None, or the container, in their
            place, as in Orbax.
    """

    item: object = None
    restore_args: object = None
    transforms: object = None
    transforms_default_to_original: bool = True
    legacy_transform_fn: LegacyFunction | None = None
    partial_restore: bool = False
    allow_empty: bool = False

    def __post_init__(self) -> None:
        for name in ("item", "restore_args", "transforms"):
            value = getattr(self, name)
            if isinstance(value, TreeMetadata):
                setattr(self, name, value.tree)
        flags = ("partial_restore", "transforms_default_to_original", "allow_empty")
        check_flag_fields(self, *flags)
        advice = "Give a function of item, the stored tree and a tree of ParamInfo."
        check_callable("legacy_transform_fn", self.legacy_transform_fn, advice)

    def legacy(self) -> LegacyRules | LegacyFunction | None:
        """Return the transforms requested by `transforms` or `legacy_transform_fn`, if any.

        Raises:
            ValueError: `item` is missing, or both are given.
        """
        if self.transforms is not None and self.legacy_transform_fn is not None:
            raise ValueError("Cannot provide both `transforms` and `legacy_transform_fn`.")
        if self.transforms is None and self.legacy_transform_fn is None:
            return None
        if self.item is None:
            name = "transforms" if self.legacy_transform_fn is None else "legacy_transform_fn"
            raise ValueError(
                f"If providing `{name}`, must provide `item` matching structure of expected result."
            )
        if self.legacy_transform_fn is not None:
            return self.legacy_transform_fn
        return LegacyRules(self.transforms, self.transforms_default_to_original)


def _args_of(handler: CheckpointHandler, args: CheckpointArgs, position: int) -> object:
    """Return arguments of a save (0) or restore (1) as another handler takes them.

    Its own argument class, if it has one, gets the fields that both classes have.
    """
    kind = own_args(type(handler), position)
    if kind is None or isinstance(args, kind) or not is_dataclass(kind):
        return args
    known = vars(args)
    return kind(**{f.name: known[f.name] for f in fields(kind) if f.name in known})


def _not_args(item: object) -> object:
    if isinstance(item, CheckpointArgs):
        raise ValueError(
            f"Make sure to specify kwarg name `args=` when providing `{type(item).__name__}`."
        )
    return item

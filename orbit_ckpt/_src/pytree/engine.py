"""Save, restore and describe pytrees.

All access to stored trees goes through `TreeIO`: item handlers, the functions of the API and the
command line call it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, cast

from orbit_ckpt._src.arrays.memory import available_bytes
from orbit_ckpt._src.arrays.sharding import ShardingResolver
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.formats.registry import read_tree
from orbit_ckpt._src.formats.stored_tree import StoredTree
from orbit_ckpt._src.metadata.values import TreeMetadata
from orbit_ckpt._src.pytree.describe import describe_tree
from orbit_ckpt._src.pytree.restore.target import RestoreOptions
from orbit_ckpt._src.pytree.restore.tree import (
    ResolvedRestore,
    resolve_restore,
    restore_tree,
)
from orbit_ckpt._src.pytree.save.kept import KeptPlan
from orbit_ckpt._src.pytree.save.options import StagingOptions, TreeSaveOptions
from orbit_ckpt._src.pytree.save.stage import stage_tree
from orbit_ckpt._src.runtime.checks import check_int, check_number
from orbit_ckpt._src.runtime.commit import Commit, ItemToSave
from orbit_ckpt._src.runtime.loop import run_sync
from orbit_ckpt._src.runtime.process import Process, this_process
from orbit_ckpt._src.runtime.read_count import current_read_count
from orbit_ckpt._src.storage.incremental import current_base
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY, TypeHandlerRegistry

if TYPE_CHECKING:
    from orbit_ckpt._src.pytree.restore.explain import RestorePlan

T = TypeVar("T")

_GB = 10**9

TREE_TYPESTR = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"
"""Recorded type of an item that is a tree, with which Orbax restores it."""


@dataclass
class MemoryLimitOptions:
    """Orbax's upper bound on copies from devices.

    Attributes:
        max_transfer_concurrent_gb: Most GB (10**9 bytes) being copied from devices at once, also if
            the handler's `save_device_host_concurrent_gb` is `"auto"` or not given.
    """

    max_transfer_concurrent_gb: float | None = None

    def __post_init__(self) -> None:
        _ = self.max_transfer_bytes

    @property
    def max_transfer_bytes(self) -> int | None:
        """The bound in bytes."""
        return _bytes_of("max_transfer_concurrent_gb", self.max_transfer_concurrent_gb)


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Budgets in bytes, each for one process; None is the default.

    An array above a budget is written in parts, chunk by chunk; what cannot be divided is admitted
    alone.

    Attributes:
        write_concurrent_bytes: Maximum bytes in host memory for writing at once; 2 GiB by default.
        read_concurrent_bytes: Maximum bytes being read at once. By default 64 MiB per core (128 MiB
            at least, 2 GiB at most) for data that is decoded, cast or moved to devices, and no
            limit for data read straight into the result. Also the most bytes that the lazy arrays
            of one load keep of their chunks between slices, by default 256 MiB.
        transfer_concurrent_bytes: Maximum bytes being copied from devices at once; no limit by
            default. `"auto"` is half of the host memory that is free when the save begins.
        max_auto_transfer_bytes: Upper bound of `"auto"`.
    """

    write_concurrent_bytes: int | None = None
    read_concurrent_bytes: int | None = None
    transfer_concurrent_bytes: int | Literal["auto"] | None = None
    max_auto_transfer_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            limit: object = getattr(self, field.name)
            is_auto = limit == "auto" and field.name == "transfer_concurrent_bytes"
            if limit is not None and not is_auto:
                check_int(field.name, limit, least=1)

    @property
    def max_transfer_bytes(self) -> int | None:
        """`transfer_concurrent_bytes` as a number, resolved now."""
        limit = self.transfer_concurrent_bytes
        if isinstance(limit, int) or limit is None:
            return limit
        available, most = available_bytes(), self.max_auto_transfer_bytes
        bounds = ([] if available is None else [max(1, available // 2)]) + ([most] if most else [])
        return min(bounds, default=None)

    def within(self, limits: MemoryLimitOptions | None) -> MemoryOptions:
        """Return these budgets with transfers from devices bounded by Orbax's limit."""
        most = None if limits is None else limits.max_transfer_bytes
        if most is None:
            return self
        if self.transfer_concurrent_bytes == "auto":
            return replace(self, max_auto_transfer_bytes=most)
        return replace(
            self, transfer_concurrent_bytes=min(self.transfer_concurrent_bytes or most, most)
        )

    @classmethod
    def from_gb(
        cls,
        save: float | None = None,
        restore: float | None = None,
        save_device_host: float | Literal["auto"] | None = None,
    ) -> MemoryOptions:
        """Convert Orbax's `..._concurrent_gb` arguments, in units of 10**9 bytes.

        Raises:
            ValueError: One is not positive.
            TypeError: One is not a number.
        """
        transfer = "auto"
        if save_device_host != "auto":
            transfer = _bytes_of("save_device_host_concurrent_gb", save_device_host)
        save_bytes = _bytes_of("save_concurrent_gb", save)
        return cls(save_bytes, _bytes_of("restore_concurrent_gb", restore), transfer)


def _bytes_of(name: str, gigabytes: object) -> int | None:
    if gigabytes is None:
        return None
    check_number(name, gigabytes, can_be_zero=False)
    return max(1, int(cast(float, gigabytes) * _GB))


@dataclass(frozen=True, slots=True)
class TreeIO:
    """Saves, restores and describes pytrees.

    Attributes:
        registry: The type handlers.
        memory: Limits of the host memory that a save or a restore uses beyond the tree.
        rich_types: Whether tuples and namedtuples are recorded as such, and restored without a
            target.
        use_ocdbt: Whether arrays go into one database, else into a directory each.
        use_zarr3: Whether arrays are zarr3, with a checksum in every chunk, else zarr2.
        use_compression: Whether arrays are compressed with zstd; small ones never are.
        aggregate: Name of the msgpack file of early Orbax; None for `checkpoint`.
        process: The saving process and their count; None for JAX's.
        staging: How leaves are copied, and what checks their records.
        kept: The plan of the last save, for the next; None keeps none.
        executor: Where a save writes arrays that are stored elsewhere; None for this process.
    """

    registry: TypeHandlerRegistry = GLOBAL_TYPE_HANDLER_REGISTRY
    memory: MemoryOptions = MemoryOptions()
    rich_types: bool = True
    use_ocdbt: bool = True
    use_zarr3: bool = True
    use_compression: bool = True
    aggregate: str | None = None
    process: Process | None = None
    staging: StagingOptions = StagingOptions()  # noqa: RUF009 - frozen
    kept: KeptPlan | None = None
    executor: Executor | None = None

    def close(self) -> None:
        """Forget what is kept between saves."""
        if self.kept is not None:
            self.kept.drop()

    async def stage(
        self,
        directory: Path,
        tree: object,
        *,
        copy: bool,
        save_args: object = None,
        data_file_bytes: int | None = None,
        custom_metadata: object = None,
    ) -> Commit:
        """Copy what the caller may change of a tree and return the commit that writes it.

        Args:
            directory: An empty directory that only this save writes to; may not exist yet.
            tree: What to save.
            copy: Whether the caller may change its leaves before the commit has run.
            save_args: Tree of `SaveArgs` like the tree; may lack leaves.
            data_file_bytes: Size at which a new data file begins; None is 2 GiB, 0 no limit.
            custom_metadata: Any JSON value to keep with the tree.

        Raises:
            UnsupportedLeafError: Some leaves cannot be written.
            NameCollisionError: Leaves would share a storage name.
            ValueError: The tree is metadata of a tree.
        """
        if isinstance(tree, TreeMetadata):
            raise ValueError("Cannot save TreeMetadata.")
        base = current_base()
        options = TreeSaveOptions(
            use_ocdbt=self.use_ocdbt,
            use_zarr3=self.use_zarr3,
            use_compression=self.use_compression,
            data_file_bytes=data_file_bytes,
            max_bytes=self.memory.write_concurrent_bytes,
            max_transfer_bytes=self.memory.max_transfer_bytes,
            custom_metadata=custom_metadata,
            process=self.process or this_process(),
            staging=self.staging,
            base=None if base is None else base.below(directory),
            known=None if base is None or self.kept is None else self.kept.arrays,
            executor=self.executor,
        )
        plan = (self.kept or KeptPlan()).plan(
            tree,
            self.registry,
            save_args,
            use_ocdbt=self.use_ocdbt,
            use_zarr3=self.use_zarr3,
            rich_types=self.rich_types,
        )
        return await stage_tree(plan, directory, options, copy=copy)

    def item(
        self, tree: object, save_args: object = None, custom_metadata: object = None
    ) -> ItemToSave:
        """Return a tree as the item of a save; see `stage`."""

        async def stage(directory: Path, copy: bool) -> Commit:
            return await self.stage(
                directory, tree, copy=copy, save_args=save_args, custom_metadata=custom_metadata
            )

        return ItemToSave(stage, TREE_TYPESTR, tree)

    def restore(
        self, path: Path, options: RestoreOptions, *, resolver: ShardingResolver | None = None
    ) -> object:
        """Restore a stored tree; see `restore_tree`."""
        as_whole = options.is_plain and (resolver is None or resolver.fallback is None)
        return self._run(path, options, self._restored, resolver=resolver, as_whole=as_whole)

    def explain(self, path: Path, options: RestoreOptions, *, on_host: bool = False) -> RestorePlan:
        """Return the plan of a restore; reads metadata only. For `on_host` see `explain`."""
        from orbit_ckpt._src.pytree.restore.explain import explain  # noqa: PLC0415 - few ask for it

        return self._run(path, options, partial(explain, on_host=on_host))

    def restore_and_explain(
        self, path: Path, options: RestoreOptions
    ) -> tuple[object, RestorePlan]:
        """Return a stored tree as the options ask for it, and what was done."""
        from orbit_ckpt._src.pytree.restore.explain import explain  # noqa: PLC0415 - few ask for it

        async def both(resolved: ResolvedRestore) -> tuple[object, RestorePlan]:
            explained = await explain(resolved)
            return await self._restored(resolved), explained

        return self._run(path, options, both)

    async def _restored(self, resolved: ResolvedRestore) -> object:
        return await restore_tree(resolved, rich_types=self.rich_types)

    def metadata(self, path: Path, *, reader: Format | None = None) -> TreeMetadata:
        """Return metadata of the leaves of a stored tree; reads no array, touches no device.

        Args:
            path: Where the tree is.
            reader: The format to read as, None to detect it.

        Raises:
            CheckpointNotFoundError: There is no tree.
            CorruptionError: Stored data is missing or damaged.
        """
        return describe_tree(
            path,
            self.registry,
            reader=reader,
            aggregate=self.aggregate,
            rich_types=self.rich_types,
        )

    def _run(
        self,
        path: Path,
        options: RestoreOptions,
        run: Callable[[ResolvedRestore], Coroutine[object, object, T]],
        *,
        resolver: ShardingResolver | None = None,
        as_whole: bool = False,
    ) -> T:
        """Resolve a restore and run something on the result."""
        max_bytes = self.memory.read_concurrent_bytes
        count = current_read_count()

        async def read(open_source: Callable[[], StoredTree]) -> T:
            source = open_source()
            with source.unchanged():
                if source.read_whole is not None:
                    return cast(T, await asyncio.to_thread(source.read_whole))
                batch = source.load_batch(
                    max_bytes=max_bytes, resolver=resolver, share_reads=options.share_reads
                )
                resolved = await resolve_restore(source, batch, self.registry, options)
                if count is not None:
                    reader = batch.reader
                    count.add(lambda: reader.bytes_read)
                    count.total += await _bytes_to_read(resolved) if count.wants_total else 0
                return await run(resolved)

        return read_tree(
            path,
            lambda open_source: run_sync(read(open_source)),
            reader=options.reader,
            aggregate=self.aggregate,
            has_target=options.target is not None,
            as_whole=as_whole,
        )


async def _bytes_to_read(resolved: ResolvedRestore) -> int:
    from orbit_ckpt._src.pytree.restore.explain import explain  # noqa: PLC0415 - few ask for it

    return (await explain(resolved)).bytes_read

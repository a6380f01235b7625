"""Run the save of one tree in two phases."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import cast

import jax
from msgspec import structs

from orbit_ckpt._src.arrays.transfer import ArraySnapshot
from orbit_ckpt._src.arrays.unchanged import refer_to, unchanged
from orbit_ckpt._src.metadata.array_records import ArrayRecord
from orbit_ckpt._src.metadata.files import DocumentWriter
from orbit_ckpt._src.metadata.user_json import copy_json
from orbit_ckpt._src.pytree.save.agreement import read_records
from orbit_ckpt._src.pytree.save.documents import TreeDocuments, encode_documents
from orbit_ckpt._src.pytree.save.merge import TreeMerge
from orbit_ckpt._src.pytree.save.options import TreeSaveOptions
from orbit_ckpt._src.pytree.save.plan import PlannedLeaf, SavePlan
from orbit_ckpt._src.pytree.save.tied import find_tied, uncast_arrays
from orbit_ckpt._src.pytree.save.whole import LeafColumns, add_whole, copy_whole
from orbit_ckpt._src.runtime.commit import Commit, Progress
from orbit_ckpt._src.runtime.futures import Future, begin
from orbit_ckpt._src.runtime.joint import offer_work
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.runtime.loop import run_all
from orbit_ckpt._src.storage.batch_write import BatchWriter, WriteOptions
from orbit_ckpt._src.storage.buckets import get_ts_context
from orbit_ckpt._src.storage.integrity import write_manifest
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt._src.storage.ocdbt import check_files
from orbit_ckpt._src.storage.path import as_epath
from orbit_ckpt._src.storage.staging import copy_to_host_within
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt._src.storage.store_view import list_anew
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.type_handlers.base import ParamInfo, SaveBatch, TypeHandler
from orbit_ckpt._src.type_handlers.capabilities import (
    SnapshotHandler,
    capability,
    derives_from_orbax,
)
from orbit_ckpt._src.type_handlers.transfers import TransferSchedule


async def stage_tree(
    plan: SavePlan, directory: Path, options: TreeSaveOptions, *, copy: bool
) -> Commit:
    """Copy what the caller may change and return the commit that writes the tree.

    Args:
        plan: What to write.
        directory: An empty directory that only this save writes to.
        options: How to write it.
        copy: Whether the caller may change its leaves before the commit has run. Without it,
            arrays in host memory are not copied.
    """
    handlers = plan.handlers  # the plan has the caller's leaves
    options = structs.replace(
        options,
        has_other_writers=any(map(derives_from_orbax, handlers)),
        has_own_databases=any(getattr(handler, "has_own_databases", False) for handler in handlers),
    )
    if options.custom_metadata is not None:
        options = structs.replace(options, custom_metadata=_copied(options.custom_metadata))
    why = _why_full(directory, options)
    if options.base is not None and why is not None:
        options.base.decline(why)
        options = structs.replace(options, base=None)
    if options.base is not None:
        base = structs.replace(options.base, may_change=not copy)
        options = structs.replace(options, base=base)
    plan = plan.without_forms([h for h in handlers if not _writes_whole(h, options, copy=copy)])
    save = _TreeSave(directory, options, copy=copy)
    save.tie(plan)
    leaves = uncast_arrays(plan) if options.known is not None else []
    saved = refer_to(leaves)
    with unchanged(await asyncio.to_thread(save.find_known, leaves)):
        snapshot = await snapshot_leaves(plan, options) if copy else None
        if snapshot is None:
            await save.serialize(plan)
        if snapshot is None and copy:
            await save.snapshot()
    leaves.clear()

    async def write() -> None:
        if snapshot is not None:
            await save.serialize(snapshot)
        await save.write()
        save.note_known(saved)

    def finalize() -> None:
        save.finalize(handlers)

    return Commit(write, finalize, save.progress)


def _why_full(directory: Path, options: TreeSaveOptions) -> str | None:
    """Return why a save in this layout cannot refer to an earlier one, None if it can."""
    if isinstance(directory, StorePath):
        return "objects of a store cannot be linked"
    if not options.use_ocdbt or not options.use_zarr3:
        return "only arrays in a database as zarr3 can be shared"
    has_more = options.has_other_writers or options.has_own_databases
    return "a type handler writes a database of its own" if has_more else None


async def snapshot_leaves(plan: SavePlan, options: TreeSaveOptions) -> SavePlan | None:
    """Return the plan with copies of the leaves.

    Only the primary process copies arrays that all processes have, because it writes them.

    Returns:
        None if a handler cannot snapshot its values; all must then serialize at once.
    """
    found = {id(handler): capability(handler, SnapshotHandler) for handler in plan.handlers}
    # handlers detect errors in the choice of chunks, which the caller must see
    has_chunks = any(
        g.args.chunk_byte_size is not None or g.args.shard_axes or g.args.read_shapes
        for g in plan.groups
    )
    if None in found.values() or has_chunks:
        return None
    values = list(plan.flat.values)
    copy_whole(plan, values)
    arrays: list[ArraySnapshot] = []
    is_limited = options.max_transfer_bytes is not None
    for handler, leaves in plan.batches():
        snapshots = cast(SnapshotHandler, handler).snapshot([leaf.value for leaf in leaves])
        schedule = TransferSchedule.of(handler, options.staging.key_priority, is_limited=is_limited)
        for leaf, value in zip(leaves, snapshots, strict=True):
            values[leaf.position] = value
            if isinstance(value, ArraySnapshot):
                if schedule is not None and value.sharding is not None:
                    schedule.apply(value, leaf.path)
                arrays.append(value)
                if value.sharding is None and not options.process.is_primary:
                    value.shards.clear()  # also keeps none of the caller's data alive
    shards = [shard for array in arrays for shard in array.shards]
    copies = iter(await copy_to_host_within(options.max_transfer_bytes, shards))
    for array in arrays:
        array.shards[:] = islice(copies, len(array.shards))
    return plan.with_values(values)


def _writes_whole(handler: TypeHandler, options: TreeSaveOptions, *, copy: bool) -> bool:
    """Return whether the save itself can write values of a handler that are whole arrays."""
    staging, is_limited = options.staging, copy and options.max_transfer_bytes is not None
    schedule = TransferSchedule.of(handler, staging.key_priority, is_limited=is_limited)
    return options.process.is_alone and staging.validator is None and schedule is None


class _TreeSave:
    """The save of one tree."""

    def __init__(self, directory: Path, options: TreeSaveOptions, *, copy: bool) -> None:
        self._main = options.parts[options.process.index] if options.has_parts else ""
        self._writers: dict[str, BatchWriter] = {}
        self._directory = directory
        self._options = options
        place = self._place if options.has_own_databases and options.has_parts else None
        self._batch = SaveBatch(
            self._place(self._main),
            copy,
            options.process,
            has_all_records=not options.process.is_alone or options.staging.validator is not None,
            place=place,
        )
        self._arrays: list[tuple[str, ZarrArray]] = []
        self._futures: list[Future] = []
        self._documents: TreeDocuments | None = None
        self._document_writer = DocumentWriter(directory)
        self._merge = TreeMerge(directory, options)
        if not options.process.is_alone:
            offer_work(directory, self._merge)

    def _place(self, part: str) -> BatchWriter:
        """Return the writer of a database, given its directory.

        Raises:
            ValueError: It is the database of another process.
        """
        if part in self._writers:
            return self._writers[part]
        options = self._options
        if part != self._main and part in options.parts:
            raise ValueError(f"{part} is the database of another process. Give another id.")
        base = options.base
        if base is not None and part:
            base = base.of_part(part, options.parts)
        writer = self._writers[part] = BatchWriter(
            WriteOptions(
                self._directory / part if part else self._directory,
                use_ocdbt=options.use_ocdbt,
                data_file_bytes=options.data_file_bytes,
                max_bytes=options.max_bytes,
                max_transfer_bytes=options.max_transfer_bytes,
                # nothing is known of the values in databases of other writers
                chunks_have_checksums=options.use_zarr3 and not options.has_other_writers,
                base=base,
                executor=options.executor,
            )
        )
        return writer

    def tie(self, plan: SavePlan) -> None:
        """Store large arrays once that are several leaves of the tree."""
        self._writers[self._main].tie(find_tied(plan))

    def find_known(self, leaves: Sequence[tuple[str, object]]) -> frozenset[int]:
        """Return the ids of the leaves that the base step is known to hold."""
        known = self._options.known
        found = frozenset[int]() if known is None else known.among(leaves)
        if known is None or not found:
            return frozenset()
        incremental = self._writers[self._main].open_base()
        is_base = incremental is not None and known.are_in(incremental.base_files)
        return found if is_base else frozenset()

    def note_known(self, saved: Mapping[str, weakref.ref[jax.Array]]) -> None:
        """Note the arrays that this save has stored, for the next one."""
        known, record = self._options.known, self._writers[self._main].record
        if known is not None:
            known.set(record.database.files if record and record.database else None, saved)

    def progress(self) -> Progress:
        """Progress of the writing."""
        return sum((writer.progress.now() for writer in self._writers.values()), Progress())

    async def snapshot(self) -> None:
        """Copy all data that handlers have added."""
        for writer in self._writers.values():
            await writer.snapshot()

    async def serialize(self, plan: SavePlan) -> None:
        """Add whole arrays to the batch, and pass all other leaves to their handlers."""
        make_info = _info_maker(plan, self._directory, self._options, self._batch)
        add_whole(plan, self._batch, make_info)
        infos: dict[int, ParamInfo] = {}

        async def serialize(handler: TypeHandler, leaves: Sequence[PlannedLeaf]) -> None:
            own = {leaf.position: make_info(leaf) for leaf in leaves}
            infos.update(own)
            futures = await handler.serialize(
                [leaf.value for leaf in leaves],
                list(own.values()),
                [leaf.args for leaf in leaves],
            )
            self._futures += begin(futures)

        await run_all(serialize(handler, leaves) for handler, leaves in plan.batches())
        self._record_extra({info.name: info for info in infos.values()})
        columns, shardings = LeafColumns.of(plan), dict(self._batch.shardings)
        for position, info in infos.items():
            columns.write_shapes[position] = info.write_shape
            columns.shardings[position] = shardings.pop(info.name, None)
        if self._options.process.is_primary:
            self._documents = encode_documents(
                plan,
                columns,
                self._batch.details,
                shardings,
                use_ocdbt=self._options.use_ocdbt,
                use_zarr3=self._options.use_zarr3,
                custom_metadata=self._options.custom_metadata,
            )

    def _record_extra(self, infos: Mapping[str, ParamInfo]) -> None:
        """Add the JSON that handlers have set to the records of arrays."""
        extra = {
            name: _copied(info.ext_metadata, f"{info.label}: ext_metadata")
            for name, info in infos.items()
            if info.ext_metadata
        }
        if not extra:
            return
        arrays = self._batch.arrays
        arrays[:] = [
            structs.replace(record, extra=extra.pop(record.name, None)) for record in arrays
        ]
        if self._options.process.is_primary:  # it alone writes the leaves that all processes have
            for name, value in extra.items():
                shape = infos[name].write_shape or ()
                arrays.append(structs.replace(ArrayRecord(name, shape, shape), extra=value))

    async def write(self) -> None:
        """Write the data collected by handlers, and the documents about it."""
        writers = self._writers
        if not self._options.process.is_alone:
            self._arrays = [array for writer in writers.values() for array in writer.arrays]
        if self._options.has_parts:
            for part in writers:
                has_links = self._options.base is not None  # which are made as leaves are staged
                where = self._directory / part
                await asyncio.to_thread(partial(where.mkdir, exist_ok=has_links))
        commits = [writer.commit() for writer in writers.values()]
        await run_all([*commits, asyncio.to_thread(self._end_serialization)])
        if self._options.has_parts:
            records = self._batch.arrays
            await asyncio.to_thread(self._merge.write_parts, writers, self._arrays, records)

    def _end_serialization(self) -> None:
        """Wait for what handlers write themselves; write the documents, beside the arrays."""
        _wait(self._futures)
        self._write_documents()

    def join(self) -> Manifest | None:
        """Check that all processes wrote parts of one tree, and merge them into one database.

        Returns:
            The manifest's record of the database; None without one.

        Raises:
            StorageError: They have not written the same arrays, or not every part once.
        """
        process = self._options.process
        if not process.is_alone:
            self._merge.check()
        validator = self._options.staging.validator
        if validator is not None and (records := read_records(self._directory, process.count)):
            validator.validate_all_array_metadatas(records)
        if self._options.has_parts:
            return self._merge.finish()
        if process.is_alone:
            return self._writers[self._main].record
        check_files(self._directory, self._arrays)
        return None

    def _write_documents(self) -> None:
        process, documents = self._options.process, self._documents
        writer = self._document_writer
        self._merge.note_records(writer.write_arrays(process.index, self._batch.arrays))
        if documents is None:
            return
        writer.write_shardings(documents.shardings)
        for name, strings in self._batch.strings.items():
            writer.write_strings(strings, name)
        writer.write_tree(documents.tree, documents.details)

    def finalize(self, handlers: Sequence[object]) -> None:
        """Join the parts of all processes, let handlers finish, then record checksums."""
        known = self.join() or Manifest()
        for handler in handlers:
            finalize = getattr(handler, "finalize", None)
            if finalize is not None:
                finalize(self._directory)
        if any(map(_finalizes, handlers)):
            list_anew()  # and the documents may have changed
        else:
            known = structs.replace(known, files={**known.files, **self._document_writer.records})
        write_manifest(self._directory, known=known)


def _finalizes(handler: object) -> bool:
    """Return whether a handler does something to finish."""
    method = getattr(handler, "finalize", None)
    return method is not None and getattr(method, "__func__", None) != TypeHandler.finalize


def _info_maker(
    plan: SavePlan, directory: Path, options: TreeSaveOptions, batch: SaveBatch
) -> Callable[[PlannedLeaf], ParamInfo]:
    """Return a function that returns the place of a leaf."""
    context = get_ts_context()
    parent, limiter = as_epath(directory), ByteLimiter(options.max_bytes)
    transfer_limiter = ByteLimiter(options.max_transfer_bytes)

    def make(leaf: PlannedLeaf) -> ParamInfo:
        return ParamInfo(
            name=leaf.name,
            parent_dir=parent,
            keypath=leaf.path,
            skip_deserialize=False,
            byte_limiter=limiter,
            device_host_byte_limiter=transfer_limiter,
            is_ocdbt_checkpoint=options.use_ocdbt,
            ts_context=context,
            use_compression=options.use_compression,
            use_zarr3=options.use_zarr3,
            ocdbt_target_data_file_size=options.data_file_bytes,
            value_typestr=plan.typestrs[leaf.position],
            enable_pinned_host_transfer=options.staging.pinned_host,
            is_prioritized_key_fn=options.staging.key_priority,
            save_batch=batch,
        )

    return make


def _wait(futures: Sequence[Future]) -> None:
    for future in futures:
        future.result()


def _copied(value: object, name: str = "custom_metadata") -> object:
    try:
        return copy_json(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be a JSON value: {error}. Use dicts with keys of str, lists, "
            "strings, numbers, booleans and None."
        ) from error

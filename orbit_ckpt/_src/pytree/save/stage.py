"""Run the save of one tree in two phases, and check that all processes saved the same arrays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, islice
from pathlib import Path

from msgspec import Struct, structs

from orbit_ckpt._src.arrays.transfer import ArraySnapshot
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.metadata import files
from orbit_ckpt._src.metadata.files import arrays_file
from orbit_ckpt._src.metadata.outline import encode_rich_types
from orbit_ckpt._src.metadata.schema import (
    ArrayRecord,
    LeafRecord,
    TreeDetails,
    TreeDocument,
    decode_arrays,
    encode_value,
)
from orbit_ckpt._src.metadata.user_json import copy_json
from orbit_ckpt._src.pytree.save.plan import PlannedLeaf, SavePlan
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.runtime.futures import Future, begin
from orbit_ckpt._src.runtime.limiter import ByteLimiter
from orbit_ckpt._src.runtime.loop import Workers, run_all
from orbit_ckpt._src.runtime.process import Process
from orbit_ckpt._src.storage.batch_write import BatchWriter, WriteOptions, copy_to_host_within
from orbit_ckpt._src.storage.buckets import handler_context
from orbit_ckpt._src.storage.integrity import write_manifest
from orbit_ckpt._src.storage.layout import process_directory
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt._src.storage.ocdbt import (
    check_files,
    databases_below,
    merge_databases,
    write_part_record,
)
from orbit_ckpt._src.storage.path import as_epath
from orbit_ckpt._src.storage.zarr import ZarrArray
from orbit_ckpt._src.text import shorten_lines
from orbit_ckpt._src.type_handlers.base import ParamInfo, SaveBatch, TypeHandler
from orbit_ckpt._src.type_handlers.capabilities import (
    SnapshotHandler,
    capability,
    derives_from_orbax,
)

_LISTED = 10
_THREADS = max(2, min(16, os.cpu_count() or 2))
_AT_ONCE = 64
"""Documents held in memory; each has a line for every array."""


def check_agreement(directory: Path, count: int) -> None:
    """Compare the array records of all processes.

    Args:
        directory: The directory of their documents.
        count: Number of processes.

    Raises:
        StorageError: Shape, dtype, division into pieces or chunks of an array differ between
            processes, or only some have it.
        FormatError: A document is not understood.
    """
    first = _read(directory, 0)
    others: dict[bytes, list[int]] = {first: [0]}  # nearly always the bytes are identical
    for process, data in _read_documents(directory, count):
        others.setdefault(data, []).append(process)
    if len(others) == 1:
        return
    records = {
        processes[0]: _decode(data, directory, processes[0]) for data, processes in others.items()
    }
    groups = {processes[0]: processes for processes in others.values()}
    problems = list(_differences(records, groups))
    if not problems:
        return
    raise StorageError(
        f"{directory}: the processes do not save the same tree, or not in the same shardings:\n"
        + "\n".join(shorten_lines(problems, _LISTED))
        + "\nGive all of them the same arrays."
    )


def _read_documents(directory: Path, count: int) -> Iterator[tuple[int, bytes]]:
    """Yield the documents of all processes but the first."""
    processes = iter(range(1, count))
    with Workers(_THREADS, "orbit_ckpt-read") as pool:
        while some := list(islice(processes, _AT_ONCE)):
            yield from zip(some, pool.map(partial(_read, directory), some), strict=True)


def _read(directory: Path, process: int) -> bytes:
    try:
        return (directory / arrays_file(process)).read_bytes()
    except FileNotFoundError:
        return b""  # it has no arrays


def _decode(data: bytes, directory: Path, process: int) -> dict[str, ArrayRecord]:
    where = str(directory / arrays_file(process))
    return {record.name: record for record in decode_arrays(data, where)} if data else {}


def _differences(
    records: Mapping[int, Mapping[str, ArrayRecord]], groups: Mapping[int, Sequence[int]]
) -> Iterator[str]:
    """Yield a line for every array that differs between processes."""
    for name in sorted({name for found in records.values() for name in found}):
        said: dict[str, list[int]] = {}
        for process, found in records.items():
            said.setdefault(_describe(found.get(name)), []).extend(groups[process])
        if len(said) > 1:
            texts = [f"{_list(sorted(processes))} {text}" for text, processes in said.items()]
            yield f"  {name}: {'; '.join(texts)}"


def _describe(record: ArrayRecord | None) -> str:
    if record is None:
        return "without it"
    keys = f", keys of {record.random_key_impl}" if record.random_key_impl else ""
    return (
        f"with {record.dtype}{list(record.shape or ())} in pieces of {list(record.write_shape)} "
        f"and chunks of {list(record.chunk_shape)}{keys}"
    )


def _list(processes: Sequence[int]) -> str:
    """Format numbers as text, `process 3`, `processes 0, 2-5`."""
    runs: list[str] = []
    for _, pairs in groupby(enumerate(processes), lambda pair: pair[1] - pair[0]):
        run = [process for _, process in pairs]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return f"{'process' if len(processes) == 1 else 'processes'} {', '.join(runs)}"


class TreeSaveOptions(Struct, frozen=True):
    """How a tree is stored.

    Attributes:
        use_ocdbt: Whether arrays go into one database, else into a directory each.
        use_zarr3: Whether arrays are zarr3 with checksums, else zarr2.
        use_compression: Whether arrays are compressed with zstd; small ones never are.
        data_file_bytes: Size at which a new data file begins; None is 2 GiB, 0 no limit.
        max_bytes: Maximum bytes held in memory for writing at once, None for the default.
        max_transfer_bytes: Maximum bytes being copied from devices at once, None for no limit.
        custom_metadata: Any JSON value to keep with the tree.
        process: The process that saves. If it is not alone, each writes a database of its own, and
            the primary one merges them.
        has_other_writers: Whether some type handlers write databases themselves, as Orbax's do.
            These are merged too.
    """

    use_ocdbt: bool = True
    use_zarr3: bool = True
    use_compression: bool = True
    data_file_bytes: int | None = None
    max_bytes: int | None = None
    max_transfer_bytes: int | None = None
    custom_metadata: object = None
    process: Process = Process()
    has_other_writers: bool = False

    @property
    def has_parts(self) -> bool:
        """Whether every process writes a database of its own."""
        return self.use_ocdbt and (self.has_other_writers or not self.process.is_alone)

    @property
    def parts(self) -> list[str]:
        """Directories of the databases of all processes, in which no handler writes itself."""
        writer = "orbit" if self.has_other_writers else ""
        return [process_directory(i, writer=writer) for i in range(self.process.count)]


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
    if any(derives_from_orbax(handler) for handler, _ in plan.groups()):
        options = structs.replace(options, has_other_writers=True)
    if options.custom_metadata is not None:
        options = structs.replace(options, custom_metadata=_copied(options.custom_metadata))
    save = _TreeSave(directory, options, copy=copy)
    snapshot = await snapshot_leaves(plan, options) if copy else None
    if snapshot is None:
        await save.serialize(plan)
    if snapshot is None and copy:
        await save.writer.snapshot()

    async def write() -> None:
        if snapshot is not None:
            await save.serialize(snapshot)
        await save.write()

    handlers = [handler for handler, _ in plan.groups()]  # the plan has the caller's leaves

    def finalize() -> None:
        _finalize(handlers, directory, save.join())

    return Commit(write, finalize, save.writer.progress.now)


async def snapshot_leaves(plan: SavePlan, options: TreeSaveOptions) -> SavePlan | None:
    """Return the plan with copies of the leaves.

    Only the primary process copies arrays that all processes have, because it writes them.

    Returns:
        None if a handler cannot snapshot its values; all must then serialize at once.
    """
    groups = plan.groups()
    found = [capability(handler, SnapshotHandler) for handler, _ in groups]
    handlers = [handler for handler in found if handler is not None]
    # handlers detect errors in the choice of chunks, which the caller must see
    has_chunks = any(a.chunk_byte_size is not None or a.shard_axes for a in plan.args.values())
    if len(handlers) < len(groups) or has_chunks:
        return None
    values = list(plan.flat.values)
    arrays: list[ArraySnapshot] = []
    for handler, (_, positions) in zip(handlers, groups, strict=True):
        snapshots = handler.snapshot([values[position] for position in positions])
        for position, value in zip(positions, snapshots, strict=True):
            values[position] = value
            if isinstance(value, ArraySnapshot):
                arrays.append(value)
                if value.sharding is None and not options.process.is_primary:
                    value.shards.clear()  # also keeps none of the caller's data alive
    shards = [shard for array in arrays for shard in array.shards]
    copies = iter(await copy_to_host_within(options.max_transfer_bytes, shards))
    for array in arrays:
        array.shards[:] = islice(copies, len(array.shards))
    return plan.with_values(values)


class _TreeSave:
    """The save of one tree."""

    def __init__(self, directory: Path, options: TreeSaveOptions, *, copy: bool) -> None:
        self._database = directory
        if options.has_parts:
            self._database = directory / options.parts[options.process.index]
        self.writer = BatchWriter(
            WriteOptions(
                self._database,
                use_ocdbt=options.use_ocdbt,
                data_file_bytes=options.data_file_bytes,
                max_bytes=options.max_bytes,
                max_transfer_bytes=options.max_transfer_bytes,
                # nothing is known of the values in databases of other writers
                chunks_have_checksums=options.use_zarr3 and not options.has_other_writers,
            )
        )
        self._directory = directory
        self._options = options
        self._batch = SaveBatch(self.writer, copy, options.process)
        self._arrays: list[tuple[str, ZarrArray]] = []
        self._futures: list[Future] = []
        self._documents: tuple[TreeDocument, TreeDetails] | None = None

    async def serialize(self, plan: SavePlan) -> None:
        """Pass all leaves to their handlers."""
        infos = _make_infos(plan, self._directory, self._options, self._batch)

        async def serialize(handler: TypeHandler, leaves: Sequence[PlannedLeaf]) -> None:
            futures = await handler.serialize(
                [leaf.value for leaf in leaves],
                [infos[leaf.name] for leaf in leaves],
                [leaf.args for leaf in leaves],
            )
            self._futures += begin(futures)

        await run_all(serialize(handler, leaves) for handler, leaves in plan.batches())
        self._documents = _documents(plan, infos, self._batch, self._options)

    async def write(self) -> None:
        """Write the data collected by handlers, and the documents about it."""
        if not self._options.process.is_alone:
            self._arrays = self.writer.arrays
        if self._options.has_parts:
            await asyncio.to_thread(self._database.mkdir)
        await run_all([self.writer.commit(), asyncio.to_thread(_wait, self._futures)])
        if self._options.has_parts and self.writer.record is not None:
            await asyncio.to_thread(write_part_record, self._database, self.writer.record)
        await asyncio.to_thread(self._write_documents)

    def join(self) -> Manifest | None:
        """Check that all processes wrote parts of one tree, and merge them into one database.

        Returns:
            The manifest's record of the database; None without one.

        Raises:
            StorageError: They have not written the same arrays, or not every part once.
        """
        process = self._options.process
        if not process.is_alone:
            check_agreement(self._directory, process.count)
        if self._options.has_parts:
            parts = self._options.parts
            others = databases_below(self._directory) if self._options.has_other_writers else []
            parts += [part for part in others if part not in parts]
            return merge_databases(self._directory, parts, self._arrays)
        if process.is_alone:
            return self.writer.record
        check_files(self._directory, self._arrays)
        return None

    def _write_documents(self) -> None:
        process = self._options.process
        shardings = self._batch.shardings if process.is_primary else {}
        files.write_arrays(self._directory, process.index, self._batch.arrays, shardings)
        if not process.is_primary:
            return
        files.write_strings(self._directory, self._batch.strings)
        if self._documents is not None:
            files.write_tree(self._directory, *self._documents)


def _finalize(handlers: Sequence[object], directory: Path, database: Manifest | None) -> None:
    """Let handlers finish, then record checksums."""
    for handler in handlers:
        finalize = getattr(handler, "finalize", None)
        if finalize is not None:
            finalize(directory)
    write_manifest(directory, known=database)


def _make_infos(
    plan: SavePlan, directory: Path, options: TreeSaveOptions, batch: SaveBatch
) -> dict[str, ParamInfo]:
    context = handler_context()
    parent, limiter = as_epath(directory), ByteLimiter(options.max_bytes)
    transfer_limiter = ByteLimiter(options.max_transfer_bytes)
    return {
        leaf.name: ParamInfo(
            name=leaf.name,
            parent_dir=parent,
            keypath=leaf.path,
            skip_deserialize=leaf.handler is None,
            byte_limiter=limiter,
            device_host_byte_limiter=transfer_limiter,
            is_ocdbt_checkpoint=options.use_ocdbt,
            ts_context=context,
            use_compression=options.use_compression,
            use_zarr3=options.use_zarr3,
            ocdbt_target_data_file_size=options.data_file_bytes,
            value_typestr=leaf.typestr,
            save_batch=batch,
        )
        for leaf in plan.leaves
    }


def _documents(
    plan: SavePlan, infos: dict[str, ParamInfo], batch: SaveBatch, options: TreeSaveOptions
) -> tuple[TreeDocument, TreeDetails]:
    records = [
        LeafRecord(
            leaf.path,
            leaf.names,
            leaf.name,
            leaf.typestr,
            leaf.handler is None,
            infos[leaf.name].write_shape,
        )
        for leaf in plan.leaves
    ]
    rich_types = None
    if plan.outline is not None:
        rich_types = encode_rich_types(plan.outline, map(encode_value, records))
    document = TreeDocument(
        leaves=records,
        use_ocdbt=options.use_ocdbt,
        use_zarr3=options.use_zarr3,
        custom_metadata=options.custom_metadata,
        rich_types=rich_types,
    )
    return document, TreeDetails(plan.key_kinds, {**plan.details, **batch.details})


def _wait(futures: Sequence[Future]) -> None:
    for future in futures:
        future.result()


def _copied(custom_metadata: object) -> object:
    try:
        return copy_json(custom_metadata)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"custom_metadata must be a JSON value: {error}. Use dicts with keys of str, lists, "
            "strings, numbers, booleans and None."
        ) from error

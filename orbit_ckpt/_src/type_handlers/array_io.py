"""Shared code of array handlers: planning a write, reading host values, casting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

from msgspec import Struct, structs

from orbit_ckpt._src.arrays.dtypes import (
    DType,
    HostArray,
    as_dtype,
    cast_array,
    logical_name,
    stored_dtype,
)
from orbit_ckpt._src.arrays.slices import (
    Shape,
    choose_chunk_shape,
    default_chunk_shape,
    effective_chunk_bytes,
    whole,
)
from orbit_ckpt._src.arrays.transfer import Shard
from orbit_ckpt._src.errors import TreeMismatchError
from orbit_ckpt._src.metadata.schema import LeafDetail
from orbit_ckpt._src.runtime.checks import check_type
from orbit_ckpt._src.storage.chunk_read import ArrayRead
from orbit_ckpt._src.storage.layout import is_process_directory, process_directory
from orbit_ckpt._src.storage.part_write import ArrayWrite
from orbit_ckpt._src.storage.zarr import ZarrArray, describe_array
from orbit_ckpt._src.text import warn_caller
from orbit_ckpt._src.tree.keypath import KeyPath, format_path
from orbit_ckpt._src.type_handlers.base import (
    ParamInfo,
    RestoreArgs,
    SaveArgs,
    load_batch_of,
    logical_dtype,
    save_batch_of,
)
from orbit_ckpt._src.type_handlers.described import layouts_of
from orbit_ckpt._src.type_handlers.transfers import TransferSchedule

T = TypeVar("T")


class ArrayPlacement(Struct, frozen=True, gc=False):
    """Where a handler stores its arrays; by default in the usual place.

    Attributes:
        metadata_key: Name of metadata documents of zarr2; None for the standard one.
        database: Directory of the database; None for that of the process.
    """

    metadata_key: str | None = None
    database: str | None = None


USUAL = ArrayPlacement()
"""The usual place."""


def placement(metadata_key: str | None, ocdbt_process_id: str | None) -> ArrayPlacement:
    """Return where a handler's arrays are stored.

    Raises:
        TypeError: An argument is not a str.
        ValueError: The key could name a chunk, or the id has other characters than letters and
            digits.
    """
    name = "Give the name of a file."
    check_type("metadata_key", metadata_key, str, "a str", name)
    if metadata_key is not None and (not metadata_key.strip("0123456789.") or "/" in metadata_key):
        raise ValueError(
            f"metadata_key={metadata_key!r} could be the name of a chunk or of a directory. {name}"
        )
    check_type("ocdbt_process_id", ocdbt_process_id, str, "a str", "Give letters and digits.")
    database = None if ocdbt_process_id is None else process_directory(ocdbt_process_id)
    if database is not None and not is_process_directory(database):
        raise ValueError(
            f"ocdbt_process_id={ocdbt_process_id!r} must consist of letters and digits, which name "
            "the directory of a database. Give 'host', for example."
        )
    is_usual = metadata_key is None and database is None
    return USUAL if is_usual else ArrayPlacement(metadata_key, database)


def warn_of_metadata_key(at: ArrayPlacement, infos: Sequence[ParamInfo]) -> None:
    """Warn that a save does not use the name of metadata documents that a handler has."""
    if at.metadata_key is not None and infos and infos[0].use_zarr3:
        why = "documents of zarr3 have one name; save with use_zarr3=False"
        warn_caller(f"metadata_key={at.metadata_key!r} does nothing here: {why}.")


def schedule_of(handler: object, infos: Sequence[ParamInfo]) -> TransferSchedule | None:
    """Return the transfers of arrays that are saved without a snapshot of the whole tree.

    Args:
        handler: Their type handler.
        infos: Their leaves, of one save.
    """
    if not infos:
        return None
    limiter = infos[0].device_host_byte_limiter
    is_limited = save_batch_of(infos[0]).copy and getattr(limiter, "max_bytes", None) is not None
    return TransferSchedule.of(handler, infos[0].is_prioritized_key_fn, is_limited=is_limited)


def add_array(  # noqa: PLR0913 - all of one array
    shape: Shape,
    dtype: DType,
    shards: Sequence[Shard],
    info: ParamInfo,
    arg: SaveArgs,
    *,
    leaf_type: str | None = None,
    write_shape: Shape | None = None,
    at: ArrayPlacement = USUAL,
) -> ZarrArray:
    """Add one array to the batch of its save; return its layout.

    Args:
        shape: Shape of the whole array.
        dtype: Its logical dtype.
        shards: The parts that this process writes, of equal shape.
        info: The leaf.
        arg: Options of the leaf.
        leaf_type: See `LeafDetail.type`.
        write_shape: Shape of the parts that all processes write; None for that of `shards`.
        at: Where to store it.
    """
    batch = save_batch_of(info)
    if write_shape is None:
        write_shape = shards[0].region.shape if shards else shape
    # many leaves are alike; options by identity, because they may not be hashable
    key = (shape, dtype, write_shape, id(arg), leaf_type, info.use_zarr3, info.use_compression)
    if at is not USUAL:
        key = (*key, at)
    plan = batch.plans.get(key)
    if not isinstance(plan, ArrayPlan):
        plan = plan_array(shape, dtype, write_shape, info, arg, leaf_type)
        if at.metadata_key is not None and not info.use_zarr3:
            named = structs.replace(plan.layout, metadata_key=at.metadata_key)
            plan = structs.replace(plan, layout=named)
        batch.plans[key] = plan
    if plan.detail is not None:
        batch.details[info.name] = plan.detail
    writer = batch.writer if at.database is None else batch.writer_in(at.database)
    writer.add(
        ArrayWrite(
            info.name,
            plan.layout,
            plan.document,
            shards,
            plan.native,
            info.location,
            has_document=batch.process.is_primary,
        )
    )
    return plan.layout


class ArrayPlan(Struct, frozen=True, gc=False):
    """How arrays of some shape and dtype are stored.

    Attributes:
        layout: The chunks and codecs.
        document: Their zarr metadata.
        native: The dtype that values are cast to.
        detail: Details that Orbax's documents lose.
        arg: The options of the plan, which must live as long as the plan.
    """

    layout: ZarrArray
    document: bytes
    native: DType
    detail: LeafDetail | None
    arg: SaveArgs


def plan_array(
    shape: Shape,
    dtype: DType,
    write_shape: Shape,
    info: ParamInfo,
    arg: SaveArgs,
    leaf_type: str | None,
) -> ArrayPlan:
    """Choose how to store an array.

    Args:
        shape: Its shape.
        dtype: Its dtype.
        write_shape: Shape of the part that one device writes.
        info: Its name, and options of the save.
        arg: The options of the array.
        leaf_type: Type of the leaf to record, None for that of an array.

    Raises:
        TypeError: The dtype cannot be stored.
        ValueError: The options do not fit the array.
    """
    logical = dtype if arg.dtype is None else as_dtype(arg.dtype)
    stored = stored_dtype(logical)
    chunk_shape = _chunk_shape(shape, write_shape, stored.itemsize, info, arg)
    layout, document = describe_array(
        shape,
        chunk_shape,
        stored,
        zarr_format=3 if info.use_zarr3 else 2,
        compress=bool(info.use_compression),
    )
    name = logical_name(logical)
    detail = LeafDetail(leaf_type, name) if leaf_type or name else None
    native = logical.newbyteorder("<") if name else stored
    return ArrayPlan(layout, document, native, detail, arg)


def _chunk_shape(
    shape: Shape, write_shape: Shape, itemsize: int, info: ParamInfo, arg: SaveArgs
) -> Shape:
    """Return the requested chunk shape of an array, else the default one.

    Raises:
        ValueError: The options do not fit the array.
    """
    file_bytes = info.data_file_bytes
    if arg.chunk_byte_size is None and not arg.shard_axes:
        chunk_shape = default_chunk_shape(write_shape, itemsize)
        if not file_bytes or math.prod(chunk_shape) * itemsize <= file_bytes:
            return chunk_shape
    write_nbytes = math.prod(write_shape) * itemsize
    chunk_bytes = arg.chunk_byte_size
    max_bytes = effective_chunk_bytes(write_nbytes, chunk_bytes=chunk_bytes, file_bytes=file_bytes)
    try:
        return choose_chunk_shape(
            shape,
            write_shape,
            itemsize=itemsize,
            max_bytes=max_bytes,
            shard_axes=arg.shard_axes,
        )
    except ValueError as error:
        raise ValueError(f"{info.label}: {error}") from error


def whole_reads(infos: Sequence[ParamInfo]) -> list[ArrayRead]:
    """Return reads of whole arrays."""
    layouts = layouts_of(infos)
    distinct = {id(layout): layout for layout in layouts}  # few: most arrays are alike
    regions = {key: (whole(layout.shape),) for key, layout in distinct.items()}
    return [
        ArrayRead(info.location, info.name, layout, regions[id(layout)])
        for info, layout in zip(infos, layouts, strict=True)
    ]


async def read_each(
    infos: Sequence[ParamInfo],
    args: Sequence[RestoreArgs] | None,
    convert: Callable[[HostArray, ParamInfo, RestoreArgs], T],
) -> list[T]:
    """Read whole arrays; convert each.

    `convert` runs as soon as an array has been read, so that whatever it does not keep is freed
    before the next arrays are read.

    Args:
        infos: The leaves.
        args: How each is restored, None for as saved.
        convert: Takes an array of its logical dtype, owned by it alone, and its leaf.
    """
    if not infos:
        return []
    batch = load_batch_of(infos[0])
    reads = whole_reads(infos)
    wanted = default_restore_args(infos, args)
    is_dropped = _are_cast(infos, wanted, reads)
    results: list[T] = []
    async with aclosing(batch.reader.read_in_windows(reads, is_dropped)) as windows:
        async for window in windows:
            window.reverse()
            while window:  # free the data of each array before the next is made
                info, arg = infos[len(results)], wanted[len(results)]
                (host,) = window.pop()
                logical = logical_dtype(info, host.dtype) if batch.details else host.dtype
                values = host if logical == host.dtype else host.view(logical)
                results.append(convert(values, info, arg))
                del host, values
    return results


def _are_cast(
    infos: Sequence[ParamInfo], args: Sequence[RestoreArgs], reads: Sequence[ArrayRead]
) -> list[bool]:
    """Return for each array whether its values are cast."""
    if all(arg.dtype is None for arg in {id(arg): arg for arg in args}.values()):
        return [False] * len(reads)
    details = load_batch_of(infos[0]).details
    known: dict[tuple[int, int, str | None], bool] = {}  # most arrays share dtypes
    found: list[bool] = []
    for info, arg, read in zip(infos, args, reads, strict=True):
        key = id(arg), id(read.layout), info.name if details and info.name in details else None
        is_cast = known.get(key)
        if is_cast is None:
            logical = logical_dtype(info, read.layout.dtype)
            known[key] = is_cast = arg.dtype is not None and as_dtype(arg.dtype) != logical
        found.append(is_cast)
    return found


def cast_host(host: HostArray, dtype_like: object, path: KeyPath) -> HostArray:
    """Cast an array; return it unchanged if it already has the dtype.

    Raises:
        TreeMismatchError: Numbers do not fit an integer dtype; they would become other numbers.
    """
    if dtype_like is None:
        return host
    try:
        return cast_array(host, dtype_like)
    except ValueError as error:
        raise TreeMismatchError(
            f"{format_path(path)}: {error}; restore it as a wider dtype.",
            paths=[format_path(path)],
        ) from error


def default_save_args(
    infos: Sequence[ParamInfo], args: Sequence[SaveArgs] | None
) -> Sequence[SaveArgs]:
    """Return one `SaveArgs` per leaf."""
    return [SaveArgs()] * len(infos) if args is None else args


def default_restore_args(
    infos: Sequence[ParamInfo], args: Sequence[RestoreArgs] | None
) -> Sequence[RestoreArgs]:
    """Return one `RestoreArgs` per leaf."""
    return [RestoreArgs()] * len(infos) if args is None else args

"""Write parts of arrays in the workers of an executor, each into data files of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from msgspec import Struct, structs

from orbit_ckpt._src.arrays.transfer import DeferredData, Shard, SharedData
from orbit_ckpt._src.runtime.jobs import Kept, run_units
from orbit_ckpt._src.storage.layout import Value
from orbit_ckpt._src.storage.located import is_shared, own_path
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt._src.storage.part_write import ArrayPart, write_parts
from orbit_ckpt._src.storage.value_write import DatabaseWriter

_Group = tuple[Sequence[ArrayPart], int]


class WriteUnit(Struct, frozen=True):
    """Parts of arrays that one worker writes.

    Attributes:
        directory: Root of the database.
        data_file_bytes: See `DatabaseWriter`.
        chunks_have_checksums: Whether stored chunks end in their own checksum.
        parts: The parts; each shard is the part itself.
        max_bytes: Approximate bytes to hold at once.
    """

    directory: Path
    data_file_bytes: int | None
    chunks_have_checksums: bool
    parts: Sequence[ArrayPart]
    max_bytes: int


class WrittenValues(Struct, frozen=True):
    """What a worker has written.

    Attributes:
        values: The values, or their places.
        record: Records of its data files.
    """

    values: Mapping[str, Value]
    record: Manifest


def write_unit(unit: WriteUnit) -> WrittenValues:
    """Write parts of arrays into new data files; they are durable when this returns."""
    writer = DatabaseWriter(
        unit.directory,
        data_file_bytes=unit.data_file_bytes,
        values_have_checksums=unit.chunks_have_checksums,
    )
    try:
        write_parts(unit.parts, writer, unit.max_bytes, threading.Event(), None)
        return WrittenValues(*writer.detach())
    except BaseException:
        writer.abort()
        raise


async def write_there(
    groups: Iterable[_Group],
    writer: DatabaseWriter,
    unit: WriteUnit,
    executor: Executor,
    *,
    here: Callable[[Sequence[ArrayPart], int], Coroutine[object, object, None]],
    finished: Callable[[Sequence[ArrayPart]], object],
) -> None:
    """Write groups of parts in workers, and here what only this process can read.

    Workers whose results were lost leave data files behind; see `remove_other_files`.

    Args:
        groups: The groups, with their bytes.
        writer: The writer of the database.
        unit: A unit without parts.
        executor: Runs the workers.
        here: Writes a group in this process.
        finished: Called with the parts of each unit that a worker has written.
    """
    sent: dict[int, Sequence[ArrayPart]] = {}

    def units() -> Iterator[WriteUnit | Kept[_Group]]:
        for parts, nbytes in groups:
            moved = list(map(_for_worker, parts)) if is_shared(unit.directory) else [None]
            ready = [part for part in moved if part is not None]
            if len(ready) < len(moved):
                yield Kept((parts, nbytes))
                continue
            found = structs.replace(unit, parts=ready)
            sent[id(found.parts)] = parts
            yield found

    async def write_here(group: _Group) -> WrittenValues:
        await here(*group)
        return WrittenValues({}, Manifest())

    def done(one: WriteUnit, _: WrittenValues) -> None:
        parts = sent.pop(id(one.parts))
        for part in parts:
            shared = _shared(part)
            if shared is not None:
                shared.advance(part.nbytes)
        finished(parts)

    for result in await run_units(executor, write_unit, units(), here=write_here, finished=done):
        if result.values:
            writer.refer(result.values, result.record)


def _shared(part: ArrayPart) -> SharedData | None:
    data = part.shard.data
    return data.shared if isinstance(data, DeferredData) else None


def _for_worker(part: ArrayPart) -> ArrayPart | None:
    """Return a part with data that another process can read, None if there are none."""
    shared = _shared(part)
    data = None if shared is None else shared.locate(part.region.within(part.shard.region))
    if data is None:
        return None
    write = structs.replace(part.write, shards=(), path=own_path(part.write.path))
    return structs.replace(part, write=write, shard=Shard(part.region, data))

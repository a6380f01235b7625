"""Leave out what a save need not write: what the base step holds, and arrays that are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from orbit_ckpt._src.storage.incremental import IncrementalWrite
from orbit_ckpt._src.storage.part_write import ArrayWrite
from orbit_ckpt._src.storage.value_write import DatabaseWriter


def without_known(write: ArrayWrite, incremental: IncrementalWrite) -> ArrayWrite:
    """Return an array without its data if the base step is known to hold all of them."""
    is_known = bool(write.shards) and all(shard.unchanged for shard in write.shards)
    if is_known and incremental.has_chunks(write.name, write.layout, write.document, write.chunks):
        return structs.replace(write, shards=())
    return write


class TiedArray(Struct, frozen=True, gc=False):
    """An array that is stored as part of another one of the same values and layout.

    Attributes:
        write: The array.
        first: Storage name of the other one.
    """

    write: ArrayWrite
    first: str


def without_tied(
    writes: Sequence[ArrayWrite], tied: Mapping[str, str]
) -> tuple[list[ArrayWrite], list[TiedArray]]:
    """Return the arrays to write, and those that are stored as others of them."""
    by_name = {write.name: write for write in writes}
    pending: list[ArrayWrite] = []
    found: list[TiedArray] = []
    for write in writes:
        first = by_name.get(tied.get(write.name, ""))
        if first is not None and _are_alike(first, write):
            found.append(TiedArray(write, first.name))
            pending.append(structs.replace(write, shards=()))  # its document is written
        else:
            pending.append(write)
    return pending, found


def _are_alike(first: ArrayWrite, write: ArrayWrite) -> bool:
    """Return whether this process stores the same chunks of two arrays in the same way."""
    if (first.layout, first.dtype) != (write.layout, write.dtype):
        return False
    return [shard.region for shard in first.shards] == [shard.region for shard in write.shards]


def write_tied(
    tied: Sequence[TiedArray], writer: DatabaseWriter, incremental: IncrementalWrite | None
) -> None:
    """Add the chunks of tied arrays to the index, at the places of those that were written."""
    for array in tied:
        layout, name = array.write.layout, array.write.name
        for index in array.write.chunks:
            key, of = layout.chunk_key(name, index), layout.chunk_key(array.first, index)
            writer.copy_entry(key, of)
            if incremental is not None:
                incremental.copy_digest(key, of)

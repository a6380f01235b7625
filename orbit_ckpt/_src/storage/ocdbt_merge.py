"""Merge the OCDBT databases of several processes into one.

Only the B+tree is new: values stay in the data files of the databases that are merged, unless they
are small enough for its nodes. The keys of all databases interleave, because every process holds
chunks of every array. So the keys are divided into ranges. Any process can merge one of them: it
reads the indices of all databases, sorts the entries in its range and writes the leaf nodes of
these. The primary process writes the nodes above all leaves, and the manifest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec.msgpack
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.crc32c import crc32c
from orbit_ckpt._src.storage.durable import write_file
from orbit_ckpt._src.storage.layout import (
    MERGED_RANGE,
    OCDBT_DATA,
    OCDBT_MANIFEST,
    PART_INDEX,
    Extent,
)
from orbit_ckpt._src.storage.manifest import (
    DatabaseRecord,
    FileRecord,
    Manifest,
    damaged_file,
    index_checksum,
)
from orbit_ckpt._src.storage.ocdbt import disagreement, keys_of
from orbit_ckpt._src.storage.ocdbt_columns import Entries, PackedEntries, join_entries
from orbit_ckpt._src.storage.ocdbt_encode import (
    MAX_NODE_BYTES,
    PLACE_BYTES,
    NodeReference,
    encode_manifest,
    write_interior,
)
from orbit_ckpt._src.storage.ocdbt_expected import ExpectedKeys
from orbit_ckpt._src.storage.ocdbt_part import PartRange, read_part
from orbit_ckpt._src.storage.store_path import StorePath, map_paths
from orbit_ckpt._src.storage.zarr import ZarrArray


class MergedRange(Struct, frozen=True):
    """What one process has merged.

    Attributes:
        nodes: The leaf nodes that it has written.
        tails: Their checksums, the last four bytes of each.
        checksums: Those of the values in data files, as in `DatabaseRecord`.
        has_checksums: Whether they are known.
        files: Records of files of some of the databases, or of its own.
        sizes: Sizes of such files without a record.
    """

    nodes: Sequence[NodeReference]
    tails: Sequence[bytes]
    checksums: bytes
    has_checksums: bool
    files: Mapping[str, FileRecord]
    sizes: Mapping[str, int]

    @property
    def record(self) -> Manifest:
        """The records of the files."""
        return Manifest(self.files, database=DatabaseRecord(0, b"", self.sizes))


class DatabaseMerge:
    """The merge of databases into a new one at the root of them."""

    def __init__(
        self, directory: Path, parts: Sequence[str], arrays: Iterable[tuple[str, ZarrArray]]
    ) -> None:
        """Prepare a merge.

        Args:
            directory: Its root.
            parts: Directories below it with the other databases.
            arrays: Names and layouts of the arrays that it must hold.
        """
        self._directory = directory
        self._parts = parts
        self._arrays = list(arrays)
        self._expected = ExpectedKeys(self._arrays)

    def ranges(self, processes: int) -> list[bytes]:
        """Return the first keys of all ranges but the first; see `ExpectedKeys.ranges`."""
        return self._expected.ranges(processes)

    def merge(self, starts: Sequence[bytes], number: int) -> MergedRange:
        """Write the leaf nodes of a range.

        Args:
            starts: The first keys of all ranges but the first.
            number: The range, from 0.

        Raises:
            StorageError: A key in the range is in two of the databases, or in none.
            CorruptionError: A database is damaged.
        """
        first_files: list[int] = []
        files: list[str] = []
        records: list[Manifest] = []
        packed: list[PackedEntries] = []
        has_checksums = True
        for index, part in enumerate(self._read(starts, number)):
            first_files.append(len(files))
            files += part.files
            packed.append(part.entries)
            has_checksums = has_checksums and part.has_checksums
            if index % (len(starts) + 1) == number:  # each is recorded once
                records.append(part.record)
        entries = join_entries(packed, first_files)
        packed.clear()
        entries = entries.rows(entries.keys.order())
        self._check(entries, [b"", *starts][number], [*starts, None][number])
        return self._write(entries, files, records, has_checksums=has_checksums)

    def write_range(self, merged: MergedRange, number: int) -> None:
        """Leave a merged range to the process that finishes."""
        data = msgspec.msgpack.encode(merged)
        write_file(self._range_file(number), data + crc32c(data).to_bytes(4, "little"))

    def read_range(self, number: int) -> MergedRange:
        """Return a range that another process has merged, and remove its file.

        Raises:
            CorruptionError: The file is damaged.
        """
        file = self._range_file(number)
        data = file.read_bytes()
        file.unlink()
        if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise damaged_file(file, "its checksum does not match")
        return msgspec.msgpack.decode(data[:-4], type=MergedRange)

    def _range_file(self, number: int) -> Path:
        return self._directory / f"{MERGED_RANGE}{number}"

    def finish(self, ranges: Sequence[MergedRange]) -> Manifest:
        """Complete the database; return its record for the manifest.

        What `write_part` has written is removed. Databases of other writers have none of it; data
        files are then recorded as a whole.

        Args:
            ranges: All ranges, in order.
        """
        has_checksums = all(merged.has_checksums for merged in ranges)
        nodes = [node for merged in ranges for node in merged.nodes]
        tails = [tail for merged in ranges for tail in merged.tails]
        above = _NodeFile(self._directory)
        root = write_interior(nodes, above.append) if nodes else None
        above.write()
        records = [merged.record for merged in ranges]
        records.append(above.record(has_checksums=has_checksums))
        manifest = encode_manifest(root, uuid=os.urandom(16), commit_time_ns=time.time_ns())
        write_file(self._directory / OCDBT_MANIFEST, manifest)
        joined, sizes = _joined(records)
        own = FileRecord.of_contents(manifest)
        values = b"".join(merged.checksums for merged in ranges) if has_checksums else b""
        self._remove_indices()
        return Manifest(
            {**joined, OCDBT_MANIFEST: own},
            tuple(sorted(sizes)),
            database=DatabaseRecord(index_checksum([*tails, *above.tails]), values, sizes),
        )

    def _remove_indices(self) -> None:
        def remove(part: str) -> None:
            (self._directory / part / PART_INDEX).unlink(missing_ok=True)

        map_paths(remove, self._parts, root=self._directory)

    def _read(self, starts: Sequence[bytes], number: int) -> Sequence[PartRange]:
        """Return what the databases have in a range."""

        def read(part: str) -> PartRange:
            return read_part(self._directory, part, starts, number)

        return map_paths(read, self._parts, root=self._directory)

    def _check(self, entries: Entries, start: bytes, stop: bytes | None) -> None:
        """Check that every key of the arrays exists once.

        Raises:
            StorageError: One does not.
        """
        repeated = entries.repeated()
        if repeated.any():
            part = int(entries.parts[repeated].min())
            rows = np.flatnonzero(repeated & (entries.parts == part))
            raise disagreement(
                self._directory,
                f"also in {self._parts[part]}",
                map(_text, entries.keys.to_list(rows)),
            )
        if self._expected.are_in(entries.keys, start, stop):
            return
        expected = {key for key in keys_of(self._arrays) if _is_in(key.encode(), start, stop)}
        missing = expected - set(map(_text, entries.keys.to_list()))
        if missing:
            raise disagreement(self._directory, "written by no process", missing)

    def _write(
        self,
        entries: Entries,
        files: Sequence[str],
        records: Sequence[Manifest],
        *,
        has_checksums: bool,
    ) -> MergedRange:
        """Write the leaf nodes of sorted entries."""
        is_indirect = entries.is_indirect
        sizes = entries.keys.lengths + np.where(is_indirect, PLACE_BYTES, entries.nbytes)
        number = np.cumsum(sizes) // MAX_NODE_BYTES
        starts = np.flatnonzero(np.diff(number, prepend=-1))
        file = _NodeFile(self._directory)
        nodes: list[NodeReference] = []
        for first, end in pairwise([*starts.tolist(), len(entries)]):
            some = entries.rows(slice(first, end))
            place = file.append(some.encode(files))
            indirect = int(some.nbytes[some.is_indirect].sum())
            nodes.append(NodeReference(place, 0, some.keys[0], len(some), place.length, indirect))
        file.write()
        return MergedRange(
            nodes,
            file.tails,
            entries.checksums[is_indirect].astype("<u4").tobytes(),
            has_checksums,
            *_joined([*records, file.record(has_checksums=has_checksums)]),
        )


class _NodeFile:
    """A new data file of nodes, written at once; there is none without a node."""

    def __init__(self, directory: Path) -> None:
        self.tails: list[bytes] = []
        self._directory = directory
        self._name = f"{OCDBT_DATA}/{os.urandom(16).hex()}"
        self._nodes: list[bytes] = []
        self._nbytes = 0

    def append(self, node: bytes) -> Extent:
        place = Extent(self._name, self._nbytes, len(node))
        self._nodes.append(node)
        self.tails.append(node[-4:])
        self._nbytes += len(node)
        return place

    def write(self) -> None:
        if not self._nodes:
            return
        if not isinstance(self._directory, StorePath):
            (self._directory / OCDBT_DATA).mkdir(exist_ok=True)
        write_file(self._directory / self._name, b"".join(self._nodes))

    def record(self, *, has_checksums: bool) -> Manifest:
        """Return its record: its size if the values have checksums of their own."""
        if not self._nodes:
            return Manifest()
        if has_checksums:
            return Manifest(database=DatabaseRecord(0, b"", {self._name: self._nbytes}))
        data = b"".join(self._nodes)
        return Manifest({self._name: FileRecord.of_contents(data)})


def merge_databases(
    directory: Path, parts: Sequence[str], arrays: Iterable[tuple[str, ZarrArray]]
) -> Manifest:
    """Merge databases into a new one by one process; return its record for the manifest.

    Args:
        directory: Its root.
        parts: Directories below it with the other databases.
        arrays: Names and layouts of the arrays that it must hold.

    Raises:
        StorageError: A value is in two of the databases, or in none.
        CorruptionError: A database is damaged.
    """
    merge = DatabaseMerge(directory, parts, arrays)
    starts = merge.ranges(len(parts))
    return merge.finish([merge.merge(starts, number) for number in range(len(starts) + 1)])


def _joined(records: Iterable[Manifest]) -> tuple[dict[str, FileRecord], dict[str, int]]:
    """Return the records of all files, and the sizes of data files without one."""
    files: dict[str, FileRecord] = {}
    sizes: dict[str, int] = {}
    for record in records:
        files.update(record.files)
        sizes.update(record.database.files if record.database else {})
    return files, sizes


def _is_in(key: bytes, start: bytes, stop: bytes | None) -> bool:
    return start <= key and (stop is None or key < stop)


def _text(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")

"""The merge of what all processes have written of one tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec.msgpack
from msgspec import Struct
from typing_extensions import override

from orbit_ckpt._src.metadata.array_records import ArrayRecord
from orbit_ckpt._src.metadata.files import arrays_file
from orbit_ckpt._src.pytree.save.agreement import check_agreement
from orbit_ckpt._src.pytree.save.options import TreeSaveOptions
from orbit_ckpt._src.runtime.joint import Assignment, JointWork
from orbit_ckpt._src.storage.batch_write import BatchWriter
from orbit_ckpt._src.storage.manifest import FileRecord, Manifest
from orbit_ckpt._src.storage.ocdbt import databases_below
from orbit_ckpt._src.storage.ocdbt_expected import ExpectedKeys
from orbit_ckpt._src.storage.ocdbt_merge import DatabaseMerge
from orbit_ckpt._src.storage.ocdbt_part import write_part
from orbit_ckpt._src.storage.part_digests import join_digests, write_digests
from orbit_ckpt._src.storage.zarr import ZarrArray


class _Report(Struct, frozen=True, array_like=True):
    """What one process reports.

    Attributes:
        digest: Digest of its records of arrays.
        record: The record of the file with them, None if there is none.
    """

    digest: bytes
    record: FileRecord | None


class TreeMerge(JointWork):
    """The part of one process in it."""

    def __init__(self, directory: Path, options: TreeSaveOptions) -> None:
        """Prepare it, before anything is written.

        Args:
            directory: The directory of the tree.
            options: How it is saved.
        """
        self._directory = directory
        self._options = options
        self._arrays: Sequence[tuple[str, ZarrArray]] = ()
        self._report = _Report(b"", None)
        self._reports: list[_Report] = []
        self._starts: list[bytes] = []
        self._is_shared = False

    def write_parts(
        self,
        writers: Mapping[str, BatchWriter],
        arrays: Sequence[tuple[str, ZarrArray]],
        records: Sequence[ArrayRecord],
    ) -> None:
        """Write what the processes that merge the databases of this one need of them.

        Args:
            writers: The writers of its databases, by directory.
            arrays: Names and layouts of all arrays.
            records: Their records, by which those that only the primary process writes are known.
        """
        self._arrays = arrays
        shared = {record.name for record in records if record.dtype}
        of_all = ExpectedKeys(array for array in arrays if array[0] in shared)
        # the same on all processes, which thus divide what they leave in the same way
        self._starts = starts = of_all.ranges(self._options.process.count)
        for part, writer in writers.items():
            if writer.record is not None:
                write_part(self._directory / part, writer.record, writer.values, starts)

    def note_records(self, document: bytes | None) -> None:
        """Note the document with the records of this process's arrays, None if there is none."""
        data = document or b""
        record = FileRecord.of_contents(data) if data else None
        self._report = _Report(blake2b(data, digest_size=16).digest(), record)

    @override
    def report(self) -> bytes:
        return msgspec.msgpack.encode(self._report)

    @override
    def assign(self, reports: Sequence[bytes]) -> Assignment:
        self._reports = [msgspec.msgpack.decode(data, type=_Report) for data in reports]
        process, options = self._options.process, self._options
        if not options.has_parts or options.has_other_writers or options.has_own_databases:
            return Assignment()
        self._check()
        shares = len(self._starts) + 1
        if shares == 1:
            return Assignment()
        self._is_shared = True
        # the primary process has enough to do if there are others
        others = [i for i in range(process.count) if i != process.primary]
        step = max(1, len(others) // shares)
        workers = others[::step][:shares]
        return Assignment(msgspec.msgpack.encode(self._starts), workers)

    @override
    def work(self, assignment: Assignment, share: int) -> None:
        starts = msgspec.msgpack.decode(assignment.data, type=list[bytes])
        merge = self._merge(self._options.parts)
        for number in range(share, len(starts) + 1, len(assignment.workers)):
            merge.write_range(merge.merge(starts, number), number)

    def finish(self) -> Manifest:
        """Complete the database; return its record, with that of the files of all processes.

        Raises:
            StorageError: The processes have not written the same arrays, or not every part once.
        """
        options, directory = self._options, self._directory
        parts = options.parts
        if options.has_other_writers or options.has_own_databases:
            parts += [part for part in databases_below(directory) if part not in parts]
        digests = join_digests(directory, parts) if options.base is not None else None
        merge = self._merge(parts)
        if self._is_shared:
            ranges = [merge.read_range(i) for i in range(len(self._starts) + 1)]
        else:
            ranges = [merge.merge(self._starts, i) for i in range(len(self._starts) + 1)]
        merged = merge.finish(ranges)
        if digests is not None:
            write_digests(directory, merged, digests)
        return msgspec.structs.replace(merged, files={**merged.files, **self._records()})

    def check(self) -> None:
        """Compare the records of all processes, unless that has been done.

        Raises:
            StorageError: They have not saved the same arrays.
        """
        if not self._is_shared:
            self._check()

    def _check(self) -> None:
        if not self._reports or len({report.digest for report in self._reports}) > 1:
            check_agreement(self._directory, self._options.process.count)

    def _records(self) -> dict[str, FileRecord]:
        """Return the records of the documents with the records of arrays."""
        return {
            arrays_file(index): report.record
            for index, report in enumerate(self._reports)
            if report.record is not None
        }

    def _merge(self, parts: Sequence[str]) -> DatabaseMerge:
        return DatabaseMerge(self._directory, parts, self._arrays)

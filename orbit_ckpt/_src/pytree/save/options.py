"""How a tree is saved."""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Protocol

from msgspec import Struct

from orbit_ckpt._src.arrays.unchanged import KnownArrays
from orbit_ckpt._src.metadata.array_records import ArrayRecord
from orbit_ckpt._src.runtime.process import Process
from orbit_ckpt._src.storage.incremental import Base
from orbit_ckpt._src.storage.layout import process_directory
from orbit_ckpt._src.type_handlers.transfers import PriorityFunction


class RecordsValidator(Protocol):
    """Checks the records of arrays of all processes, as Orbax's `Validator` does."""

    def validate_all_array_metadatas(self, array_metadatas: dict[int, list[ArrayRecord]]) -> None:
        """Raise an error if the records, by process, do not fit together."""
        ...


class StagingOptions(Struct, frozen=True):
    """How the leaves of a tree are copied, and what checks their records.

    Attributes:
        key_priority: Returns the `TransferPriority` of a leaf, None for all synchronous.
        pinned_host: Passed to third-party type handlers: whether to copy through pinned memory.
        validator: Called with the records of all processes before the checkpoint is complete.
    """

    key_priority: PriorityFunction | None = None
    pinned_host: bool = False
    validator: RecordsValidator | None = None


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
        has_own_databases: Whether some type handlers have databases besides those of processes.
        staging: How leaves are copied, and what checks their records.
        base: The tree of an earlier step that an incremental save refers to; None for others.
        executor: Where stored arrays are written; None for threads of this process.
        known: The arrays that the last incremental save has stored, and what it notes its own in.
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
    has_own_databases: bool = False
    staging: StagingOptions = StagingOptions()
    base: Base | None = None
    executor: Executor | None = None
    known: KnownArrays | None = None

    @property
    def has_parts(self) -> bool:
        """Whether databases are written in parts, which are merged."""
        has_more = self.has_other_writers or self.has_own_databases
        return self.use_ocdbt and (has_more or not self.process.is_alone)

    @property
    def parts(self) -> list[str]:
        """Directories of the databases of all processes, in which no handler writes itself."""
        writer = "orbit" if self.has_other_writers else ""
        return [process_directory(i, writer=writer) for i in range(self.process.count)]

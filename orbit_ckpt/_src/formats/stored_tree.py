"""A tree of any format, seen as a document of its leaves and a store of zarr arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct, field

from orbit_ckpt._src.arrays.recorded_sharding import ShardingMetadata
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.metadata.array_records import ArrayRecord
from orbit_ckpt._src.metadata.schema import (
    EMPTY_TYPES,
    UNKNOWN_TYPE,
    LeafRecord,
    TreeDetails,
    TreeDocument,
)
from orbit_ckpt._src.storage.array_layouts import ArrayLayouts
from orbit_ckpt._src.storage.fingerprint import OpenedDirectory
from orbit_ckpt._src.storage.foreign import ForeignArray, ForeignStore
from orbit_ckpt._src.storage.kvstore import ValueStore
from orbit_ckpt._src.storage.layout import TREE_METADATA
from orbit_ckpt._src.tree.keypath import DictKey, NamePath, format_path
from orbit_ckpt._src.type_handlers.base import LoadBatch

if TYPE_CHECKING:
    from orbit_ckpt._src.arrays.sharding import ShardingResolver
    from orbit_ckpt._src.storage.array_checksums import ArrayChecksum
    from orbit_ckpt._src.storage.batch_read import BatchReader


NamesT = TypeVar("NamesT", bound=str | tuple[str, ...])


class TreeParts(Struct, frozen=True):
    """The parts of a tree besides its document; foreign formats have a store only.

    Attributes:
        store: The store of the arrays.
        arrays: Records of JAX arrays by storage name, where they add to the rest.
        decode_shardings: Returns their recorded shardings.
        strings: Contents of the strings file.
        sums: Checksums of whole arrays by storage name, in formats that have them.
    """

    store: ValueStore
    arrays: Mapping[str, ArrayRecord] = field(default_factory=dict[str, ArrayRecord])
    decode_shardings: Callable[[], Mapping[str, ShardingMetadata]] = dict[str, ShardingMetadata]
    strings: Mapping[str, object] = field(default_factory=dict[str, object])
    sums: Mapping[str, ArrayChecksum] = field(default_factory=dict[str, "ArrayChecksum"])


class StoredTree(Struct, frozen=True):
    """A tree in a checkpoint of any format, opened for reading.

    Attributes:
        path: The directory or file that it is in.
        document: Its leaves.
        open_parts: Returns how its arrays are read; called once for every restore. May raise
            CorruptionError and FormatError.
        details: What the document loses of them.
        inline: Values that are not read through the store, by storage name.
        fingerprint_file: The file that tells this tree from one that is put in its place; None for
            one of those that every save of our own format writes.
        has_checksums: Whether its store compares all arrays with checksums of its own.
        is_inferred: Whether nothing records its structure, so that empty containers, the kinds of
            containers and the types of leaves are not known.
        read_whole: Returns the tree with all values, where that is all that can be done with it.
        unbound: Documents that nothing binds to the arrays, so that those of another checkpoint
            could be in their place.
        mixed: What shows that files of several checkpoints are mixed, None if nothing does.
    """

    path: Path
    document: TreeDocument
    open_parts: Callable[[], TreeParts]
    details: TreeDetails = field(default_factory=TreeDetails)
    inline: Mapping[str, object] = field(default_factory=dict[str, object])
    fingerprint_file: Path | None = None
    has_checksums: bool = False
    is_inferred: bool = False
    read_whole: Callable[[], object] | None = None
    unbound: Sequence[Path] = ()
    mixed: str | None = None

    @property
    def loss(self) -> str | None:
        """Description of what is lost if the structure is not recorded, else None."""
        if not self.is_inferred:
            return None
        return (
            f"{self.path}: there is no {TREE_METADATA}, so that the structure of the tree was "
            "inferred from the names of its arrays and strings. Empty dicts and lists and None, if "
            "it had any, are missing; lists and tuples are dicts, and scalars are arrays. Give a "
            "target (like=, item=) that has the saved structure."
        )

    @contextlib.contextmanager
    def unchanged(self) -> Generator[None]:
        """Ensure that a `with` block reads this tree, where no checksum proves it.

        Raises:
            CheckpointNotFoundError: `fingerprint_file` was deleted, moved or replaced.
        """
        if self.fingerprint_file is None:
            yield
            return
        with OpenedDirectory.now(self.path, self.fingerprint_file).reading("the tree"):
            yield

    def load_batch(
        self,
        *,
        max_bytes: int | None = None,
        resolver: ShardingResolver | None = None,
        share_reads: bool = False,
    ) -> LoadBatch:
        """Return what type handlers need to read leaves; for the arguments see `LoadBatch`.

        Raises:
            CorruptionError: The database or a document is damaged.
            FormatError: A document is not understood.
        """
        parts = self.open_parts()
        zarr_format = 3 if self.document.use_zarr3 else 2
        layouts = ArrayLayouts(parts.store, zarr_format=zarr_format)

        def open_reader() -> BatchReader:
            from orbit_ckpt._src.storage.batch_read import BatchReader  # noqa: PLC0415 - imports asyncio

            return BatchReader(
                parts.store,
                zarr_format=zarr_format,
                max_bytes=max_bytes,
                fill_missing=not self.document.stores_fill_values,
                sums=parts.sums,
                layouts=layouts,
            )

        return LoadBatch(
            layouts=layouts,
            open_reader=open_reader,
            arrays=parts.arrays,
            decode_shardings=parts.decode_shardings,
            details=self.details.leaves,
            strings=parts.strings,
            given_resolver=resolver,
            share_reads=share_reads,
        )


def empty_typestr(value: object) -> str:
    """Return what documents call an empty container."""
    kinds = {name for name, empty in EMPTY_TYPES.items() if type(empty) is type(value)}
    return kinds.pop() if kinds else "None"


def stored_tree(
    path: Path,
    arrays: Mapping[NamesT, ForeignArray],
    *,
    files: Sequence[Path] = (),
    metadata: object = None,
) -> StoredTree:
    """Return a tree of arrays of another program, for `Format.open`.

    Args:
        path: What was opened.
        arrays: The arrays by name. A tuple of names gives nested dicts; a string is one key.
        files: Files that determine where the arrays are; if one changes later, reading is an error.
        metadata: Metadata of the tree, any JSON value; `metadata(path).custom_metadata`.

    Raises:
        FormatError: Two names have the same storage name, or one is a leaf and a container.
    """
    at: dict[NamePath, ForeignArray] = {
        (names,) if isinstance(names, str) else names: array for names, array in arrays.items()
    }
    records = [LeafRecord.at(tuple(map(DictKey, names)), UNKNOWN_TYPE) for names in sorted(at)]
    by_name = {record.name: at[record.names] for record in records}
    containers = {record.names[:end] for record in records for end in range(len(record.names))}
    broken = [record.names for record in records if record.names in containers]
    if len(by_name) != len(records) or broken:
        where = ", ".join(map(format_path, broken)) or "names joined by dots"
        raise FormatError(f"{path}: names of arrays do not make a tree: {where}.")
    return StoredTree(
        path,
        TreeDocument(records, custom_metadata=metadata),
        lambda: TreeParts(ForeignStore(by_name, list(files))),
        fingerprint_file=next(iter(files), None),
    )

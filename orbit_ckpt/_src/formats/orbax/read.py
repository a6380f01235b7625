"""Open a checkpoint in Orbax's format, written by this library or any Orbax since 0.2.

Releases before `_METADATA` recorded structures in msgpack files and in names of directories.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orbit_ckpt._src.errors import CheckpointNotFoundError, FormatError
from orbit_ckpt._src.formats.stored_tree import StoredTree, TreeParts, empty_typestr
from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.metadata import files
from orbit_ckpt._src.metadata.schema import (
    JAX_ARRAY,
    STRING,
    UNKNOWN_TYPE,
    LeafRecord,
    TreeDocument,
)
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import CheckedDirectory, open_checked
from orbit_ckpt._src.storage.kvstore import open_store
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    TREE_DETAILS,
    TREE_METADATA,
    ZARR2_DOCUMENT,
    ZARR3_DOCUMENT,
)
from orbit_ckpt._src.storage.ocdbt import is_ocdbt, read_index
from orbit_ckpt._src.storage.path import describe_directory
from orbit_ckpt._src.tree.build import is_empty_container, leaves_of
from orbit_ckpt._src.tree.keypath import KeyPath, make_key
from orbit_ckpt._src.type_handlers.base import LoadBatch

_DOCUMENTS = (ZARR2_DOCUMENT, ZARR3_DOCUMENT)
_STORED_ELSEWHERE = ("PLACEHOLDER://", "AGGREGATED://")


_ARRAY_ITEM = ("checkpoint",)


class LegacyTree(Struct, frozen=True):
    """A structure from another source than `_METADATA`.

    Attributes:
        leaves: The leaves; one with an inline value is not stored elsewhere.
        inline: Values found in the structure itself, by storage name.
        use_zarr3: Whether the arrays are zarr3.
    """

    leaves: Sequence[LeafRecord]
    inline: Mapping[str, object]
    use_zarr3: bool = False

    def merge_into(self, document: TreeDocument | None) -> TreeDocument:
        """Add the leaves that only the structure records to a document.

        For leaves of both, the document counts. An inline value takes precedence over stored data,
        because writers that aggregated values did not store them in another way.
        """
        if document is None:
            return TreeDocument(self.leaves, use_zarr3=self.use_zarr3, stores_fill_values=False)
        known = {leaf.name for leaf in document.leaves}
        added = [leaf for leaf in self.leaves if leaf.name not in known]
        return replace(document, leaves=[*document.leaves, *added]) if added else document


def read_aggregate(data: bytes, where: str) -> LegacyTree:
    """Return the structure in a msgpack file.

    Raises:
        FormatError: It is not msgpack, or holds something that Orbax never wrote.
    """
    from orbit_ckpt._src.formats.flax_msgpack.scan import scan_bytes  # noqa: PLC0415 - for old ones only

    tree = scan_bytes(data, f"{where}: not an aggregate file of Orbax")
    leaves: list[LeafRecord] = []
    inline: dict[str, object] = {}
    for path, value in leaves_of(tree):
        if isinstance(value, str) and value.startswith(_STORED_ELSEWHERE):
            leaves.append(LeafRecord.at(path, UNKNOWN_TYPE))
        elif is_empty_container(value):
            leaves.append(LeafRecord.at(path, empty_typestr(value), is_empty=True))
        else:
            record = LeafRecord.at(path, UNKNOWN_TYPE)
            leaves.append(record)
            inline[record.name] = value
    return LegacyTree(leaves, inline)


def infer_structure(directory: Path, strings: Mapping[str, object]) -> LegacyTree | None:
    """Derive the structure from the names of stored leaves; None if no array is stored.

    Names are split at dots. A level whose keys are 0, 1, ... becomes a dict, because it may be a
    list or a dict. Empty containers are not stored, hence unknown.

    Args:
        directory: The directory of the tree.
        strings: Contents of the strings file.
    """
    documents = list(_all_documents(directory))
    if not documents:
        return None
    use_zarr3 = any(document == ZARR3_DOCUMENT for _, document in documents)
    types = dict.fromkeys(_string_names(strings), STRING)
    types |= dict.fromkeys((name for name, _ in documents), UNKNOWN_TYPE)
    records = [LeafRecord.at(_split(name), types[name]) for name in sorted(types)]
    return LegacyTree(records, {}, use_zarr3)


def _split(name: str) -> KeyPath:
    return tuple(make_key(key, is_sequence=False) for key in name.split(".") if name)


def _string_names(strings: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the storage names of strings; those with slashes are nested."""
    for key, value in strings.items():
        if isinstance(value, str):
            yield f"{prefix}{key}"
        elif is_json_object(value):
            yield from _string_names(value, f"{prefix}{key}/")


def _all_documents(directory: Path) -> Iterator[tuple[str, str]]:
    """Return name and document type of every array, including those with slashes in their names."""
    if is_ocdbt(directory):
        keys = (key.rpartition("/") for key in read_index(directory))
        return ((name, last) for name, _, last in keys if last in _DOCUMENTS)
    return directory_of(directory).find_below(_DOCUMENTS)


def open_tree(
    directory: Path,
    *,
    allow_unstructured: bool = False,
    checked: CheckedDirectory | None = None,
    aggregate: str = AGGREGATE,
) -> StoredTree:
    """Open the tree in an item's directory.

    Args:
        directory: What `find_tree` returned.
        allow_unstructured: Whether to return a tree without leaves if no structure is recorded; the
            caller then uses its target's.
        checked: The same directory, if some of its files have been compared with its manifest.
        aggregate: Name of the msgpack file with the structure, as early releases wrote it.

    Raises:
        CheckpointNotFoundError: No structure is recorded.
        CorruptionError: A file differs from its checksum.
        FormatError: A document is not understood.
    """
    checked = checked or open_checked(directory)
    document = files.read_tree(checked)
    details = files.read_details(checked)
    legacy: LegacyTree | None = None
    is_inferred = False
    if (directory / aggregate).is_file():
        legacy = read_aggregate(checked.read_bytes(aggregate) or b"", str(directory / aggregate))
    elif document is None:
        legacy = infer_structure(directory, files.read_strings(checked))
        is_inferred = legacy is not None
    if legacy is not None:
        document = legacy.merge_into(document)
    if document is None:
        if not allow_unstructured:
            raise CheckpointNotFoundError(
                f"No structure could be identified for the checkpoint at {directory}: there is no "
                f"{TREE_METADATA} ({describe_directory(directory)}). Give a target (item=, like=) "
                "that has the saved structure."
            )
        document = TreeDocument([], stores_fill_values=False)
    try:
        leaves = list(map(details.apply, document.leaves)) if details else document.leaves
    except ValueError as error:
        raise FormatError(f"{directory / TREE_DETAILS}: {error}") from error
    if [leaf.names for leaf in leaves] == [_ARRAY_ITEM] and _is_array_item(directory, document):
        leaves = [msgspec.structs.replace(leaves[0], path=(), names=())]
        is_inferred = False
    applied = replace(document, leaves=leaves)
    return StoredTree(
        directory,
        applied,
        partial(_open_parts, checked, applied),
        details,
        legacy.inline if legacy else {},
        is_inferred=is_inferred,
    )


def open_arrays(directory: CheckedDirectory, document: TreeDocument) -> LoadBatch:
    """Return a reader of a tree's arrays that does not need the tree's damaged documents.

    Raises:
        CorruptionError: The database is damaged.
    """
    parts = TreeParts(open_store(directory, use_ocdbt=document.use_ocdbt))
    return StoredTree(directory.path, document, lambda: parts).load_batch()


def _open_parts(directory: CheckedDirectory, document: TreeDocument) -> TreeParts:
    has_shapes = all(
        leaf.write_shape is not None or leaf.typestr != JAX_ARRAY for leaf in document.leaves
    )
    return TreeParts(
        open_store(directory, use_ocdbt=document.use_ocdbt),
        files.read_arrays(directory, extra_only=has_shapes),
        files.read_shardings(directory),
        files.read_strings(directory),
    )


def _is_array_item(directory: Path, document: TreeDocument) -> bool:
    """Return whether a tree of one leaf was written by Orbax's handler of single arrays.

    That handler names the array `checkpoint`, as a user may. The step's metadata decide, and no
    other handler omits the structure.
    """
    own = files.read_step(CheckedDirectory(directory)).item_handlers
    if own is None:
        around = files.read_step(CheckedDirectory(directory.parent)).item_handlers
        own = around.get(directory.name) if isinstance(around, Mapping) else None
    if isinstance(own, str):
        return own.endswith("ArrayCheckpointHandler")
    return document.leaves[0].typestr == UNKNOWN_TYPE

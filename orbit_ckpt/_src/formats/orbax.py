"""Open a checkpoint in Orbax's format, written here or by any Orbax since 0.2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from orbit_ckpt._src.errors import CheckpointNotFoundError, FormatError
from orbit_ckpt._src.formats.base import StoredTree, TreeParts
from orbit_ckpt._src.formats.orbax_legacy import (
    LegacyTree,
    infer_structure,
    read_aggregate,
)
from orbit_ckpt._src.metadata import files
from orbit_ckpt._src.metadata.schema import JAX_ARRAY, UNKNOWN_TYPE, TreeDocument
from orbit_ckpt._src.storage.integrity import CheckedDirectory, open_checked
from orbit_ckpt._src.storage.kvstore import open_store
from orbit_ckpt._src.storage.layout import (
    AGGREGATE,
    TREE_DETAILS,
    TREE_METADATA,
)
from orbit_ckpt._src.storage.path import describe_directory
from orbit_ckpt._src.type_handlers.base import LoadBatch

_ARRAY_ITEM = ("checkpoint",)


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
        allow_unstructured: Whether to return a tree without leaves if nothing records the
            structure; the caller then takes it from its target.
        checked: The same directory, if some of its files have been compared with its manifest.
        aggregate: Name of the msgpack file in which early releases kept the structure.

    Raises:
        CheckpointNotFoundError: Nothing says what the structure of the tree is.
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
    """Return what reads the arrays of a tree though the documents beside them are damaged.

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
        files.read_arrays(directory, keys_only=has_shapes),
        files.read_shardings(directory),
        files.read_strings(directory),
    )


def _is_array_item(directory: Path, document: TreeDocument) -> bool:
    """Return whether a tree of one leaf was written by Orbax's handler of single arrays.

    It calls the array `checkpoint`; so may a user. The step's metadata tell, and no other handler
    leaves out the structure.
    """
    own = files.read_step(CheckedDirectory(directory)).item_handlers
    if own is None:
        around = files.read_step(CheckedDirectory(directory.parent)).item_handlers
        own = around.get(directory.name) if isinstance(around, Mapping) else None
    if isinstance(own, str):
        return own.endswith("ArrayCheckpointHandler")
    return document.leaves[0].typestr == UNKNOWN_TYPE

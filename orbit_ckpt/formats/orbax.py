"""Open a checkpoint in Orbax's format, written here or by any Orbax since 0.2."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from orbit_ckpt.errors import CheckpointNotFoundError, FormatError, IncompleteCheckpointError
from orbit_ckpt.formats.base import StoredTree, TreeParts
from orbit_ckpt.formats.orbax_legacy import (
    LegacyTree,
    holds_arrays,
    infer_structure,
    read_aggregate,
)
from orbit_ckpt.handlers.base import LoadBatch
from orbit_ckpt.metadata import files
from orbit_ckpt.metadata.schema import JAX_ARRAY, UNKNOWN_TYPE, TreeDocument
from orbit_ckpt.storage.atomic import is_in_progress
from orbit_ckpt.storage.inner_path import inner_file
from orbit_ckpt.storage.integrity import CheckedDirectory, open_checked
from orbit_ckpt.storage.kvstore import open_store
from orbit_ckpt.storage.layout import (
    AGGREGATE,
    COMMIT_MARKER,
    IN_PROGRESS,
    OCDBT_MANIFEST,
    STEP_METADATA,
    TREE_DETAILS,
    TREE_METADATA,
    is_temporary_name,
)
from orbit_ckpt.storage.object_commit import is_committed
from orbit_ckpt.storage.path import describe_directory
from orbit_ckpt.storage.store_path import StorePath

_USUAL_ITEMS = ("default", "state", "pytree")
_NEVER_TREES = frozenset({"metrics", "metadata"})
_ARRAY_ITEM = ("checkpoint",)


def check_complete(path: Path, *, needs_marker: bool = False) -> None:
    """Check that a directory is a committed checkpoint, or part of one.

    Args:
        path: The directory.
        needs_marker: Whether it must have a commit marker.

    Raises:
        IncompleteCheckpointError: It is a save that did not finish.
        CheckpointNotFoundError: It is not a directory.
    """
    if isinstance(path, StorePath):
        _check_committed(path)
        return
    unmarked = needs_marker and not (path / COMMIT_MARKER).exists()
    if is_temporary_name(path.name) or (path.is_dir() and (unmarked or is_in_progress(path))):
        raise IncompleteCheckpointError(
            f"Found incomplete checkpoint at {path}: the save that wrote it did not finish. "
            "Restore an earlier one; this directory can be deleted."
        )
    if not path.is_dir():
        raise CheckpointNotFoundError(
            f"No checkpoint at {path}: {describe_directory(path)}. Give the directory that was "
            "saved to."
        )


def _check_committed(path: StorePath) -> None:
    if is_committed(path):
        return
    names = path.keys_below()
    is_tree = COMMIT_MARKER in names or not _CHECKPOINT_FILES.isdisjoint(names)
    if IN_PROGRESS in names or is_tree:
        raise IncompleteCheckpointError(
            f"Found incomplete checkpoint at {path}: there is no {COMMIT_MARKER}, so the save or "
            "copy that wrote it did not finish. Restore an earlier one; what is there can be "
            f"deleted. If you know it to be complete, put an empty {COMMIT_MARKER} there."
        )
    raise CheckpointNotFoundError(
        f"No checkpoint at {path}: {describe_directory(path)}. Give the URL that was saved to."
    )


_CHECKPOINT_FILES = frozenset({STEP_METADATA, TREE_METADATA, OCDBT_MANIFEST})
"""Names that other programs, who write no marker, do not use."""


def find_tree(path: Path) -> Path:
    """Return the directory of the tree in a checkpoint: the path itself or one of its items.

    Among several items one called `default`, `state` or `pytree` is taken, else the first that
    holds a tree.

    Raises:
        IncompleteCheckpointError: The checkpoint is a save that did not finish.
        CheckpointNotFoundError: There is no tree; says what was found instead.
    """
    check_complete(path)
    if holds_tree(path):
        return path
    names = find_items(path)
    # an item has no such file of its own; a directory that has one is a checkpoint by itself
    checkpoints = [name for name in names if (path / name / STEP_METADATA).is_file()]
    others = {*checkpoints, *_NEVER_TREES} - {*_USUAL_ITEMS}
    items = [name for name in names if name not in others]
    usual = [name for name in _USUAL_ITEMS if name in items]
    for name in (*usual, *(name for name in items if name not in usual)):
        if holds_tree(path / name):
            return inner_file(path, name)
    steps = checkpoints or [name for name in names if _step_of(name) is not None]
    raise CheckpointNotFoundError(_no_tree_message(path, steps))


def is_tree(directory: Path) -> bool:
    """Whether a directory has a file that only trees of Orbax's format have.

    Those of old writers have none: their trees are told by names that others use too.
    """
    return any((directory / name).is_file() for name in (TREE_METADATA, OCDBT_MANIFEST))


def holds_tree(path: Path) -> bool:
    """Whether a directory has the files of a tree."""
    if any((path / name).is_file() for name in (TREE_METADATA, OCDBT_MANIFEST, AGGREGATE)):
        return True
    return holds_arrays(path)


def find_items(path: Path) -> list[str]:
    """Return the names of the items of a checkpoint: its directories."""
    if isinstance(path, StorePath):
        return path.directories()
    with os.scandir(path) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not is_temporary_name(e.name))


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
    """Whether a tree of one leaf was written by Orbax's handler of single arrays.

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


def _step_of(name: str) -> int | None:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else None


def _no_tree_message(path: Path, checkpoints: list[str]) -> str:
    if checkpoints:
        ordered = sorted(checkpoints, key=lambda name: (_step_of(name) or 0, name))
        return (
            f"{path} holds several checkpoints ({', '.join(ordered[:8])}"
            f"{', ...' if len(ordered) > 8 else ''}); give one of them, for example "
            f"{path / ordered[-1]}."
        )
    return (
        f"No checkpoint at {path}: {describe_directory(path)}. A checkpoint of orbit_ckpt or Orbax "
        f"has a {TREE_METADATA} or a {OCDBT_MANIFEST}, or an item that has."
    )

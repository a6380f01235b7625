"""Read Levanter's checkpoints: zarr2 arrays in nested directories, whose names form the tree.

A directory below that of a checkpoint is read as a part of its tree.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import structs
from typing_extensions import override

from orbit_ckpt._src.errors import CheckpointNotFoundError, FormatError, IncompleteCheckpointError
from orbit_ckpt._src.formats.base import ForeignStep, Format, StepRecognizer
from orbit_ckpt._src.formats.run_metadata import (
    find_mixed,
    first_enclosing,
    is_marked,
    marked_step,
    read_run_metadata,
)
from orbit_ckpt._src.formats.stored_tree import StoredTree, TreeParts
from orbit_ckpt._src.formats.zarr_find import find_arrays, has_arrays
from orbit_ckpt._src.formats.zarr_tree import in_tree_order, key_paths
from orbit_ckpt._src.metadata.schema import UNKNOWN_TYPE, LeafRecord, TreeDocument
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.foreign import ForeignStore, LinkedArray
from orbit_ckpt._src.storage.inner_path import InnerFiles
from orbit_ckpt._src.storage.layout import AGGREGATE, RUN_METADATA, STEP_METADATA, ZARR2_DOCUMENT

_NOT_HERE = (AGGREGATE, STEP_METADATA)


class LevanterFormat(Format, StepRecognizer):
    """Reads Levanter's checkpoints; see `Format`."""

    name = "Levanter"
    extra = None

    @override
    def sniff(self, path: Path) -> str | None:
        if not path.is_dir():
            return "it is a file"
        if _root_of(path) is None and not _is_unfinished(path):
            return f"no {RUN_METADATA} of Levanter in it"
        return None if has_arrays(path) else f"no {ZARR2_DOCUMENT} below it"

    @override
    def open(self, path: Path) -> StoredTree:
        root = _root_of(path)
        if root is None:
            raise IncompleteCheckpointError(
                f"Found incomplete checkpoint at {path}: it has arrays in nested directories, as "
                f"Levanter's have, but no {RUN_METADATA}, which is written last. The save that "
                "wrote it did not finish; load an earlier one."
            )
        found = sorted(find_arrays(path))
        if not found:
            raise CheckpointNotFoundError(f"{path}: no {ZARR2_DOCUMENT} below it.")
        try:
            paths = key_paths([names for names, _ in found], infer_lists=False)
        except ValueError as error:
            raise FormatError(f"{path}: {error}; give one of its parts.") from error
        order = in_tree_order(paths)
        files = InnerFiles(path)
        records = [LeafRecord.at(paths[i], UNKNOWN_TYPE) for i in order]
        arrays = {
            record.name: LinkedArray(files, "/".join(found[i][0]))
            for record, i in zip(records, order, strict=True)
        }
        if len(arrays) != len(records):
            raise FormatError(f"{path}: names of leaves, joined by dots, are ambiguous.")
        metadata = read_run_metadata(root)
        return StoredTree(
            path,
            TreeDocument(records, custom_metadata=metadata and structs.asdict(metadata)),
            lambda: TreeParts(ForeignStore(arrays, [root / RUN_METADATA])),
            fingerprint_file=root / RUN_METADATA,
            unbound=[root / RUN_METADATA],
            mixed=find_mixed(root, metadata, {}),
        )

    @override
    def step_at(self, path: Path) -> ForeignStep | None:
        # eFormer's checkpoints have been recognized before
        return marked_step(path)


FORMAT = LevanterFormat()


def _root_of(path: Path) -> Path | None:
    """Return the checkpoint at a directory, or the one that contains it."""
    return first_enclosing(path, is_marked)


def _is_unfinished(path: Path) -> bool:
    """Return whether a directory has arrays on several levels, as in Levanter, but no marker.

    Another format would only read the arrays directly below it.
    """
    if not directory_of(path).has_local_files:
        return False  # asking takes a request per directory
    if any((path / name).exists() for name in _NOT_HERE):
        return False
    if not any((child / ZARR2_DOCUMENT).is_file() for child in path.iterdir()):
        return False  # before searching all levels
    return any(len(names) > 1 for names, _ in find_arrays(path, skip_links=True))

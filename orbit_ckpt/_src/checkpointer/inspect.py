"""Describe checkpoints; imports JAX for leaves of plug-ins only."""

from __future__ import annotations

from orbit_ckpt._src.errors import StepNotFoundError
from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.metadata.files import describe_step
from orbit_ckpt._src.metadata.values import StepMetadata, TreeMetadata
from orbit_ckpt._src.pytree.describe import describe_tree
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.integrity import CheckedDirectory
from orbit_ckpt._src.storage.layout import STEP_METADATA
from orbit_ckpt._src.storage.path import PathLike, describe_directory, resolve_path
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY


def metadata(path: PathLike, *, reader: Format | None = None) -> TreeMetadata:
    """Return metadata of a saved pytree without reading arrays or using a device.

    Args:
        path: As for `load`.
        reader: As for `load`.

    Returns:
        `.tree`, with the structure of the saved tree and `ArrayMetadata` (shape, dtype, sharding,
        storage), `ScalarMetadata` and `StringMetadata` as leaves, and `.custom_metadata`.

    Raises:
        CheckpointNotFoundError: There is no checkpoint; the message says what exists instead.
        IncompleteCheckpointError: The save did not finish.
    """
    return describe_tree(resolve_path(path), GLOBAL_TYPE_HANDLER_REGISTRY, reader=reader)


def get_step_metadata(path: PathLike) -> StepMetadata:
    """Return the metadata of a checkpoint as a whole, without that of its items.

    Raises:
        StepNotFoundError: There is no checkpoint with a record.
        IncompleteCheckpointError: The save did not finish.
    """
    directory = resolve_path(path)
    if directory.exists():
        directory_of(directory).check_complete()
    if not (directory / STEP_METADATA).is_file():
        raise StepNotFoundError(
            f"There is no {STEP_METADATA} in {directory}: {describe_directory(directory)}. Give "
            "the directory of a step or checkpoint."
        )
    return describe_step(CheckedDirectory(directory), None)

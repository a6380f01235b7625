"""Describe a saved tree; imports JAX for plug-ins' leaves only."""

from __future__ import annotations

from orbit_ckpt._src.formats.base import Format
from orbit_ckpt._src.metadata.values import TreeMetadata
from orbit_ckpt._src.pytree.describe import describe_tree
from orbit_ckpt._src.storage.path import PathLike, resolve_path
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

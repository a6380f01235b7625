"""The class of the callable module `orbit_ckpt.metadata`."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbit_ckpt._src.formats.base import Format
    from orbit_ckpt._src.metadata.values import TreeMetadata
    from orbit_ckpt._src.storage.path import PathLike


class MetadataModule(ModuleType):
    """A module with the metadata classes, and the function that reads metadata."""

    def __call__(self, path: PathLike, *, reader: Format | None = None) -> TreeMetadata:
        """Return metadata of a saved pytree without reading arrays or using a device.

        Args:
            path: As for `load`.
            reader: As for `load`.

        Returns:
            `.tree`, with the structure of the saved tree and `ArrayMetadata` (shape, dtype,
            sharding, storage), `ScalarMetadata` and `StringMetadata` as leaves, and
            `.custom_metadata`.

        Raises:
            CheckpointNotFoundError: There is no checkpoint; the message lists what exists.
            IncompleteCheckpointError: The save did not finish.
        """
        from orbit_ckpt._src.checkpointer.inspect import metadata  # noqa: PLC0415 - imports NumPy

        return metadata(path, reader=reader)

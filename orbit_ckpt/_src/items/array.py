"""One array or scalar as an item."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.items.arguments import CheckpointArgs
from orbit_ckpt._src.items.base import ORBAX_PREFIX
from orbit_ckpt._src.items.phases import ItemHandler
from orbit_ckpt._src.items.pytree import PyTreeHandler, PyTreeRestoreArgs, PyTreeSaveArgs
from orbit_ckpt._src.runtime.commit import Commit
from orbit_ckpt._src.storage.path import PathLike
from orbit_ckpt._src.text import warn_set
from orbit_ckpt._src.type_handlers.base import RestoreArgs, SaveArgs


@dataclass
class ArraySaveArgs(CheckpointArgs):
    """An array to save, and its options.

    Attributes:
        item: The array or scalar.
        save_args: Its options.
    """

    item: object
    save_args: SaveArgs | None = None


@dataclass
class ArrayRestoreArgs(CheckpointArgs):
    """How to restore an array.

    Attributes:
        item: Ignored.
        restore_args: The type, dtype and sharding to restore to.
    """

    item: object = None
    restore_args: RestoreArgs | None = None

    def __post_init__(self) -> None:
        why = "an array comes back as it was saved, or as restore_args say"
        warn_set("ArrayRestore", {"item": (self.item, None, why)})


class ArrayCheckpointHandler(
    ItemHandler[ArraySaveArgs], save_args=ArraySaveArgs, restore_args=ArrayRestoreArgs
):
    """Saves and restores one array or scalar, as a tree with a single leaf."""

    def __init__(self, checkpoint_name: str | None = None) -> None:
        """Make a handler.

        Args:
            checkpoint_name: Storage name of the array; `checkpoint` by default.
        """
        self._name = checkpoint_name or "checkpoint"
        # the only layout that Orbax's array handler reads
        self._trees = PyTreeHandler(use_ocdbt=False, use_zarr3=False)

    @classmethod
    def typestr(cls) -> str:
        """Return the name that checkpoints record; Orbax's own."""
        return f"{ORBAX_PREFIX}array_checkpoint_handler.ArrayCheckpointHandler"

    @override
    async def stage(self, directory: Path, args: ArraySaveArgs, *, copy: bool) -> Commit:
        save_args = None if args.save_args is None else {self._name: args.save_args}
        tree = PyTreeSaveArgs({self._name: args.item}, save_args)
        return await self._trees.stage(directory, tree, copy=copy)

    @override
    def restore(
        self,
        directory: PathLike,
        item: object = None,
        restore_args: RestoreArgs | None = None,
        args: ArrayRestoreArgs | None = None,
    ) -> Any:  # whatever array was saved
        """Read an array.

        Raises:
            CheckpointNotFoundError: The directory holds no array.
            CorruptionError: Stored data is missing or damaged.
        """
        args = args or ArrayRestoreArgs(item, restore_args)
        is_bare = not isinstance(self._trees.metadata(directory).tree, dict)
        leaf_args = args.restore_args
        if leaf_args is not None and not is_bare:
            leaf_args = {self._name: leaf_args}
        found: Any = self._trees.restore(directory, args=PyTreeRestoreArgs(restore_args=leaf_args))
        return found if is_bare else found[self._name]

    def metadata(self, directory: PathLike) -> object:
        """Return metadata of the array without reading it."""
        metadata = self._trees.metadata(directory)
        return metadata[self._name] if is_json_object(metadata.tree) else metadata.tree

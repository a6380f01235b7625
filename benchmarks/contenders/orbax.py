"""orbax-checkpoint, with its own defaults except for the shared settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as orbax

from benchmarks.contenders import Settings
from benchmarks.contenders.managed import ManagedSaves
from benchmarks.keys import Keys, leaf_at, nest


class Orbax:
    """Saves and restores with Orbax's pytree checkpointers.

    It skips `load_renamed`, because Orbax's transforms take minutes for 5,000 leaves, and
    `load_rows`, because it reads no part of an array but the beginning.
    """

    def __init__(self, tree: object, settings: Settings) -> None:
        limit: Any = settings.memory_limit_gb  # declared as int, but only multiplied

        def handler() -> orbax.PyTreeCheckpointHandler:
            return orbax.PyTreeCheckpointHandler(
                use_ocdbt=True,
                use_compression=settings.compression,
                save_concurrent_gb=limit,
                restore_concurrent_gb=limit,
            )

        self._tree = tree
        self._settings = settings
        self._device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        self._checkpointer = orbax.Checkpointer(handler())
        self._async_checkpointer = orbax.AsyncCheckpointer(handler())
        self._to_jax = orbax.checkpoint_utils.construct_restore_args(tree)
        self._to_numpy = jax.tree.map(
            lambda leaf: orbax.RestoreArgs(np.ndarray if isinstance(leaf, jax.Array) else None),
            tree,
        )

    def save(self, path: Path) -> None:
        """Save the tree."""
        self._checkpointer.save(path, args=orbax.args.PyTreeSave(self._tree))

    def load_jax(self, path: Path) -> object:
        """Load the tree onto its shardings."""
        return self._restore(path, self._to_jax)

    def saves(self, directory: Path) -> ManagedSaves:
        """Return what saves the steps of a run."""
        return ManagedSaves(orbax, directory, self._settings)

    def load_onto(self, path: Path, target: Any) -> object:
        """Load the tree onto the shardings of a target."""
        restore_args = orbax.checkpoint_utils.construct_restore_args(target)
        return self._restore(path, restore_args, target)

    def load_leaf(self, path: Path, keys: Keys) -> np.ndarray:
        """Load one leaf."""
        return self._restore_one(path, keys, orbax.ArrayRestoreArgs(sharding=self._device))

    def load_first_rows(self, path: Path, keys: Keys, count: int) -> np.ndarray:
        """Load the first rows of a matrix: an array of another shape, which truncates."""
        shape = (count, *leaf_at(self._tree, keys).shape[1:])
        restore_args = orbax.ArrayRestoreArgs(
            sharding=self._device, global_shape=shape, strict=False
        )
        return self._restore_one(path, keys, restore_args)

    def load_numpy(self, path: Path) -> object:
        """Load the tree into host memory."""
        return self._restore(path, self._to_numpy)

    def metadata(self, path: Path) -> object:
        """Read the metadata."""
        return self._checkpointer.metadata(path)

    def save_async(self, path: Path) -> Callable[[], None]:
        """Start a background save."""
        self._async_checkpointer.save(path, args=orbax.args.PyTreeSave(self._tree))
        return self._async_checkpointer.wait_until_finished

    def _restore(self, path: Path, restore_args: object, item: object = None) -> Any:
        args = orbax.args.PyTreeRestore(item=item or self._tree, restore_args=restore_args)
        return self._checkpointer.restore(path, args=args)

    def _restore_one(self, path: Path, keys: Keys, restore_args: object) -> np.ndarray:
        args = orbax.args.PyTreeRestore(
            item=nest(keys, leaf_at(self._tree, keys)),
            restore_args=nest(keys, restore_args),
            partial_restore=True,
        )
        return np.asarray(leaf_at(self._checkpointer.restore(path, args=args), keys))

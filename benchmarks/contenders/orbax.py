"""orbax-checkpoint, with its own defaults except for the shared settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as orbax

from benchmarks.contenders import Settings


class Orbax:
    """Saves and restores with Orbax's pytree checkpointers.

    It skips `load_renamed`, because Orbax's transforms take minutes for 5,000 leaves.
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

    def _restore(self, path: Path, restore_args: object) -> object:
        args = orbax.args.PyTreeRestore(item=self._tree, restore_args=restore_args)
        return self._checkpointer.restore(path, args=args)

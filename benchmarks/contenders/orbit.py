"""orbit_ckpt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

import orbit_ckpt as ocp
from benchmarks.contenders import Settings
from benchmarks.contenders.managed import ManagedSaves
from benchmarks.keys import Keys, leaf_at
from orbit_ckpt.transform import Rename


class OrbitCkpt:
    """Saves with a checkpointer, which takes the settings, and loads with `load`."""

    def __init__(self, tree: object, settings: Settings) -> None:
        limit = settings.memory_limit_gb
        self._tree = tree
        self._settings = settings
        self._has_limit = limit is not None
        handler = ocp.PyTreeHandler(
            use_compression=settings.compression,
            save_concurrent_gb=limit,
            restore_concurrent_gb=limit,
        )
        self._checkpointer = ocp.Checkpointer(handler)
        self._background = ocp.AsyncCheckpointer(handler)
        self._to_jax = ocp.checkpoint_utils.construct_restore_args(tree)
        self._to_numpy = jax.tree.map(
            lambda leaf: ocp.RestoreArgs(np.ndarray if isinstance(leaf, jax.Array) else None), tree
        )

    def save(self, path: Path) -> None:
        """Save the tree."""
        self._checkpointer.save(path, args=ocp.args.PyTreeSave(self._tree))

    def save_async(self, path: Path) -> Callable[[], object]:
        """Start a background save; return a function that waits for it."""
        self._background.save(path, args=ocp.args.PyTreeSave(self._tree))
        return self._background.wait_until_finished

    def load_jax(self, path: Path) -> object:
        """Load the tree onto its shardings."""
        if self._has_limit:  # `load` has no such argument
            return self._restore(path, self._to_jax)
        return ocp.load(path, like=self._tree)

    def load_renamed(self, path: Path) -> Any:
        """Load the tree onto its shardings, renaming every leaf with a rule."""
        rules = [Rename("**", r"renamed/\1")]
        return ocp.load(path, like={"renamed": self._tree}, transforms=rules)["renamed"]

    def saves(self, directory: Path) -> ManagedSaves:
        """Return what saves the steps of a run."""
        return ManagedSaves(ocp, directory, self._settings)

    def load_onto(self, path: Path, target: object) -> object:
        """Load the tree onto the shardings of a target."""
        return ocp.load(path, like=target)

    def load_leaf(self, path: Path, keys: Keys) -> np.ndarray:
        """Load one leaf."""
        return np.asarray(leaf_at(ocp.load(path, only="/".join(keys)), keys))

    def load_first_rows(self, path: Path, keys: Keys, count: int) -> np.ndarray:
        """Load the first rows of a matrix."""
        return leaf_at(ocp.load(path, lazy=True), keys)[:count]

    def load_rows(self, path: Path, keys: Keys, rows: range) -> np.ndarray:
        """Load rows of a matrix, one by one."""
        matrix = leaf_at(ocp.load(path, lazy=True), keys)
        return np.stack([matrix[row] for row in rows])

    def load_numpy(self, path: Path) -> object:
        """Load the tree into host memory."""
        return self._restore(path, self._to_numpy)

    def metadata(self, path: Path) -> object:
        """Read the metadata."""
        return ocp.metadata(path)

    def _restore(self, path: Path, restore_args: object) -> object:
        args = ocp.args.PyTreeRestore(self._tree, restore_args)
        return self._checkpointer.restore(path, args=args)

"""safetensors: one file of named arrays, without checksums or compression."""

# safetensors is not installed everywhere.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
from safetensors import safe_open
from safetensors.flax import load_file as load_jax_file
from safetensors.flax import save_file
from safetensors.numpy import load_file as load_numpy_file

from benchmarks.contenders import Settings
from benchmarks.contenders.arrays import flatten_named, require_arrays, require_one_device


class Safetensors:
    """Saves a flat dictionary, and rebuilds the tree after loading."""

    def __init__(self, tree: object, settings: Settings) -> None:  # noqa: ARG002 - none apply
        require_arrays(tree)
        require_one_device(tree)
        self._tree = tree

    def save(self, path: Path) -> None:
        """Save the tree, and sync the file like the other contenders."""
        save_file(flatten_named(self._tree), path)
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def load_jax(self, path: Path) -> object:
        """Load the tree onto the default device."""
        return self._unflatten(load_jax_file(path))

    def load_numpy(self, path: Path) -> object:
        """Load the tree into host memory."""
        return self._unflatten(load_numpy_file(path))

    def metadata(self, path: Path) -> object:
        """Return the shape and dtype of every array."""
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - no dict
            return {name: (s.get_shape(), s.get_dtype()) for name, s in slices.items()}

    def _unflatten(self, arrays: Mapping[str, Any]) -> object:
        leaves = [arrays[name] for name in flatten_named(self._tree)]
        return jax.tree.unflatten(jax.tree.structure(self._tree), leaves)

"""torch.distributed.checkpoint in one process, without compression or checksums."""

# PyTorch is not installed everywhere.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks.contenders import Settings
from benchmarks.contenders.arrays import flatten_named, require_one_device


class TorchDcp:
    """Saves a flat state dictionary of CPU tensors, which share the memory of the JAX arrays."""

    def __init__(self, tree: object, settings: Settings) -> None:  # noqa: ARG002 - none apply
        require_one_device(tree)
        self._structure = jax.tree.structure(tree)
        self._state = {name: _to_torch(leaf) for name, leaf in flatten_named(tree).items()}

    def save(self, path: Path) -> None:
        """Save the tree."""
        save(self._state, checkpoint_id=path, no_dist=True)

    def load_jax(self, path: Path) -> object:
        """Load the tree into memory that JAX adopts."""
        return jax.tree.map(
            lambda leaf: (
                jax.device_put(leaf, jax.devices()[0], may_alias=True)
                if isinstance(leaf, np.ndarray)
                else leaf
            ),
            self.load_numpy(path),
        )

    def load_numpy(self, path: Path) -> object:
        """Load the tree into host memory."""
        state = {
            name: torch.empty_like(value) if isinstance(value, torch.Tensor) else value
            for name, value in self._state.items()
        }
        load(state, checkpoint_id=path, no_dist=True)
        return jax.tree.unflatten(self._structure, map(_to_numpy, state.values()))

    def metadata(self, path: Path) -> object:
        """Return the shape and dtype of every tensor."""
        return FileSystemReader(path).read_metadata()

    def save_async(self, path: Path) -> Callable[[], object]:
        """Start a background save."""
        future = async_save(self._state, checkpoint_id=path, no_dist=True)
        return cast(Future[object], future).result


def _to_torch(leaf: Any) -> Any:
    """Convert an array to a tensor; return anything else unchanged."""
    if not isinstance(leaf, jax.Array):
        return leaf
    array = np.asarray(leaf)
    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_numpy(value: Any) -> Any:
    """Convert a tensor to an array; return anything else unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view(jnp.bfloat16)
    return value.numpy()

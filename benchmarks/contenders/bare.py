"""The bare disk: writing bytes to a file and reading them back, without a checkpoint."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.contenders import Settings
from benchmarks.contenders.arrays import require_arrays, require_one_device

_ALIGNMENT = 64  # JAX adopts host memory with this alignment, and copies any other
_PIECE = 16 * 2**20
_THREADS = 8


class Bare:
    """Store the bytes of all leaves in one file, and nothing else.

    Saving is one `pwrite` per leaf, directly from the array's memory, then an `fsync` of the file.
    Loading is a `preadv` of 16 MB pieces by several threads into one buffer; NumPy leaves are views
    of it, and JAX makes arrays from it without copying. This is the limit of the system, and no
    checkpoint can do as little: names, shapes and dtypes are remembered, not stored; saves have no
    checksums or compression and are not atomic; directories are not synced; and any leaf keeps the
    memory of all others alive. Trees with anything but arrays on one device are refused.
    """

    def __init__(self, tree: object, settings: Settings) -> None:  # noqa: ARG002 - none apply
        require_arrays(tree)
        require_one_device(tree)
        leaves, self._structure = jax.tree.flatten(tree)
        self._arrays = [np.asarray(leaf) for leaf in leaves]
        sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in self._arrays]
        *self._offsets, self._nbytes = accumulate(sizes, initial=0)

    def save(self, path: Path) -> None:
        """Write the leaves."""
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            for array, offset in zip(self._arrays, self._offsets, strict=True):
                _write(file, array.reshape(-1).view(np.uint8).data, offset)
            os.truncate(file, self._nbytes)  # the last leaf is padded too
            os.fsync(file)
        finally:
            os.close(file)

    def load_numpy(self, path: Path) -> object:
        """Read the leaves."""
        data = _read(path, self._nbytes)
        leaves = [
            data[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
            for array, offset in zip(self._arrays, self._offsets, strict=True)
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def load_jax(self, path: Path) -> object:
        """Read the leaves into memory that JAX adopts."""
        return jax.device_put(self.load_numpy(path), jax.devices()[0], may_alias=True)


def _write(file: int, data: memoryview, offset: int) -> None:
    while data:  # Linux writes at most 2 GB at once
        count = os.pwrite(file, data, offset)
        data, offset = data[count:], offset + count


def _read(path: Path, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the content of a file, in aligned memory."""
    memory = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    data = memory[start : start + nbytes]
    file = os.open(path, os.O_RDONLY)

    def read(begin: int) -> int:
        return os.preadv(file, [data[begin : begin + _PIECE].data], begin)

    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            count = sum(threads.map(read, range(0, nbytes, _PIECE)))
    finally:
        os.close(file)
    if count != nbytes:
        raise OSError(f"{path}: read {count} bytes, expected {nbytes}")
    return data

"""Open a GGUF file: plain tensors are read where they are, those of Q8_0 are decoded in parts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from orbit_ckpt.errors import CorruptionError
from orbit_ckpt.formats import (
    DecodedArray,
    Extent,
    ForeignArray,
    RawArray,
    StoredTree,
    stored_tree,
)
from orbit_ckpt_gguf.header import read_header
from orbit_ckpt_gguf.types import PLAIN, Q8_0, Q8_0_BLOCK, VALUES_PER_BLOCK, Tensor

_CHUNK_VALUES = 1 << 18


def open_tree(path: Path) -> StoredTree:
    """Open a file; reads its header only.

    Raises:
        CorruptionError: The file ends too early.
        FormatError: The file is damaged, or cannot be read.
    """
    header = read_header(path)
    arrays = {tensor.name: _array(path, tensor) for tensor in header.tensors}
    return stored_tree(path, arrays, files=[path], metadata=dict(header.metadata) or None)


def _array(path: Path, tensor: Tensor) -> ForeignArray:
    if tensor.kind == Q8_0:
        chunk = chunk_shape(tensor.shape)
        return DecodedArray(
            tensor.shape, np.dtype(np.float32), chunk, lambda box: _decode(path, tensor, box)
        )
    place = Extent(str(path), tensor.offset, tensor.nbytes)
    return RawArray(tensor.shape, PLAIN[tensor.kind], place)


def chunk_shape(shape: tuple[int, ...], max_values: int = _CHUNK_VALUES) -> tuple[int, ...]:
    """Return a shape of chunks whose values lie next to one another in the file.

    A chunk has whole trailing dimensions, a part of one dimension, and a length of one in those
    before it.
    """
    room = max_values
    found: list[int] = []
    for i, length in enumerate(reversed(shape)):
        part = max(1, min(length, room))
        if i == 0 and part < length:
            part = max(1, part // VALUES_PER_BLOCK) * VALUES_PER_BLOCK
        found.append(part)
        room //= part
    return tuple(reversed(found))


def _decode(path: Path, tensor: Tensor, box: tuple[slice, ...]) -> np.ndarray:
    """Return the values of a chunk of a tensor of Q8_0."""
    shape = tuple(part.stop - part.start for part in box)
    first = np.ravel_multi_index([part.start for part in box], tensor.shape)
    count = math.prod(shape) // VALUES_PER_BLOCK
    with path.open("rb") as file:
        file.seek(tensor.offset + int(first) // VALUES_PER_BLOCK * Q8_0_BLOCK.itemsize)
        data = file.read(count * Q8_0_BLOCK.itemsize)
    if len(data) != count * Q8_0_BLOCK.itemsize:
        raise CorruptionError(
            f"{path} ends in the middle of {tensor.name!r}. It became shorter since it was opened; "
            "load it again.",
            file=str(path),
        )
    blocks = np.frombuffer(data, Q8_0_BLOCK)
    scales = blocks["scale"].astype(np.float32)[:, np.newaxis]
    return (scales * blocks["values"]).reshape(shape)

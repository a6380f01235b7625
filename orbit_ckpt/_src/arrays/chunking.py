"""Choose chunk shapes; pure.

The rules are Orbax's (`SaveArgs.chunk_byte_size` and `shard_axes`): a chunk divides what one device
writes, so that no chunk is written twice or read back to be completed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orbit_ckpt._src.arrays.slices import Shape


def effective_chunk_bytes(
    write_nbytes: int, *, chunk_bytes: int | None, file_bytes: int
) -> int | None:
    """Return the maximum chunk size in bytes, None for no limit.

    Args:
        write_nbytes: Bytes of the array that one device writes.
        chunk_bytes: Limit requested by the user, if any.
        file_bytes: Maximum size of a data file, which must hold a chunk; 0 means no limit.
    """
    if not file_bytes:
        return chunk_bytes
    if chunk_bytes is None:
        return file_bytes if write_nbytes > file_bytes else None
    return min(chunk_bytes, file_bytes)


def choose_chunk_shape(
    shape: Shape,
    write_shape: Shape,
    *,
    itemsize: int,
    max_bytes: int | None = None,
    shard_axes: Sequence[int] = (),
) -> Shape:
    """Return a chunk shape that divides `write_shape`.

    Axes in `shard_axes` are cut to length 1 first. While the chunk is larger than `max_bytes`, its
    longest axis shrinks to the next smaller divisor of what one device writes; axes that are
    already sharded (`write_shape` smaller than `shape`) go first. Axes of length 0 give 1, because
    zarr has no empty chunks.

    Raises:
        ValueError: The ranks differ, an axis is out of range, or `max_bytes` is less than one
            element.
    """
    rank = len(shape)
    if len(write_shape) != rank:
        raise ValueError(f"shape={shape} and write_shape={write_shape} must have the same length")
    if any(not 0 <= axis < rank for axis in shard_axes):
        raise ValueError(
            f"All shard_axes={tuple(shard_axes)} must be non-negative and less than rank={rank}"
        )
    chunk = [max(1, n) for n in write_shape]
    for axis in shard_axes:
        chunk[axis] = 1
    if max_bytes is None:
        return tuple(chunk)
    if max_bytes < itemsize:
        raise ValueError(f"chunk_byte_size={max_bytes} must be >= {itemsize}, one element")
    sharded = {axis for axis in range(rank) if write_shape[axis] < shape[axis]}
    while math.prod(chunk) * itemsize > max_bytes:
        candidates = [axis for axis in range(rank) if chunk[axis] > 1]
        preferred = [axis for axis in candidates if axis in sharded] or candidates
        axis = max(preferred, key=lambda a: chunk[a])
        chunk[axis] = _divisor_below(chunk[axis], write_shape[axis])
    return tuple(chunk)


def _divisor_below(limit: int, n: int) -> int:
    """Return the largest divisor of `n` below `limit`; `limit` is a divisor itself."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return max(d for pair in ((d, n // d) for d in small) for d in pair if d < limit)

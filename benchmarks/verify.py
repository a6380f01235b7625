"""Compare a loaded tree with the saved one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

_PIECE = 2**24


class WrongValueError(Exception):
    """A loaded tree differs from the saved one; the message says where and how."""


def verify(loaded: object, saved: object, *, array_type: type) -> None:
    """Compare structure, types, dtypes, shapes, shardings and bits.

    Args:
        loaded: The loaded tree.
        saved: The saved tree.
        array_type: Required type of the arrays, `jax.Array` or `np.ndarray`.

    Raises:
        WrongValueError: They differ.
    """
    if jax.tree.structure(loaded) != jax.tree.structure(saved):
        raise WrongValueError(
            f"the loaded tree has the structure {jax.tree.structure(loaded)}, "
            f"expected {jax.tree.structure(saved)}"
        )
    leaves, _ = jax.tree_util.tree_flatten_with_path(saved)
    for (path, expected), found in zip(leaves, jax.tree.leaves(loaded), strict=True):
        difference = _difference(found, expected, array_type)
        if difference:
            where = jax.tree_util.keystr(path, simple=True, separator=".")
            raise WrongValueError(f"{where}: {difference}")


def _difference(found: Any, expected: Any, array_type: type) -> str | None:
    if not isinstance(expected, jax.Array):
        same = type(found) is type(expected) and found == expected
        return None if same else f"found {found!r}, expected {expected!r}"
    if not isinstance(found, array_type):
        return f"found a {type(found).__name__}, expected a {array_type.__name__}"
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return f"found {found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}"
    if isinstance(found, jax.Array) and not found.sharding.is_equivalent_to(
        expected.sharding, expected.ndim
    ):
        return f"found it on {found.sharding}, expected {expected.sharding}"
    # By shards, because a whole sharded array would be assembled and kept on the host.
    for shard in expected.addressable_shards:
        part = _part(found, shard)
        if not _same_bits(part, shard.data):
            return "found other values than were saved"
    return None


def _part(array: Any, shard: jax.Shard) -> Any:
    if isinstance(array, jax.Array):
        return next(s.data for s in array.addressable_shards if s.device == shard.device)
    return array[shard.index]


def _same_bits(first: Any, second: Any) -> bool:
    """Compare in pieces, because a comparison takes memory too."""
    one, other = (np.ascontiguousarray(x).reshape(-1).view(np.uint8) for x in (first, second))
    starts = range(0, one.size, _PIECE)
    return all(np.array_equal(one[i : i + _PIECE], other[i : i + _PIECE]) for i in starts)

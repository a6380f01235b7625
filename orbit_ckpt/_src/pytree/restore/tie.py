"""Make leaves one array again that are one array in the target, such as tied embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import jax
import numpy as np

from orbit_ckpt._src.arrays.dtypes import HostArray, is_host_array, is_prng_dtype
from orbit_ckpt._src.arrays.memory import byte_view
from orbit_ckpt._src.pytree.restore.align import mismatch
from orbit_ckpt._src.pytree.restore.hints import MismatchHints
from orbit_ckpt._src.transform.patterns import join_name
from orbit_ckpt._src.tree.diff import TreeDifference
from orbit_ckpt._src.tree.flatten import FlatTree
from orbit_ckpt._src.tree.keypath import NamePath

_BLOCK_BYTES = 1 << 20


def tie_leaves(
    target: FlatTree, values: Mapping[NamePath, object], hints: MismatchHints
) -> dict[NamePath, object]:
    """Return restored values in which arrays are one object that are one in the target.

    Args:
        target: The target.
        values: The restored values.
        hints: What an error advises.

    Raises:
        TreeMismatchError: Arrays that the target ties are not equal, bit for bit.
    """
    first: dict[int, NamePath] = {}
    tied: dict[NamePath, object] = {}
    differ: dict[NamePath, str] = {}
    for names, wanted in zip(target.names, target.values, strict=True):
        if names not in values or not (isinstance(wanted, jax.Array) or is_host_array(wanted)):
            continue
        known = first.setdefault(id(wanted), names)
        if known == names:
            continue
        if _are_same(values[known], values[names]):
            tied[names] = values[known]
        else:
            differ[names] = (
                f"one array with {join_name(known)} in the target, another one in the checkpoint; "
                "load without tied=True"
            )
    if differ:
        raise mismatch(TreeDifference([], [], differ), hints)
    return {**values, **tied}


def _are_same(a: object, b: object) -> bool:
    if isinstance(a, jax.Array) and isinstance(b, jax.Array):
        if (a.dtype, a.shape, a.sharding) != (b.dtype, b.shape, b.sharding):
            return False
        if is_prng_dtype(a.dtype):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        pairs = zip(a.addressable_shards, b.addressable_shards, strict=True)
        return all(_have_same_bits(np.asarray(x.data), np.asarray(y.data)) for x, y in pairs)
    if is_host_array(a) and is_host_array(b):
        return (a.dtype, a.shape) == (b.dtype, b.shape) and _have_same_bits(a, b)
    return False


def _have_same_bits(a: HostArray, b: HostArray) -> bool:
    one, other = (np.frombuffer(byte_view(np.ascontiguousarray(x)), np.uint8) for x in (a, b))
    bounds = [*range(0, one.size, _BLOCK_BYTES), one.size]
    return all(np.array_equal(one[i:j], other[i:j]) for i, j in pairwise(bounds))

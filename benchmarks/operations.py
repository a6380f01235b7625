"""What contenders are asked to do, and what a load must return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.keys import Keys
from benchmarks.layouts import describe_on

_FEW_ROWS = 64


@dataclass(frozen=True, slots=True)
class Request:
    """What one operation asks for on one tree.

    Attributes:
        arguments: Arguments of the contender's method, after the path.
        nbytes: Size of the requested arrays, copies on all devices included.
        expected: Returns what a load must return; None if the result is not compared.
    """

    arguments: tuple[object, ...]
    nbytes: int
    expected: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """A way to use a checkpoint.

    Attributes:
        label: Its name in reports.
        method: The contender's method.
        request: Returns what to ask for, given the tree.
        array_type: Type of the arrays that a load returns.
    """

    label: str
    method: str
    request: Callable[[Any], Request] = field(default=lambda _: Request((), 0))
    array_type: type = jax.Array

    @property
    def is_save(self) -> bool:
        """Whether it writes a checkpoint."""
        return self.method in ("save", "save_async")


def _whole(tree: Any) -> Request:
    return Request((), _nbytes(tree), lambda: tree)


def _onto(layout: str, tree: Any) -> Request:
    target = describe_on(layout, tree)

    def place() -> object:
        return jax.tree.map(lambda leaf, like: jax.device_put(leaf, like.sharding), tree, target)

    return Request((target,), _nbytes(target), place)


def _one_leaf(tree: Any) -> Request:
    """Ask for the array in the middle of the tree."""
    leaves = list(_named_arrays(tree).items())
    keys, leaf = leaves[len(leaves) // 2]
    return Request((keys,), leaf.nbytes, lambda: leaf)


def _first_rows(tree: Any) -> Request:
    keys, leaf = next(iter(_named_arrays(tree).items()))
    count = min(_FEW_ROWS, leaf.shape[0])
    return Request((keys, count), count * leaf.nbytes // leaf.shape[0], lambda: leaf[:count])


def _scattered_rows(tree: Any) -> Request:
    """Ask for rows at equal distances in the tree's first array."""
    keys, leaf = next(iter(_named_arrays(tree).items()))
    rows = range(0, leaf.shape[0], max(1, leaf.shape[0] // _FEW_ROWS))
    return Request(
        (keys, rows), len(rows) * leaf.nbytes // leaf.shape[0], lambda: leaf[np.array(rows)]
    )


def _named_arrays(tree: Any) -> Mapping[Keys, jax.Array]:
    """Return the arrays of nested dictionaries by their keys."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {tuple(entry.key for entry in path): x for path, x in leaves if hasattr(x, "shape")}


def _nbytes(tree: Any) -> int:
    """Return the size of arrays on all devices; other leaves count as nothing."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape))
        * leaf.dtype.itemsize
        * len(leaf.sharding.device_set)
        for leaf in jax.tree.leaves(tree)
        if hasattr(leaf, "sharding")
    )


STANDARD = {
    "save": Operation("save", "save"),
    "load_jax": Operation("load to jax", "load_jax", _whole),
    "load_renamed": Operation("load to jax, renamed", "load_renamed", _whole),
    "load_numpy": Operation("load to numpy", "load_numpy", _whole, np.ndarray),
    "metadata": Operation("metadata", "metadata"),
    "save_async": Operation("blocked by async save", "save_async"),
}
"""Operations for every tree."""

RESHARD = {
    "onto_2x4": Operation("onto mesh (2, 4)", "load_onto", partial(_onto, "2x4")),
    "onto_4x2": Operation("onto mesh (4, 2), axes swapped", "load_onto", partial(_onto, "4x2")),
    "onto_rows": Operation("onto 8 x rows", "load_onto", partial(_onto, "rows")),
    "onto_columns": Operation("onto 8 x columns", "load_onto", partial(_onto, "columns")),
    "onto_replicated": Operation("onto 8 replicas", "load_onto", partial(_onto, "replicated")),
    "onto_device": Operation("onto one device", "load_onto", partial(_onto, "device")),
}
"""Loads onto another layout than the saved one, for trees on eight devices."""

PARTIAL = {
    "load_leaf": Operation("one leaf", "load_leaf", _one_leaf, np.ndarray),
    "load_first_rows": Operation("the first 64 rows", "load_first_rows", _first_rows, np.ndarray),
    "load_rows": Operation("64 single rows", "load_rows", _scattered_rows, np.ndarray),
}
"""Loads of a part of the tree."""

OPERATIONS = {**STANDARD, **RESHARD, **PARTIAL}
"""All operations by name.

`save` writes to a path that does not exist, and returns when the checkpoint is durable. `load_jax`
and `load_numpy` return a tree like the saved one, with JAX arrays on the same shardings or NumPy
arrays, and all other leaves unchanged; `load_renamed` is `load_jax` with a new name for every leaf.
`metadata` reads no arrays. `save_async` returns a function that waits for the save; only the call
of `save_async` itself is timed.

`load_onto(path, target)` returns the tree on the shardings of `target`, a tree of
`jax.ShapeDtypeStruct`. `load_leaf(path, keys)`, `load_first_rows(path, keys, count)` and
`load_rows(path, keys, rows)` return a NumPy array: a leaf, its first rows, or rows far apart, which
are read one by one.
"""

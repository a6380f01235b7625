"""The benchmark trees, made of seeded random numbers so that all processes agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.random import Generator

from benchmarks.layouts import DEVICES, layout
from benchmarks.operations import RESHARD, STANDARD

MB = 2**20

Branch = dict[str, Any]  # a pytree: its leaves are of any type


@dataclass(frozen=True, slots=True)
class Tree:
    """How to make a tree.

    Attributes:
        make: Makes the tree.
        make_small: Makes a similar tree of a few kilobytes.
        gigabytes: Its size, if it is large.
        devices: Number of CPU devices that it is sharded over.
        compression: Whether to compress it by default.
        operations: Names of the operations that make sense for it.
    """

    make: Callable[[Generator], Branch]
    make_small: Callable[[Generator], Branch]
    gigabytes: int = 0
    devices: int = 1
    compression: bool = True
    operations: tuple[str, ...] = tuple(STANDARD)

    @property
    def is_large(self) -> bool:
        """Whether several of them may not fit into memory."""
        return self.gigabytes > 1


def make_tree(name: str, *, seed: int, small: bool) -> Branch:
    """Return the tree with the given name."""
    tree = TREES[name]
    make = tree.make_small if small else tree.make
    return make(np.random.default_rng(seed))


def tree_nbytes(tree: object) -> int:
    """Return the size of a tree's data: arrays, text in UTF-8, and eight bytes for any number."""
    return sum(map(_leaf_nbytes, jax.tree.leaves(tree)))


def _leaf_nbytes(leaf: object) -> int:
    if isinstance(leaf, jax.Array):
        return leaf.nbytes
    return len(leaf.encode()) if isinstance(leaf, str) else 8


def _normal(rng: Generator, *shape: int, dtype: Any = np.float32) -> jax.Array:
    values = rng.standard_normal(shape, np.float32).astype(dtype)
    # An output of XLA, as the arrays of a model are, whatever memory `device_put` uses.
    return jnp.copy(jax.device_put(values))


def _small_leaves(rng: Generator, *, count: int) -> Branch:
    """Return equal numbers of leaves of 4 KB and 128 bytes, four per layer."""

    def dense() -> Branch:
        return {"kernel": _normal(rng, 32, 32), "bias": _normal(rng, 32)}

    return {f"layer_{i:05}": {"attention": dense(), "mlp": dense()} for i in range(count // 4)}


def _transformer(rng: Generator, *, layers: int, width: int, words: int, positions: int) -> Branch:
    """Return a GPT-2-like model in bfloat16 with its Adam moments in float32."""

    def dense(inputs: int, outputs: int) -> Branch:
        return {"kernel": (inputs, outputs), "bias": (outputs,)}

    norm = {"scale": (width,), "bias": (width,)}
    block = {
        "norm_1": norm,
        "attention": {"qkv": dense(width, 3 * width), "out": dense(width, width)},
        "norm_2": norm,
        "mlp": {"up": dense(width, 4 * width), "down": dense(4 * width, width)},
    }
    shapes = {
        "embedding": {"words": (words, width), "positions": (positions, width)},
        "blocks": {f"{i:02}": block for i in range(layers)},
        "norm": norm,
    }

    def fill(dtype: Any) -> Branch:
        return jax.tree.map(
            lambda shape: _normal(rng, *shape, dtype=dtype),
            shapes,
            is_leaf=lambda node: isinstance(node, tuple),
        )

    return {
        "params": fill(jnp.bfloat16),
        "opt_state": {"mu": fill(np.float32), "nu": fill(np.float32), "count": jnp.int32(1000)},
        "step": jnp.int32(1000),
    }


def _blocks(rng: Generator, *, count: int, nbytes: int) -> Branch:
    """Return equal arrays, square or twice as wide as high."""
    height = 1 << ((nbytes // 4).bit_length() - 1) // 2
    return {f"block_{i:02}": _normal(rng, height, nbytes // 4 // height) for i in range(count)}


def _scalars(rng: Generator, *, count: int) -> Branch:
    """Return Python numbers and text."""
    return {
        f"run_{i:04}": {
            "step": int(rng.integers(2**31)),
            "loss": float(rng.standard_normal()),
            "name": f"experiment {rng.integers(2**31)}",
        }
        for i in range(count // 3)
    }


def _sharded(rng: Generator, *, layers: int, width: int) -> Branch:
    """Return arrays sharded along two axes, along one axis, and fully replicated."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))

    def put(value: jax.Array, *axes: str | None) -> jax.Array:
        return jnp.copy(jax.device_put(value, NamedSharding(mesh, PartitionSpec(*axes))))

    return {
        f"layer_{i:02}": {
            "kernel": put(_normal(rng, 2 * width, width), "data", "model"),
            "out": put(_normal(rng, width, width), None, "model"),
            "bias": put(_normal(rng, width)),
        }
        for i in range(layers)
    }


def _laid_out(rng: Generator, *, place: str, count: int, nbytes: int) -> Branch:
    """Return equal square matrices in a layout over eight devices."""
    width = math.isqrt(nbytes // 4)
    return {
        f"matrix_{i}": jax.device_put(_normal(rng, width, width), layout(place))
        for i in range(count)
    }


def _many(count: int) -> Tree:
    return Tree(
        partial(_small_leaves, count=count),
        partial(_small_leaves, count=count // 250),
        operations=(*STANDARD, "load_leaf"),
    )


def _large(count: int, nbytes: int) -> Tree:
    return Tree(
        partial(_blocks, count=count, nbytes=nbytes),
        partial(_blocks, count=min(count, 4), nbytes=nbytes // 2**12),
        gigabytes=count * nbytes // 2**30,
        compression=False,
    )


def _on_eight(place: str, *operations: str) -> Tree:
    return Tree(
        partial(_laid_out, place=place, count=4, nbytes=64 * MB),
        partial(_laid_out, place=place, count=2, nbytes=2**12),
        devices=DEVICES,
        compression=False,
        operations=("save", *operations),
    )


TREES = {
    **{f"small-{count}": _many(count) for count in (1000, 5000, 20_000, 50_000)},
    "transformer": Tree(
        partial(_transformer, layers=12, width=384, words=50_257, positions=1024),
        partial(_transformer, layers=1, width=8, words=50, positions=16),
    ),
    "16x64MB": _large(16, 64 * MB),
    "1x2GB": _large(1, 2048 * MB),
    "4GB": _large(64, 64 * MB),
    "1x256MB": Tree(
        partial(_blocks, count=1, nbytes=256 * MB),
        partial(_blocks, count=1, nbytes=2**16),
        compression=False,
        operations=(*STANDARD, "load_first_rows", "load_rows"),
    ),
    "scalars": Tree(partial(_scalars, count=3000), partial(_scalars, count=9)),
    "sharded-8": Tree(
        partial(_sharded, layers=16, width=1024), partial(_sharded, layers=1, width=16), devices=8
    ),
    "mesh-2x4": _on_eight("2x4", *RESHARD),
    "replicated-8": _on_eight("replicated", "onto_rows"),
    "rows-8": _on_eight("rows", "onto_columns"),
}
"""All trees by their names on the command line."""

USUAL = ["small-1000", "small-5000", "transformer", "16x64MB", "scalars", "sharded-8"]
"""The default trees, which take seconds."""

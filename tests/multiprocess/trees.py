"""The tree that several processes save, and how each process checks what it has of it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SPECS: dict[str, tuple[Any, ...]] = {
    "sharded": ("x", "y"),
    "large": ("x", "y"),  # its chunks are too large for the B+tree
    "rows": ("x",),
    "columns": (None, "y"),  # the second process has replicas only
    "replicated": (),
    "scalar": (),
}
SHAPES = {"large": (64, 64), "scalar": ()}
OTHERS = {"numpy": np.arange(5, dtype=np.int16), "step": 7, "name": "héllo", "empty": {}}


def host_values() -> dict[str, np.ndarray]:
    """Return the values of all arrays."""
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal(SHAPES.get(name, (8, 4))).astype(np.float32) for name in SPECS
    }


def make_mesh() -> Mesh:
    """Return a mesh of all devices of all processes, four in each test."""
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))


def make_shardings(mesh: Mesh) -> dict[str, NamedSharding]:
    return {name: NamedSharding(mesh, PartitionSpec(*spec)) for name, spec in SPECS.items()}


def make_tree() -> dict[str, Any]:
    """Return the tree, of which this process has a part."""
    values, shardings = host_values(), make_shardings(make_mesh())
    arrays = {
        name: jax.make_array_from_callback(value.shape, shardings[name], value.__getitem__)
        for name, value in values.items()
    }
    data = np.arange(8, dtype=np.uint32).reshape(4, 2)
    rows = NamedSharding(make_mesh(), PartitionSpec("x"))
    keys = jax.make_array_from_callback(data.shape, rows, data.__getitem__)
    return {"arrays": arrays, "keys": jax.random.wrap_key_data(keys), **OTHERS}


def check_tree(tree: dict[str, Any], shardings: dict[str, NamedSharding] | None = None) -> None:
    """Compare all that this process has of a tree, bit for bit."""
    for name, value in host_values().items():
        array = tree["arrays"][name]
        assert array.shape == value.shape, name
        assert array.dtype == value.dtype, name
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == value[shard.index].tobytes(), name
        if shardings is not None:
            assert array.sharding.is_equivalent_to(shardings[name], value.ndim), name
    data = np.arange(8, dtype=np.uint32).reshape(4, 2)
    for shard in jax.random.key_data(tree["keys"]).addressable_shards:
        assert np.asarray(shard.data).tobytes() == data[shard.index].tobytes()
    for name, value in OTHERS.items():
        np.testing.assert_equal(tree[name], value)

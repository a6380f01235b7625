"""Arrays, trees and assertions for tests, under the names of Orbax's `test_utils`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from orbit_ckpt._src.arrays.dtypes import is_prng_dtype
from orbit_ckpt._src.tree.flat_dict import to_flat_dict
from orbit_ckpt._src.type_handlers.base import ParamInfo
from orbit_ckpt._src.type_handlers.single_replica import SingleReplicaArrayRestoreArgs


def is_leaf(x: object) -> bool:
    """Return whether a value is an array of numpy, or a leaf of the trees of this module."""
    return isinstance(x, np.ndarray | Mesh | PartitionSpec | ParamInfo)


def create_sharded_array(arr: Any, mesh: Mesh, mesh_axes: PartitionSpec) -> jax.Array:
    """Return an array or number as a JAX array that is split on a mesh."""
    values = np.asarray(arr)
    sharding = NamedSharding(mesh, mesh_axes)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def replicate_sharded_array(arr: jax.Array) -> jax.Array:
    """Return an array replicated on all devices."""
    sharding = NamedSharding(Mesh(np.asarray(jax.devices()), ("x",)), PartitionSpec())
    return cast(Any, jax).device_put(arr, sharding)


def apply_function(tree: Any, function: Callable[[Any], Any]) -> Any:  # a tree alike
    """Return a tree with a compiled function's result for each array."""
    return jax.tree_util.tree_map(cast(Any, jax).jit(function), tree)


def setup_pytree(add: int = 0) -> dict[str, Any]:
    """Return a tree of four arrays of numpy.

    Args:
        add: Added to all values.
    """
    return {
        "a": np.arange(8) + add,
        "b": 2 * np.arange(16) + add,
        "c": {
            "a": 3 * np.arange(8).reshape(2, 4) + add,
            "e": 4 * np.arange(16).reshape(4, 4) + add,
        },
    }


def setup_sharded_pytree(
    pytree: Any = None, reverse_devices: bool = False, devices: Sequence[jax.Device] | None = None
) -> tuple[Any, Any, Any]:
    """Return a tree of JAX arrays, and the meshes and partitions of each.

    Args:
        pytree: Arrays of numpy in the structure of `setup_pytree`, which makes the default.
        reverse_devices: Whether to use the devices from the last to the first.
        devices: An even number of devices; None for all.
    """
    used = np.asarray(jax.devices() if devices is None else list(devices))
    used = used[::-1] if reverse_devices else used
    line, grid = Mesh(used, ("x",)), Mesh(used.reshape(2, -1), ("x", "y"))
    both = PartitionSpec("x", "y")
    meshes = {"a": line, "b": line, "c": {"a": grid, "e": grid}}
    axes = {"a": PartitionSpec(None), "b": PartitionSpec("x"), "c": {"a": both, "e": both}}
    arrays = setup_pytree() if pytree is None else pytree
    split = jax.tree_util.tree_map(create_sharded_array, arrays, meshes, axes, is_leaf=is_leaf)
    return split, meshes, axes


def assert_array_equal(testclass: Any, v_expected: Any, v_actual: Any) -> None:
    """Assert two leaves to have one class, one dtype and the same values on every device.

    Args:
        testclass: A `unittest.TestCase`.
        v_expected: A leaf.
        v_actual: Another.
    """
    if hasattr(v_expected, "dtype"):
        testclass.assertEqual(v_expected.dtype, v_actual.dtype)
    testclass.assertIsInstance(v_actual, type(v_expected))
    if isinstance(v_expected, jax.Array):
        if is_prng_dtype(v_expected.dtype):
            v_expected, v_actual = jax.random.key_data(v_expected), jax.random.key_data(v_actual)
        expected, actual = v_expected.addressable_shards, v_actual.addressable_shards
        testclass.assertEqual(len(expected), len(actual))
        for one, other in zip(expected, actual, strict=True):
            np.testing.assert_array_equal(other.data, one.data)
    elif isinstance(v_expected, np.ndarray):
        np.testing.assert_array_equal(v_actual, cast(Any, v_expected))
    else:
        testclass.assertEqual(v_expected, v_actual)


def assert_tree_equal(testclass: Any, expected: Any, actual: Any) -> None:
    """Assert two trees to have the same structure and equal leaves; see `assert_array_equal`."""
    testclass.assertEqual({*to_flat_dict(expected)}, {*to_flat_dict(actual)})

    def compare(value: Any, other: Any) -> None:
        if value is not None:
            assert_array_equal(testclass, value, other)

    jax.tree_util.tree_map(compare, expected, actual, is_leaf=_is_none)


def _is_none(value: object) -> bool:
    return value is None


def assert_tree_same_structure(testclass: Any, expected: Any, actual: Any) -> None:
    """Assert two trees to have the same structure."""
    structures = map(jax.tree_util.tree_structure, (expected, actual))
    testclass.assertEqual(*structures)


def assert_every_n_is_x_apart(testclass: Any, values: Sequence[float], n: int, x: float) -> None:
    """Assert each of several numbers to be larger by 0.95 `x` than the one `n` places below."""
    ordered = sorted(values)
    testclass.assertEqual(len(ordered) % n, 0)
    for lower, higher in zip(ordered, ordered[n:], strict=False):
        testclass.assertGreaterEqual(higher, lower + 0.95 * x)


def filter_metadata_fields(pytree: Any, include_fields: Sequence[str]) -> Any:  # a tree alike
    """Return a tree with a dict of some attributes for each leaf; those it lacks are left out."""

    def select(leaf: object) -> dict[str, object]:
        return {name: getattr(leaf, name) for name in include_fields if hasattr(leaf, name)}

    return jax.tree_util.tree_map(select, pytree)


def create_single_replica_restore_args(
    arr: jax.Array, mesh: Mesh, pspec: PartitionSpec
) -> SingleReplicaArrayRestoreArgs:
    """Return arguments that restore an array by reading one replica, and sending it to others."""
    return SingleReplicaArrayRestoreArgs(
        sharding=NamedSharding(mesh, pspec), global_shape=arr.shape, dtype=arr.dtype
    )

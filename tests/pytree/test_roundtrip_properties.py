"""Round trips of random trees, arrays and shardings."""

from __future__ import annotations

import jax
import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

import orbit_ckpt as ocp
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import find_name_collisions, name_path
from orbit_ckpt.testing.strategies import (
    LENGTHS,
    jax_arrays,
    numpy_arrays,
    save_args,
    shapes,
    shardings,
    trees,
)
from tests.support import assert_same_leaf, assert_same_tree, checkpointer, scratch

layouts = st.fixed_dictionaries(
    {"use_ocdbt": st.booleans(), "use_zarr3": st.booleans(), "use_compression": st.booleans()}
)


def storable(tree: object) -> bool:
    """Whether no two leaves share a storage name."""
    return not find_name_collisions([name_path(path) for path in flatten(tree).paths])


@given(trees())
def test_tree_comes_back_as_it_was(tree: object) -> None:
    assume(storable(tree))
    with scratch() as path:
        ocp.save(path, tree)
        assert_same_tree(ocp.load(path), tree)


@given(trees(), layouts)
def test_tree_comes_back_into_itself(tree: object, layout: dict[str, bool]) -> None:
    assume(storable(tree))
    tree = {"tree": tree}  # names of files are not free at the root
    with scratch() as path:
        try:
            checkpointer(**layout).save(path, tree)
        except ocp.errors.NameCollisionError:
            assume(layout["use_ocdbt"])  # else some names cannot be directories
            raise
        assert_same_tree(ocp.load(path, like=tree), tree)


@given(st.data(), layouts, st.sampled_from([None, 0, 5000]))
def test_array_comes_back_however_it_is_cut_and_stored(
    data: st.DataObject, layout: dict[str, bool], file_size: int | None
) -> None:
    large = st.just((64, 160))  # large enough to be compressed
    host = data.draw(numpy_arrays(shape=shapes(LENGTHS) | large))
    sharded = data.draw(jax_arrays())
    tree = {"host": host, "sharded": sharded}
    args = {name: data.draw(save_args(array)) for name, array in tree.items()}
    with scratch() as path:
        checkpointer(**layout).save(
            path, args=ocp.args.PyTreeSave(tree, args, ocdbt_target_data_file_size=file_size)
        )
        assert_same_tree(ocp.load(path), tree)


@given(st.data(), layouts)
def test_array_saved_on_any_devices_is_restored_on_any_others(
    data: st.DataObject, layout: dict[str, bool]
) -> None:
    array = data.draw(jax_arrays())
    target = data.draw(shardings(array.shape))
    args = data.draw(save_args(array))
    host = np.asarray(array)
    wanted = jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=target)
    with scratch() as path:
        checkpointer(**layout).save(path, args=ocp.args.PyTreeSave({"a": array}, {"a": args}))
        found = ocp.load(path, like={"a": wanted})["a"]
        assert_same_leaf(found, jax.device_put(host, target))
        for shard in found.addressable_shards:
            assert_same_leaf(np.asarray(shard.data), np.asarray(host[shard.index]))
        assert_same_leaf(ocp.load(path, like={"a": host})["a"], host)


@given(st.data(), st.booleans())
def test_array_is_padded_and_cut_on_any_devices(data: st.DataObject, use_zarr3: bool) -> None:
    array = data.draw(jax_arrays())
    shape = tuple(data.draw(st.sampled_from(LENGTHS)) for _ in array.shape)
    target = data.draw(shardings(shape))
    host = np.asarray(array)
    expected = np.zeros(shape, host.dtype)
    common = tuple(slice(min(a, b)) for a, b in zip(shape, host.shape, strict=True))
    expected[common] = host[common]
    restore_args = ocp.ArrayRestoreArgs(sharding=target, global_shape=shape, strict=False)
    with scratch() as path:
        trees = checkpointer(use_zarr3=use_zarr3)
        trees.save(path, {"a": array})
        found = trees.restore(path, restore_args={"a": restore_args})["a"]
    assert_same_leaf(found, jax.device_put(expected, target))


@given(numpy_arrays(shape=shapes(LENGTHS)), st.data())
def test_arrays_that_are_not_contiguous_come_back(array: np.ndarray, data: st.DataObject) -> None:
    step = st.sampled_from([slice(None), slice(None, None, 2), slice(None, None, -1), slice(1, 3)])
    view = array[tuple(data.draw(step) for _ in array.shape)]
    view = view.transpose(data.draw(st.permutations(range(view.ndim))))
    with scratch() as path:
        ocp.save(path, {"a": view})
        assert_same_leaf(ocp.load(path)["a"], view)

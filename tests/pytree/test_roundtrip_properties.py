"""Round trips of random trees, arrays and shardings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt._src.tree.flatten import flatten
from orbit_ckpt._src.tree.keypath import find_name_collisions, name_path
from tests.support import assert_same_leaf, assert_same_tree, checkpointer, make_mesh, scratch

Shape = tuple[int, ...]

JAX_DTYPES = [
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"),
    *("complex64", "bfloat16", "int4", "uint4", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"),
]
NUMPY_DTYPES = [
    *JAX_DTYPES,
    *("int64", "uint64", "float64", "complex128", "float6_e2m3fn", "float8_e8m0fnu", "int2"),
    *(">i4", ">f8", ">c8", "datetime64[s]", "timedelta64[ns]"),
]
MESHES: list[dict[str, int]] = [
    *({"x": 1}, {"x": 2}, {"x": 3}, {"x": 8}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}),
    {"x": 3, "y": 2},
]
LENGTHS = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24]


class Pair(NamedTuple):
    first: object
    second: object


class Single(NamedTuple):
    only: object


def shapes(lengths: Sequence[int] = range(6)) -> st.SearchStrategy[Shape]:
    return st.lists(st.sampled_from(lengths), max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[str], shape: st.SearchStrategy[Shape]) -> np.ndarray:
    """Draw an array of random bits: every NaN, infinity and denormal number may occur."""
    dtype, drawn = np.dtype(draw(st.sampled_from(dtypes))), draw(shape)
    seed = draw(st.integers(0, 2**32 - 1))
    size = math.prod(drawn) * dtype.itemsize
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    if dtype.itemsize == 1 and dtype.name not in ("int8", "uint8"):
        bits = 1 if dtype.kind == "b" else getattr(_info(dtype), "bits", 8)
        data &= 2**bits - 1
    if dtype.name in ("int2", "int4"):  # kept with their sign in all eight bits
        data = data.astype(np.int8).astype(dtype).view(np.uint8)
    return data.view(dtype).reshape(drawn)


def _info(dtype: np.dtype) -> Any:
    return ml_dtypes.iinfo(dtype) if "int" in dtype.name else ml_dtypes.finfo(dtype)


@st.composite
def shardings(draw: st.DrawFn, shape: Shape) -> NamedSharding:
    """Draw a sharding that divides a shape, over any of the eight devices."""
    axes = draw(st.sampled_from(MESHES))
    unused = draw(st.permutations(list(axes)))
    spec: list[tuple[str, ...] | None] = []
    for length in shape:
        taken = unused[: draw(st.integers(0, len(unused)))]
        if taken and length % math.prod(axes[axis] for axis in taken) == 0:
            spec.append(tuple(taken))
            unused = unused[len(taken) :]
        else:
            spec.append(None)
    return NamedSharding(make_mesh(**axes), PartitionSpec(*spec))


@st.composite
def jax_arrays(draw: st.DrawFn) -> jax.Array:
    host = draw(arrays(JAX_DTYPES, shapes(LENGTHS)))
    return jax.device_put(host, draw(shardings(host.shape)))


@st.composite
def save_args(draw: st.DrawFn, array: np.ndarray | jax.Array) -> ocp.SaveArgs:
    """Draw how to cut an array, into at most a few hundred chunks."""
    limit = max(array.dtype.itemsize, array.nbytes // draw(st.integers(1, 40)))
    axes = (
        st.sets(st.sampled_from(range(array.ndim)))
        if array.ndim and array.size < 300
        else st.just(())
    )
    return ocp.SaveArgs(
        chunk_byte_size=draw(st.sampled_from([None, limit])), shard_axes=tuple(draw(axes))
    )


scalars = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.floats(),
    st.complex_numbers(),
    arrays(NUMPY_DTYPES, st.just(())).map(lambda array: array[()]),
)
leaves = st.one_of(
    scalars,
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sampled_from([None, {}, [], ()]),
    arrays(NUMPY_DTYPES, shapes()),
    jax_arrays(),
)


def containers(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    odd_names = st.text(max_size=4) | st.sampled_from(
        ["a", "a.b", "a/b", "~", "0", ".", "category"]
    )
    return st.one_of(
        st.dictionaries(odd_names, inner, max_size=4),
        st.dictionaries(st.integers(-2, 12), inner, max_size=4),
        st.dictionaries(st.tuples(st.integers(0, 1), odd_names), inner, max_size=2),
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Single, inner),
    )


trees = st.recursive(leaves, containers, max_leaves=12)
layouts = st.fixed_dictionaries(
    {"use_ocdbt": st.booleans(), "use_zarr3": st.booleans(), "use_compression": st.booleans()}
)


def storable(tree: object) -> bool:
    """Whether no two leaves share a storage name."""
    return not find_name_collisions([name_path(path) for path in flatten(tree).paths])


@given(trees)
def test_tree_comes_back_as_it_was(tree: object) -> None:
    assume(storable(tree))
    with scratch() as path:
        ocp.save(path, tree)
        assert_same_tree(ocp.load(path), tree)


@given(trees, layouts)
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
    host = data.draw(arrays(NUMPY_DTYPES, shapes(LENGTHS) | large))
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


@given(arrays(NUMPY_DTYPES, shapes(LENGTHS)), st.data())
def test_arrays_that_are_not_contiguous_come_back(array: np.ndarray, data: st.DataObject) -> None:
    step = st.sampled_from([slice(None), slice(None, None, 2), slice(None, None, -1), slice(1, 3)])
    view = array[tuple(data.draw(step) for _ in array.shape)]
    view = view.transpose(data.draw(st.permutations(range(view.ndim))))
    with scratch() as path:
        ocp.save(path, {"a": view})
        assert_same_leaf(ocp.load(path)["a"], view)

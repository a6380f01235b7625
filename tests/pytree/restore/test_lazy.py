"""Lazy arrays: what they read and when, what they give, and what they do not give any more."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

import orbit_ckpt as ocp
from orbit_ckpt._src.pytree.engine import TreeIO
from orbit_ckpt._src.pytree.restore.target import RestoreOptions
from orbit_ckpt.errors import CheckpointNotFoundError, CorruptionError, TreeMismatchError
from orbit_ckpt.transform import Cast, Rename, Stack
from tests.support import LAYOUTS, assert_same_leaf, assert_same_tree, checkpointer, make_mesh, put

Layout = dict[str, bool]


def bytes_read(lazy: Any) -> int:
    """Return how much of chunks was read for a lazy array and the others of its tree."""
    return lazy.leaf.info.load_batch.reader.bytes_read


def got(tree: Any) -> Any:
    """Return a tree with the values of lazy arrays."""
    return jax.tree.map(lambda leaf: leaf.get() if isinstance(leaf, ocp.LazyArray) else leaf, tree)


def state() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(24, 16)).astype(np.float32)
    return {
        "jax": {
            "plain": jnp.asarray(noise),
            "bfloat16": jnp.asarray(noise, jnp.bfloat16),
            "int4": jnp.arange(-8, 8).astype(jnp.int4),
            "scalar": jnp.float32(2.5),
            "split": put(noise, "x", x=8),
            "split_twice": put(noise, "x", "y", x=4, y=2),
            "replicated": put(noise, x=8),
        },
        "numpy": {
            "plain": noise.astype(np.float64),
            "fortran": np.asfortranarray(noise),
            "foreign": noise.astype(ml_dtypes.float8_e4m3),
            "dates": np.arange(5).astype("datetime64[ms]"),
            "empty": np.zeros((0, 3), np.int16),
            "no_dimensions": np.array(3),
            "large": rng.integers(0, 2**60, (200, 30)),
        },
        "keys": jax.random.split(jax.random.key(3), 6).reshape(2, 3),
        "key": jax.random.key(1, impl="rbg"),
        "others": [1, 2.5, True, "text", b"bytes", np.float32(1.5), None, {}, (), np.bytes_(b"x")],
    }


SAVE_ARGS = {
    "jax": {"plain": ocp.SaveArgs(chunk_byte_size=100)},
    "numpy": {"large": ocp.SaveArgs(chunk_byte_size=4000), "plain": ocp.SaveArgs(shard_axes=(1,))},
}


def save_state(path: Path, *, use_compression: bool = True, **layout: bool) -> None:
    args = ocp.args.PyTreeSave(state(), SAVE_ARGS)
    checkpointer(use_compression=use_compression, **layout).save(path, args=args)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_those_of_a_load_that_is_not_lazy(layout: Layout, tmp_path: Path) -> None:
    save_state(tmp_path / "x", **layout)
    lazy = ocp.load(tmp_path / "x", lazy=True)
    assert_same_tree(got(lazy), ocp.load(tmp_path / "x"))
    assert_same_tree(got(lazy), state())


def test_scalars_strings_and_containers_are_not_lazy(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", state())
    lazy = ocp.load(tmp_path / "x", lazy=True)
    assert_same_tree(lazy["others"], state()["others"])
    arrays = jax.tree.leaves({**lazy, "others": None})
    assert all(isinstance(leaf, ocp.LazyArray) for leaf in arrays)


def test_attributes_are_those_of_the_array_and_nothing_is_read_for_them(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", state())
    lazy, metadata = ocp.load(tmp_path / "x", lazy=True), ocp.metadata(tmp_path / "x")
    for group in ("jax", "numpy"):
        for name, array in state()[group].items():
            leaf = lazy[group][name]
            assert (leaf.shape, leaf.dtype) == (array.shape, array.dtype), name
            assert (leaf.ndim, leaf.size, leaf.nbytes) == (array.ndim, array.size, array.nbytes)
            assert leaf.sharding == metadata[group][name].sharding
            assert array.ndim == 0 or len(leaf) == len(array)
            assert repr(leaf).startswith(f"LazyArray('{group}/{name}' in '{tmp_path}/x', shape=")
    assert lazy["keys"].shape == (2, 3)
    assert lazy["keys"].dtype == state()["keys"].dtype
    with pytest.raises(TypeError, match="without dimensions"):
        len(lazy["numpy"]["no_dimensions"])
    assert bytes_read(lazy["key"]) < 100  # of the scalars, which are not lazy


@pytest.mark.parametrize("use_compression", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_chunks_are_read_that_an_index_touches(
    layout: Layout, use_compression: bool, tmp_path: Path
) -> None:
    value = np.random.default_rng(0).integers(0, 2**60, (64, 64))
    args = ocp.args.PyTreeSave({"w": value}, {"w": ocp.SaveArgs(chunk_byte_size=8 * 8 * 8)})
    checkpointer(use_compression=use_compression, **layout).save(tmp_path / "x", args=args)
    assert ocp.metadata(tmp_path / "x")["w"].storage.chunk_shape == (8, 8)

    def chunks_read(read: Callable[[Any], object]) -> float:
        lazy = ocp.load(tmp_path / "x", lazy=True)["w"]
        assert bytes_read(lazy) == 0
        read(lazy)
        return bytes_read(lazy) / (8 * 8 * 8)

    def about(chunks: int) -> Any:
        return pytest.approx(chunks, rel=0.1)  # with checksums, and what zstd adds to noise

    assert chunks_read(lambda w: (w.astype(np.float32), w.shape, repr(w))) == 0
    assert chunks_read(lambda w: w[:0]) == 0
    if not (use_compression or layout["use_ocdbt"] or layout["use_zarr3"]):
        assert chunks_read(lambda w: w[3, 5]) * (8 * 8 * 8) == 8  # nothing but the elements
        assert chunks_read(lambda w: w[7:9, 7:9]) * (8 * 8 * 8) == 4 * 8
        return
    assert chunks_read(lambda w: w[3, 5]) == about(1)
    assert chunks_read(lambda w: w[7:9, 7:9]) == about(4)
    assert chunks_read(lambda w: w[0]) == about(8)
    assert chunks_read(lambda w: w[:, ::16]) == about(32)
    assert chunks_read(lambda w: w[60:3:-30, ::-63]) == about(4)
    assert chunks_read(lambda w: w[[0, 63, 1], [9, 8, 63]]) == about(4)
    assert chunks_read(lambda w: w.get()) == about(64)
    is_in_index = layout["use_ocdbt"] and not (use_compression or layout["use_zarr3"])
    assert chunks_read(lambda w: (w[0, 0], w[0, 1], w[1, :9])) == about(4 if is_in_index else 2)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the lazy state from checkpoints of every layout."""
    root = tmp_path_factory.mktemp("stores")
    found: list[Any] = []
    for number, (layout,) in enumerate(parameters.values for parameters in LAYOUTS):
        for use_compression in (True, False):
            path = root / f"{number}{use_compression}"
            save_state(path, use_compression=use_compression, **cast(Layout, layout))
            found.append(ocp.load(path, lazy=True))
    return found


@given(data=st.data())
def test_any_part_is_that_of_the_array(data: st.DataObject, stores: list[Any]) -> None:
    value, lazy = state(), data.draw(st.sampled_from(stores))
    group = data.draw(st.sampled_from(["jax", "numpy"]))
    name = data.draw(st.sampled_from(sorted(value[group])))
    array = np.asarray(value[group][name])
    index = data.draw(st_np.basic_indices(array.shape, allow_newaxis=True))
    found = lazy[group][name][index]
    assert type(found) is np.ndarray
    assert_same_leaf(found, np.asarray(array[index]))
    assert np.array_equal(np.asarray(found[...]).tobytes(), np.asarray(array[index]).tobytes())


@pytest.mark.parametrize("chunk", [3, 5, 6])
def test_steps_and_lists_choose_from_every_chunk_also_if_one_has_as_many_elements(
    chunk: int, tmp_path: Path
) -> None:
    value = np.arange(30, dtype=np.int32)
    tree, args = {"w": value}, {"w": ocp.SaveArgs(chunk_byte_size=chunk * 4)}
    with checkpointer() as ckptr:
        ckptr.save(tmp_path / "x", args=ocp.args.PyTreeSave(tree, save_args=args))
    w = ocp.load(tmp_path / "x", lazy=True)["w"]
    for length in range(1, 30):
        for index in (slice(None, length, 2), slice(length, None, 3), [0, 2, length], [length, 29]):
            assert np.array_equal(w[index], value[index]), index


def test_parts_belong_to_the_caller(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"w": np.arange(12).reshape(3, 4)})
    w = ocp.load(tmp_path / "x", lazy=True)["w"]
    part = w[1:]
    part += 100
    whole = w.get()
    whole += 100
    assert np.array_equal(w[...], np.arange(12).reshape(3, 4))
    assert [row.tolist() for row in w] == np.arange(12).reshape(3, 4).tolist()


def test_an_index_out_of_range_is_an_index_error(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"w": np.arange(12).reshape(3, 4)})
    w = ocp.load(tmp_path / "x", lazy=True)["w"]
    for index in (3, -4, (0, 4), (0, 0, 0), [3], True, 0.5):
        with pytest.raises(IndexError):
            w[index]
    assert bytes_read(w) == 0


def test_numpy_takes_a_lazy_array_for_an_array(tmp_path: Path) -> None:
    value = np.arange(12.0).reshape(3, 4)
    ocp.save(tmp_path / "x", {"w": value, "j": jnp.asarray(value), "k": jax.random.key(0)})
    lazy = ocp.load(tmp_path / "x", lazy=True)
    assert np.array_equal(np.asarray(lazy["w"]), value)
    assert np.array_equal(lazy["w"] + np.ones(4), value + 1)
    assert np.asarray(lazy["j"], np.int8).dtype == np.int8
    assert np.array_equal(jnp.asarray(lazy["j"]), value)
    with pytest.raises(ValueError, match="w: a lazy array must be read"):
        np.array(lazy["w"], copy=False)
    with pytest.raises(TypeError, match="k: PRNG keys are no numbers"):
        np.asarray(lazy["k"])


def test_values_are_cast_as_they_are_read(tmp_path: Path) -> None:
    value = np.arange(300).reshape(3, 100)
    floats, mixed = jnp.asarray(value, jnp.float32), np.array([1, 1000, 2])
    tree = {"n": value, "m": mixed, "j": floats, "k": jax.random.key(0)}
    ocp.save(tmp_path / "x", tree)
    lazy = ocp.load(tmp_path / "x", lazy=True)
    n, j = lazy["n"].astype(np.float32), lazy["j"].astype(jnp.bfloat16)
    assert (n.dtype, n.nbytes, j.dtype) == (np.float32, 1200, jnp.bfloat16)
    assert lazy["n"].dtype == np.int64
    assert_same_leaf(n.get(), value.astype(np.float32))
    assert_same_leaf(n[1, ::3], value.astype(np.float32)[1, ::3])
    assert_same_leaf(j.get(), jnp.asarray(value, jnp.bfloat16))
    assert_same_leaf(n.astype(np.int16).get(), value.astype(np.int16))
    with pytest.raises(TreeMismatchError, match="n: some of its numbers of dtype int64 do not"):
        lazy["n"].astype(np.int8).get()
    # what is not chosen need not fit, also if it is in the same chunk
    assert_same_leaf(lazy["m"].astype(np.int8)[::2], np.array([1, 2], np.int8))
    with pytest.raises(TypeError, match="k: PRNG keys cannot be cast"):
        lazy["k"].astype(np.uint32)
    with pytest.raises(TypeError):
        lazy["n"].astype("no such dtype")


def test_copies_are_the_same_and_pickles_are_refused(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", {"w": np.arange(3)})
    lazy = ocp.load(tmp_path / "x", lazy=True)
    assert copy.deepcopy(lazy)["w"] is copy.copy(lazy["w"]) is lazy["w"]
    with pytest.raises(TypeError, match=r"LazyArray\('w' in .* cannot be pickled; call get"):
        pickle.dumps(lazy)


def test_keys_are_keys_also_in_part(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", state())
    lazy, keys = ocp.load(tmp_path / "x", lazy=True), state()["keys"]
    for index in (0, (1, 2), (slice(None), -1), (..., slice(None, None, -2)), (None, 0), [1, 0]):
        assert_same_leaf(lazy["keys"][index], keys[jnp.array(index) if index == [1, 0] else index])
    with pytest.raises(IndexError, match="2 dimensions, not 3"):
        lazy["keys"][0, 0, 0]
    assert_same_leaf(lazy["key"][...], state()["key"])


def test_any_event_loop_and_any_thread_may_read(tmp_path: Path) -> None:
    value = {str(i): np.full((100, 100), i) for i in range(20)}
    ocp.save(tmp_path / "x", value)
    limited = TreeIO(memory=ocp.MemoryOptions(read_concurrent_bytes=1))
    lazy = cast(dict[str, Any], limited.restore(tmp_path / "x", RestoreOptions(lazy=True)))
    # the limit of a load belongs to its event loop
    assert lazy["0"].leaf.info.load_batch.reader.limiter.max_bytes is None

    async def read() -> list[np.ndarray]:
        return await asyncio.gather(*(leaf.get_async() for leaf in lazy.values()))

    async def read_within() -> np.ndarray:
        return lazy["3"].get()  # of a caller that has a loop already

    assert_same_leaf(asyncio.run(read_within()), value["3"])
    one = bytes_read(lazy["0"])
    assert_same_tree(dict(zip(lazy, asyncio.run(read()), strict=True)), value)
    barrier = threading.Barrier(4)

    def read_in_thread(_: int) -> Any:
        barrier.wait()
        return asyncio.run(read())

    once, before = bytes_read(lazy["0"]) - one, bytes_read(lazy["0"])
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(read_in_thread, range(4)):
            assert_same_tree(dict(zip(lazy, found, strict=True)), value)
    assert bytes_read(lazy["0"]) == before + 4 * once


def test_a_target_says_what_comes_of_lazy_arrays(tmp_path: Path) -> None:
    value = np.arange(64, dtype=np.float32).reshape(8, 8)
    tree = {"a": put(value, "x", x=8), "b": jnp.asarray(value), "c": value, "d": 3}
    ocp.save(tmp_path / "x", tree)
    sharding = jax.sharding.NamedSharding(make_mesh(y=2), jax.sharding.PartitionSpec("y"))
    like = {
        "a": jax.ShapeDtypeStruct((8, 8), jnp.bfloat16, sharding=sharding),
        "b": value.astype(np.float16),
        "c": jax.ShapeDtypeStruct((8, 8), np.float32, sharding=sharding),
        "d": 0.0,
    }
    lazy = ocp.load(tmp_path / "x", like, lazy=True)
    assert lazy["d"] == 3.0
    assert (lazy["a"].dtype, lazy["a"].sharding) == (jnp.bfloat16, sharding)
    assert lazy["b"].sharding is None
    assert_same_tree(got(lazy), ocp.load(tmp_path / "x", like))
    assert_same_leaf(lazy["a"][3], value[3].astype(jnp.bfloat16))
    with pytest.raises(TreeMismatchError, match=r"a.*shape \(8, 9\) wanted"):
        ocp.load(tmp_path / "x", {**like, "a": jnp.zeros((8, 9))}, lazy=True)
    again = ocp.load(tmp_path / "x", lazy, lazy=True)
    assert_same_tree(got(again), got(lazy))


def test_a_target_that_is_not_strict_pads_and_cuts_parts_too(tmp_path: Path) -> None:
    value = np.arange(48, dtype=np.float32).reshape(8, 6)
    ocp.save(tmp_path / "x", {"w": jnp.asarray(value)})
    like = {"w": jax.ShapeDtypeStruct((10, 4), np.float32)}
    lazy = ocp.load(tmp_path / "x", like, strict=False, lazy=True)["w"]
    expected = np.zeros((10, 4), np.float32)
    expected[:8] = value[:, :4]
    assert lazy.shape == (10, 4)
    assert_same_leaf(np.asarray(lazy.get()), expected)
    for index in (slice(6, 10), -1, (slice(None, None, 3), 2), [9, 0]):
        assert_same_leaf(lazy[index], np.asarray(expected[index]))


def test_rules_rename_and_cast_lazily_and_compute_at_once(tmp_path: Path) -> None:
    value = {f"layer_{i}": {"w": np.full((4, 4), i), "b": np.arange(i)} for i in range(3)}
    ocp.save(tmp_path / "x", value)
    rules = [
        Stack("layer_*/w", "w"),
        Rename("layer_*/b", r"biases/\1"),
        Cast("biases/2", np.int8),
    ]
    lazy = ocp.load(tmp_path / "x", transforms=rules, lazy=True)
    assert isinstance(lazy["w"], np.ndarray)
    assert_same_tree(got(lazy), ocp.load(tmp_path / "x", transforms=rules))
    assert "biases/2" in repr(lazy["biases"]["2"])
    part = ocp.load(tmp_path / "x", only="layer_1/**", lazy=True)
    assert_same_tree(got(part), {"layer_1": value["layer_1"]})


def test_a_dtype_that_jax_cannot_hold_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        ocp.save(tmp_path / "x", {"w": jnp.arange(4.0, dtype=jnp.float64)})
    lazy = ocp.load(tmp_path / "x", lazy=True)["w"]
    assert lazy.dtype == np.float64
    assert_same_leaf(lazy[1:], np.arange(1.0, 4.0))
    with pytest.raises(ocp.errors.UnsupportedLeafError, match="w: JAX arrays of dtype float64"):
        lazy.get()
    assert_same_leaf(lazy.astype(np.float32).get(), jnp.arange(4, dtype=np.float32))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_damage_names_leaf_chunk_and_file(layout: Layout, tmp_path: Path) -> None:
    path = tmp_path / "x"
    value = np.random.default_rng(0).normal(size=(64, 64))
    save_args = {"p": {"w": ocp.SaveArgs(chunk_byte_size=8192)}}
    args = ocp.args.PyTreeSave({"p": {"w": value}}, save_args)
    checkpointer(**layout).save(path, args=args)
    lazy = ocp.load(path, lazy=True)["p"]["w"]
    files = [f for f in path.rglob("*") if f.is_file() and f.stat().st_size > 4096]
    for file in files:
        damaged = bytearray(file.read_bytes())
        damaged[2000] ^= 1
        file.write_bytes(damaged)
    for read in (lazy.get, lambda: lazy[...], lambda: lazy[5, 5]):
        with pytest.raises(CorruptionError, match=r"p/w") as caught:
            read()
        assert caught.value.path == "p/w"
        assert (caught.value.chunk or "").startswith("p.w/")
        assert caught.value.file in [str(file) for file in files]
    for file in files:
        file.unlink()
    with pytest.raises(CorruptionError, match=r"p\.w.*missing"):
        lazy.get()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_that_was_deleted_moved_or_replaced_is_never_read(
    layout: Layout, tmp_path: Path
) -> None:
    path = tmp_path / "x"

    def save(value: float) -> None:
        checkpointer(**layout).save(path, {"w": np.full((50, 50), value)}, force=True)

    def refused(match: str) -> None:
        for read in (lazy.get, lambda: lazy[0], lambda: np.asarray(lazy)):
            with pytest.raises(CheckpointNotFoundError, match=f"w cannot be .* any more.*{match}"):
                read()

    save(1)
    lazy = ocp.load(path, lazy=True)["w"]
    assert lazy[0, 0] == 1
    save(2)
    refused("replaced by another one")
    lazy = ocp.load(path, lazy=True)["w"]
    path.rename(tmp_path / "y")
    refused("deleted or moved")
    (tmp_path / "y").rename(path)
    assert lazy[0, 0] == 2  # it is the same again
    shutil.rmtree(path)
    refused("deleted or moved")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_that_changes_after_it_was_read_is_checked_again(
    layout: Layout, tmp_path: Path
) -> None:
    """zarr2 has no checksums in its chunks, only the manifest has some of its files."""
    value = np.random.default_rng(0).normal(size=(640, 64))
    checkpointer(**layout, use_compression=False).save(tmp_path / "x", {"w": value})
    lazy = ocp.load(tmp_path / "x", lazy=True)["w"]
    assert_same_leaf(lazy[320], value[320])
    (file,) = (f for f in (tmp_path / "x").rglob("*") if f.is_file() and f.stat().st_size > 9999)
    damaged = bytearray(file.read_bytes())
    damaged[file.stat().st_size // 2] ^= 1
    file.write_bytes(damaged)
    for read in (lazy.get, lambda: lazy[319:321]):
        with pytest.raises(CorruptionError, match=r"^w: "):
            read()


def test_no_file_stays_open(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", state())

    def read() -> Any:
        lazy = ocp.load(tmp_path / "x", lazy=True)
        got(lazy)
        assert lazy["numpy"]["large"][3:5].shape == (2, 30)
        return lazy

    kept = [read()]  # the first time libraries open files of their own
    before = sorted(os.listdir("/proc/self/fd"))
    kept += [read() for _ in range(3)]
    assert sorted(os.listdir("/proc/self/fd")) == before

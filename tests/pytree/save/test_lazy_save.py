"""Saving lazy arrays: what is written, what is held in memory, what can go wrong."""

from __future__ import annotations

import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorstore as ts

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays import memory
from orbit_ckpt._src.storage import batch_write, part_write
from orbit_ckpt._src.type_handlers.base import load_batch_of
from orbit_ckpt.errors import CheckpointError, CheckpointNotFoundError, TreeMismatchError
from tests.support import LAYOUTS, assert_same_leaf, assert_same_tree, checkpointer, put

Layout = dict[str, bool]


def training_state(step: int = 7) -> dict[str, Any]:
    """Return a state like one of T5X, with some leaves that few programs have."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(64, 48)).astype(np.float32)
    return {
        "step": step,
        "params": {
            "split": put(noise, "x", x=8),
            "split_twice": put(noise, "x", "y", x=4, y=2),
            "replicated": put(noise, x=8),
            "bfloat16": jnp.asarray(noise, jnp.bfloat16),
            "scalar": jnp.float32(2.5),
        },
        "opt_state": ({"mu": noise.astype(np.float64), "count": np.array(3)}, ()),
        "others": {
            "key": jax.random.key(1, impl="rbg"),
            "keys": jax.random.split(jax.random.key(3), 6),
            "dates": np.arange(5).astype("datetime64[ms]"),
            "foreign": noise.astype(ml_dtypes.float8_e4m3),
            "int4": jnp.arange(-8, 8).astype(jnp.int4),
            "empty": np.zeros((0, 3), np.int16),
            "bytes": b"bytes",
            "name": "a run",
        },
    }


SAVE_ARGS = {
    "params": {"split": ocp.SaveArgs(chunk_byte_size=500)},
    "opt_state": ({"mu": ocp.SaveArgs(chunk_byte_size=4000)}, ()),
}


def save_chunked(path: Path, tree: object, **layout: bool) -> None:
    checkpointer(**layout).save(path, args=ocp.args.PyTreeSave(tree, SAVE_ARGS))


def bytes_read(tree: Any) -> int:
    """Return how much of chunks was read for lazy arrays and the others of their tree."""
    lazy = next(leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, ocp.LazyArray))
    return load_batch_of(lazy.leaf.info).reader.bytes_read


@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("source", LAYOUTS)
def test_what_is_saved_again_is_the_same_bit_for_bit(
    source: Layout, target: Layout, tmp_path: Path
) -> None:
    save_chunked(tmp_path / "a", training_state(), **source)
    lazy = ocp.load(tmp_path / "a", lazy=True)
    checkpointer(**target).save(tmp_path / "b", lazy)
    ocp.save_async(tmp_path / "c", lazy).result()
    for name in "bc":
        assert_same_tree(ocp.load(tmp_path / name), training_state())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_typestrs_shardings_and_chunks_stay(layout: Layout, tmp_path: Path) -> None:
    save_chunked(tmp_path / "a", training_state(), **layout)
    checkpointer(**layout).save(tmp_path / "b", ocp.load(tmp_path / "a", lazy=True))
    trees = (ocp.metadata(tmp_path / name).tree for name in "ab")
    for one, other in zip(*map(jax.tree.leaves, trees), strict=True):
        assert type(one) is type(other)
        if hasattr(one, "shape"):
            described = (other.shape, other.dtype, other.sharding)
            assert (one.shape, one.dtype, one.sharding) == described
            assert one.storage.chunk_shape == other.storage.chunk_shape
            assert (one.storage.write_shape is None) == (other.storage.write_shape is None)
    documents = [(tmp_path / name / "_METADATA").read_bytes() for name in "ab"]
    for typestr in (b"jax.Array", b"np.ndarray"):
        before, after = (text.count(typestr) for text in documents)
        assert before == after > 0


def test_load_bump_the_step_and_save(tmp_path: Path) -> None:
    """As T5X's users do with `lazy_parameters`."""
    ocp.save(tmp_path / "7", training_state(7))
    state = ocp.load(tmp_path / "7", lazy=True)
    state["step"] += 1
    state["params"]["scalar"] = state["params"]["scalar"].get() + 1
    in_between = bytes_read(state)
    ocp.save(tmp_path / "8", state)
    expected = training_state(8)
    expected["params"]["scalar"] += 1
    assert_same_tree(ocp.load(tmp_path / "8"), expected)
    assert in_between < 100 < bytes_read(state)
    ocp.save(tmp_path / "9", state, cast={"params/**": jnp.float16})
    found = ocp.load(tmp_path / "9")
    assert_same_leaf(found["params"]["split"], expected["params"]["split"].astype(jnp.float16))
    assert_same_leaf(found["others"]["dates"], expected["others"]["dates"])


def test_each_chunk_is_read_once(tmp_path: Path) -> None:
    save_chunked(tmp_path / "a", training_state())
    everything = ocp.load(tmp_path / "a", lazy=True)
    loaded = bytes_read(everything)
    jax.tree.map(lambda x: x.get() if isinstance(x, ocp.LazyArray) else x, everything)
    once = bytes_read(everything) - loaded
    state = ocp.load(tmp_path / "a", lazy=True)
    ocp.save(tmp_path / "b", state)
    assert bytes_read(state) == loaded + once


def test_casts_and_options_apply_on_the_way(tmp_path: Path) -> None:
    value = np.arange(4800.0).reshape(80, 60)
    source = {"n": value, "j": jnp.asarray(value, jnp.float32), "i": value.astype(int)}
    ocp.save(tmp_path / "a", source)
    lazy = ocp.load(tmp_path / "a", lazy=True)
    tree = {"n": lazy["n"].astype(np.float32), "j": lazy["j"].astype(jnp.bfloat16), "i": lazy["i"]}
    smaller = ocp.SaveArgs(dtype=np.float16, chunk_byte_size=1200)
    options = {"n": smaller, "i": ocp.SaveArgs(shard_axes=(1,))}
    for name, copy in (("b", False), ("c", True)):
        args = ocp.args.PyTreeSave(tree, options)
        with ocp.AsyncCheckpointer(ocp.PyTreeHandler()) if copy else checkpointer() as saver:
            saver.save(tmp_path / name, args=args)
        expected = {
            "n": value.astype(np.float16),
            "j": jnp.asarray(value, jnp.bfloat16),
            "i": value.astype(int),
        }
        assert_same_tree(ocp.load(tmp_path / name), expected)
        metadata = ocp.metadata(tmp_path / name)
        assert metadata["n"].storage.chunk_shape == (20, 30)
        assert metadata["i"].storage.chunk_shape == (80, 1)
    with pytest.raises(TreeMismatchError, match="i: some of its numbers of dtype int64"):
        ocp.save(tmp_path / "d", {"i": lazy["i"].astype(np.int8)})
    assert not (tmp_path / "d").exists()


def test_a_target_that_pads_and_moves_is_saved_as_it_says(tmp_path: Path) -> None:
    value = np.arange(48, dtype=np.float32).reshape(8, 6)
    ocp.save(tmp_path / "a", {"w": put(value, "x", x=8)})
    sharding = put(np.zeros((16, 4)), "y", None, y=2).sharding
    like = {"w": jax.ShapeDtypeStruct((16, 4), jnp.bfloat16, sharding=sharding)}
    lazy = ocp.load(tmp_path / "a", like, strict=False, lazy=True)
    ocp.save(tmp_path / "b", lazy)
    assert_same_tree(ocp.load(tmp_path / "b"), ocp.load(tmp_path / "a", like, strict=False))


def test_a_sharding_whose_devices_are_not_here_is_not_lost(tmp_path: Path) -> None:
    ocp.save(tmp_path / "a", {"w": put(np.arange(64.0), "x", x=8)})
    file = tmp_path / "a" / "_sharding"
    text = file.read_text()
    (tmp_path / "a" / "orbit_manifest.json").unlink()
    file.write_text(text.replace('{\\"id\\":7}', '{\\"id\\":99}'))
    recorded = ocp.metadata(tmp_path / "a")["w"].sharding
    assert recorded.device_mesh[-1] == 99
    ocp.save(tmp_path / "b", ocp.load(tmp_path / "a", lazy=True))
    assert ocp.metadata(tmp_path / "b")["w"].sharding == recorded


def test_chunks_that_do_not_divide_the_array_become_chunks_that_do(tmp_path: Path) -> None:
    """TensorStore's users may cut arrays as they like; Orbax's and ours do not."""
    value = np.arange(70 * 50).reshape(70, 50)
    spec = {
        "driver": "zarr",
        "kvstore": f"file://{tmp_path}/a/w/",
        "metadata": {"shape": [70, 50], "chunks": [16, 50], "dtype": "<i8"},
    }
    ts.open(spec, create=True).result().write(value).result()
    lazy = ocp.load(tmp_path / "a", {"w": value}, lazy=True)
    ocp.save(tmp_path / "b", lazy)
    assert_same_leaf(ocp.load(tmp_path / "b")["w"], value)
    assert ocp.metadata(tmp_path / "b")["w"].storage.chunk_shape == (14, 25)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_is_overwritten_by_what_is_read_from_it(
    layout: Layout, tmp_path: Path
) -> None:
    save_chunked(tmp_path / "a", training_state(7), **layout)
    state = ocp.load(tmp_path / "a", lazy=True)
    state["step"] = 8
    checkpointer(**layout).save(tmp_path / "a", state, force=True)
    assert_same_tree(ocp.load(tmp_path / "a"), training_state(8))
    with pytest.raises(CheckpointNotFoundError, match="replaced by another one"):
        state["params"]["bfloat16"].get()
    state = ocp.load(tmp_path / "a", lazy=True)
    state["step"] = 9
    ocp.save_async(tmp_path / "a", state, overwrite=True).result()
    assert_same_tree(ocp.load(tmp_path / "a"), training_state(9))


def test_a_checkpoint_stays_while_it_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(tmp_path / "a", training_state(7))
    state = ocp.load(tmp_path / "a", lazy=True)
    state["step"] = 8
    found: list[Any] = []
    encode_chunk = part_write.encode_chunk

    def look(*args: Any) -> Any:
        if not found:
            found.append(ocp.load(tmp_path / "a"))
        return encode_chunk(*args)

    monkeypatch.setattr(part_write, "encode_chunk", look)
    ocp.save(tmp_path / "a", state, overwrite=True)
    assert_same_tree(found[0], training_state(7))
    assert_same_tree(ocp.load(tmp_path / "a"), training_state(8))


def test_marker_mode_does_not_remove_what_is_yet_to_be_read(tmp_path: Path) -> None:
    def items(tree: object) -> Any:
        return ocp.args.Composite(state=ocp.args.PyTreeSave(tree))

    value = {"w": np.arange(5)}
    options = ocp.AtomicityOptions(mode=ocp.AtomicityMode.COMMIT_FILE)
    trees = ocp.Checkpointer(ocp.PyTreeHandler(), atomicity_options=options)
    steps = ocp.Checkpointer(ocp.CompositeHandler(), atomicity_options=options)
    trees.save(tmp_path / "a", value)
    steps.save(tmp_path / "b", args=items(value))
    a, b = (ocp.load(tmp_path / name, lazy=True) for name in "ab")
    with pytest.raises(CheckpointError, match=r"a cannot be overwritten in marker mode by Lazy"):
        trees.save(tmp_path / "a", {"p": [a["w"]]}, force=True)
    with pytest.raises(CheckpointError, match=r"b cannot be overwritten in marker mode by Lazy"):
        steps.save(tmp_path / "b", args=items(b), force=True)
    trees.save(tmp_path / "b", a, force=True)
    for name in "ab":
        assert_same_tree(ocp.load(tmp_path / name), value)


def test_a_manager_saves_lazy_leaves_of_the_step_that_it_deletes_next(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(max_to_keep=1)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        manager.save(1, args=ocp.args.PyTreeSave(training_state(1)))
        for step in (2, 3):
            manager.wait_until_finished()
            state = ocp.load(tmp_path / str(step - 1), lazy=True)
            state["step"] = step
            manager.save(step, args=ocp.args.PyTreeSave(state))
        manager.wait_until_finished()
        assert manager.all_steps() == [3]
    expected = training_state(3)
    assert_same_tree(ocp.load(tmp_path / "3", like=expected), expected)


@contextmanager
def held_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Hold back what is written in the background until a function is called."""
    go_on = threading.Event()
    commit = batch_write.BatchWriter.commit

    async def wait_and_commit(self: batch_write.BatchWriter) -> None:
        assert go_on.wait(60)
        await commit(self)

    with monkeypatch.context() as patch:
        patch.setattr(batch_write.BatchWriter, "commit", wait_and_commit)
        yield go_on.set
        go_on.set()


def test_a_source_that_is_deleted_during_a_save_is_the_error_of_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ocp.save(tmp_path / "a", training_state())
    state = ocp.load(tmp_path / "a", lazy=True)
    with held_back(monkeypatch) as go_on:
        handle = ocp.save_async(tmp_path / "b", state)
        shutil.rmtree(tmp_path / "a")
        go_on()
        with pytest.raises(CheckpointNotFoundError, match=r"cannot be read any more.*deleted"):
            handle.result()
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointNotFoundError):
        ocp.save(tmp_path / "b", state)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_source_that_is_replaced_during_a_save_is_not_what_is_saved(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer(**layout).save(tmp_path / "a", {"w": np.zeros((300, 300))})
    state = ocp.load(tmp_path / "a", lazy=True)
    replacement = tmp_path / "new"
    checkpointer(**layout).save(replacement, {"w": np.ones((300, 300))})
    with held_back(monkeypatch) as go_on:
        handle = ocp.save_async(tmp_path / "b", state)
        (tmp_path / "a").rename(tmp_path / "old")
        replacement.rename(tmp_path / "a")
        go_on()
        with pytest.raises(CheckpointNotFoundError, match="replaced by another one"):
            handle.result()
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("use_compression", [True, False])
@pytest.mark.parametrize("budget", [None, 1 << 16])
def test_damage_of_the_source_fails_the_save(
    layout: Layout, use_compression: bool, budget: int | None, tmp_path: Path
) -> None:
    """With a small budget a chunk is on its way to the disk before its checksum is known."""
    value = np.random.default_rng(0).normal(size=(300, 300))
    checkpointer(**layout, use_compression=use_compression).save(tmp_path / "a", {"w": value})
    lazy = ocp.load(tmp_path / "a", lazy=True)
    options = ocp.MemoryOptions(write_concurrent_bytes=budget)
    saver = checkpointer(use_compression=use_compression, memory_options=options)
    saver.save(tmp_path / "b", lazy)
    assert_same_leaf(ocp.load(tmp_path / "b")["w"], value)
    for file in (f for f in (tmp_path / "a").rglob("*") if f.is_file() and f.stat().st_size > 9999):
        damaged = bytearray(file.read_bytes())
        damaged[-5000] ^= 1
        file.write_bytes(damaged)
    with pytest.raises(ocp.errors.CorruptionError, match=r"^w: ") as caught:
        saver.save(tmp_path / "c", lazy)
    assert (caught.value.path, str(caught.value.chunk)[:2]) == ("w", "w/")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def peak_of(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the most bytes that Python, numpy and zstd held at once beyond those held before."""
    with monkeypatch.context() as patch:
        patch.setattr(memory, "_MAP_FLAGS", None)  # what is mapped is not traced
        tracemalloc.start()
        try:
            work()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("chunk_bytes", [None, 1 << 20])
@pytest.mark.parametrize("use_compression", [True, False])
def test_memory_of_a_save_is_bounded_by_its_budget(
    use_compression: bool,
    chunk_bytes: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    large = rng.integers(0, 2**16, (16, 1024, 512), np.uint32)
    tree = {"large": large, "half": large[:8], **{str(i): large[i, :512] for i in range(8)}}
    options = dict.fromkeys(tree, ocp.SaveArgs(chunk_byte_size=chunk_bytes))
    args = ocp.args.PyTreeSave(tree, options)
    checkpointer(use_compression=use_compression).save(tmp_path / "a", args=args)
    lazy = ocp.load(tmp_path / "a", lazy=True)
    lazy["half"] = lazy["half"].astype(np.float32)
    budget = 3 << 20
    limited = checkpointer(
        use_compression=use_compression,
        memory_options=ocp.MemoryOptions(write_concurrent_bytes=budget),
    )
    peak = peak_of(lambda: limited.save(tmp_path / "b", lazy), monkeypatch)
    encoders = (2 << 20) * use_compression  # each of two threads encodes a block of 1 MiB
    assert peak < 2 * budget + encoders <= large.nbytes // 4
    assert_same_leaf(ocp.load(tmp_path / "b")["large"], large)
    assert_same_leaf(ocp.load(tmp_path / "b")["half"], large[:8].astype(np.float32))

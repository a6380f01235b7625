"""Saves that refer to what an earlier step holds."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import base_database, incremental
from orbit_ckpt._src.type_handlers.numpy import NumpyHandler
from orbit_ckpt._src.type_handlers.registry import create_type_handler_registry
from orbit_ckpt.testing.comparison import expect_same
from orbit_ckpt.testing.damage import BitFlip
from tests.support import LAYOUTS, checkpointer, put

RNG = np.random.default_rng(0)
FROZEN = RNG.normal(size=(256, 512)).astype(np.float32)


def noise(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def tree(step: int) -> dict[str, Any]:
    """Return a tree of which only a small part depends on the step."""
    return {
        "frozen": {"numpy": FROZEN, "jax": jnp.asarray(FROZEN) * 2, "small": FROZEN[0]},
        "trained": noise(64, 64),
        "step": step,
        "name": "run",
    }


def new_bytes(directory: Path, *earlier: Path) -> int:
    """Return the bytes of the files of a checkpoint that no other one links to."""
    known = {file.stat().st_ino for path in earlier for file in path.rglob("*") if file.is_file()}
    files = [file.stat() for file in directory.rglob("*") if file.is_file()]
    return sum(status.st_size for status in files if status.st_ino not in known)


@pytest.fixture
def run(tmp_path: Path) -> list[tuple[Path, Any]]:
    """Save four steps, each based on the last one."""
    steps: list[tuple[Path, Any]] = []
    for step in range(4):
        path, state = tmp_path / f"{step}", tree(step)
        ocp.save(path, state, base=steps[-1][0] if steps else tmp_path / "none")
        steps.append((path, state))
    return steps


def test_what_has_not_changed_is_not_written_again(run: list[tuple[Path, Any]]) -> None:
    full = new_bytes(run[0][0])
    assert full > 1.5 * FROZEN.nbytes
    for (path, _), (earlier, _) in zip(run[1:], run, strict=False):
        assert new_bytes(path, earlier) < 64 * 64 * 4 + 20_000


@pytest.mark.filterwarnings("ignore:Sharding info not provided:UserWarning")
@pytest.mark.parametrize("kept", range(4))
def test_every_step_is_complete_without_the_others(kept: int, run: list[tuple[Path, Any]]) -> None:
    for path, _ in run:
        if path != run[kept][0]:
            shutil.rmtree(path)
    path, state = run[kept]
    expect_same(ocp.load(path), state)
    assert ocp.verify(path).is_intact
    with orbax.checkpoint.Checkpointer(orbax.checkpoint.PyTreeCheckpointHandler()) as reader:
        found = reader.restore(path)
    jax.tree.map(np.testing.assert_array_equal, found, state)
    shutil.copytree(path, path.with_name("copy"))
    expect_same(ocp.load(path.with_name("copy")), state)


def test_only_the_chunks_that_changed_are_written(tmp_path: Path) -> None:
    array = noise(8, 1 << 16)
    ocp.save(tmp_path / "a", {"w": put(array, "x", x=8)})
    changed = array.copy()
    changed[5, 17] += 1
    ocp.save(tmp_path / "b", {"w": put(changed, "x", x=8)}, base=tmp_path / "a")
    assert new_bytes(tmp_path / "b", tmp_path / "a") < array.nbytes / 8 + 20_000
    shutil.rmtree(tmp_path / "a")
    np.testing.assert_array_equal(ocp.load(tmp_path / "b")["w"], changed)


CHANGED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one bit": lambda w: np.concatenate([w[:-1], w[-1:] + 1]),
    "dtype of the same bytes": lambda w: w.view(np.int32),
    "shape of the same bytes": lambda w: w.reshape(2, -1),
    "sign of zeros": lambda w: -w,
}


@pytest.mark.parametrize("kind", CHANGED)
def test_another_array_is_never_taken_for_the_stored_one(kind: str, tmp_path: Path) -> None:
    array = np.zeros(1 << 16, np.float32)
    changed = CHANGED[kind](array)
    ocp.save(tmp_path / "a", {"w": array})
    ocp.save(tmp_path / "b", {"w": changed}, base=tmp_path / "a")
    found = ocp.load(tmp_path / "b")["w"]
    assert (found.dtype, found.shape) == (changed.dtype, changed.shape)
    assert found.tobytes() == changed.tobytes()


def test_arrays_changed_in_place_are_written(tmp_path: Path) -> None:
    array = noise(128, 128)
    ocp.save(tmp_path / "a", {"w": array})
    array[3, 4] = 7
    ocp.save(tmp_path / "b", {"w": array}, base=tmp_path / "a")
    np.testing.assert_array_equal(ocp.load(tmp_path / "b")["w"], array)


def test_no_file_of_an_earlier_step_is_ever_written_to(tmp_path: Path) -> None:
    def contents(path: Path) -> dict[str, bytes]:
        return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}

    ocp.save(tmp_path / "0", tree(0))
    known = contents(tmp_path / "0")
    for step in range(1, 4):
        ocp.save(tmp_path / f"{step}", tree(step), base=tmp_path / f"{step - 1}")
        ocp.save(tmp_path / f"{step}", tree(step), base=tmp_path / f"{step - 1}", overwrite=True)
    assert contents(tmp_path / "0") == known


def test_mostly_dead_files_are_not_kept_alive(tmp_path: Path) -> None:
    leaves = {f"w{i}": noise(64, 256) for i in range(10)}
    ocp.save(tmp_path / "0", leaves)
    for step in range(1, 10):
        leaves[f"w{step}"] = noise(64, 256)
        ocp.save(tmp_path / f"{step}", leaves, base=tmp_path / f"{step - 1}")
        if step > 1:
            shutil.rmtree(tmp_path / f"{step - 2}")
    live = sum(leaf.nbytes for leaf in leaves.values())
    assert new_bytes(tmp_path / "9") < 2 * live + 50_000
    shutil.rmtree(tmp_path / "8")
    expect_same(ocp.load(tmp_path / "9"), leaves)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EMLINK, errno.EPERM])
def test_without_links_a_step_is_written_in_full(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: object, *_: object) -> None:
        raise OSError(code, os.strerror(code), source)

    ocp.save(tmp_path / "a", tree(0))
    monkeypatch.setattr(base_database.os, "link", refuse)
    monkeypatch.setattr(base_database, "clone_file", refuse)
    state = tree(1)
    ocp.save(tmp_path / "b", state, base=tmp_path / "a")
    assert new_bytes(tmp_path / "b", tmp_path / "a") == new_bytes(tmp_path / "b")
    expect_same(ocp.load(tmp_path / "b"), state)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_base_in_another_layout_is_not_used(layout: dict[str, bool], tmp_path: Path) -> None:
    writer = checkpointer(**layout)
    writer.save(tmp_path / "a", args=ocp.args.PyTreeSave({"w": FROZEN}))
    ocp.save(tmp_path / "b", {"w": FROZEN}, base=tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    np.testing.assert_array_equal(ocp.load(tmp_path / "b")["w"], FROZEN)


def test_damage_of_a_shared_file_is_found_in_every_step(run: list[tuple[Path, Any]]) -> None:
    found = [{file.name for file in (path / "d").iterdir()} for path, _ in run]
    shared = max(set.intersection(*found), key=lambda name: (run[0][0] / "d" / name).stat().st_size)
    for offset in range(0, (run[2][0] / "d" / shared).stat().st_size, 1 << 15):
        BitFlip(f"d/{shared}", offset, 3).apply(run[2][0])
    for path, _ in run:
        assert not ocp.verify(path).is_intact
        with pytest.raises(ocp.errors.CorruptionError):
            ocp.load(path)


def test_a_damaged_base_does_not_spread_by_copying(tmp_path: Path) -> None:
    leaves = {"a": noise(256, 256), "b": noise(256, 256), "c": noise(256, 256)}
    ocp.save(tmp_path / "0", leaves)
    (file,) = [f for f in (tmp_path / "0/d").iterdir() if f.stat().st_size > 1 << 18]
    for offset in range(0, file.stat().st_size, 1 << 16):
        BitFlip(file.name, offset, 0).apply(file.parent)
    changed = {**leaves, "b": noise(256, 256), "c": noise(256, 256)}  # little of it stays live
    ocp.save(tmp_path / "1", changed, base=tmp_path / "0")
    expect_same(ocp.load(tmp_path / "1"), changed)


def test_a_manager_saves_incrementally(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(incremental=True, max_to_keep=2, full_every=4)
    states = {step: tree(step) for step in range(9)}
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step, state in states.items():
            run.save(step, args=ocp.args.StandardSave(state))
            run.wait_until_finished()
            shared = step > 0 and new_bytes(run.directory / str(step)) > new_bytes(
                run.directory / str(step), run.directory / str(step - 1)
            )
            assert shared == (step % 4 != 0)
        for step in (7, 8):
            expect_same(run.restore(step), states[step])


def test_steps_of_a_run_may_be_deleted_in_any_order(tmp_path: Path) -> None:
    for number, order in enumerate(itertools.permutations(range(3))):
        root = tmp_path / f"{number}"
        states = [tree(step) for step in range(3)]
        for step, state in enumerate(states):
            ocp.save(root / f"{step}", state, base=root / f"{max(step - 1, 0)}")
        left = {0, 1, 2}
        for step in order:
            shutil.rmtree(root / f"{step}")
            left.remove(step)
            for other in left:
                expect_same(ocp.load(root / f"{other}"), states[other])


def test_the_same_arrays_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = {"a": jnp.ones((512, 512)) * 3, "b": put(FROZEN, "x", x=8) * 2}
    aliased = jax.device_put(noise(512, 512))  # may share the memory of the numpy array
    options = ocp.CheckpointManagerOptions(incremental=True)
    hashed: list[int] = []

    def count(pieces: Any) -> bytes:
        buffers = list(pieces)
        hashed.append(sum(memoryview(piece).nbytes for piece in buffers))
        return original(buffers)

    original = incremental.digest_of
    monkeypatch.setattr(incremental, "digest_of", count)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step in range(3):
            hashed.clear()
            state = {**frozen, "aliased": aliased, "trained": jnp.full((64, 512), step) * 1.0}
            run.save(step, args=ocp.args.StandardSave(state))
            run.wait_until_finished()
            everything = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
            changed = state["aliased"].nbytes + state["trained"].nbytes
            assert sum(hashed) == (changed if step else everything)
            expect_same(run.restore(step), state)
            if step:
                shutil.rmtree(run.directory / str(step - 1))
                expect_same(ocp.load(run.directory / str(step)), state)


def test_arrays_of_another_step_are_not_taken_for_known(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(incremental=True)
    array, other = jnp.ones((512, 512)) * 3, jnp.ones((512, 512)) * 4
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        run.save(0, args=ocp.args.StandardSave({"w": array}))
        run.wait_until_finished()
        with ocp.CheckpointManager(tmp_path / "run", options=options) as second:
            second.save(1, args=ocp.args.StandardSave({"w": other}))
        run.reload()
        run.save(2, args=ocp.args.StandardSave({"w": array}))
        run.wait_until_finished()
        expect_same(run.restore(2), {"w": array})


@pytest.mark.parametrize("kind", ["jax", "numpy"])
def test_tied_arrays_are_stored_once(kind: str, tmp_path: Path) -> None:
    embedding = noise(512, 512)
    tied = jnp.asarray(embedding) * 1 if kind == "jax" else embedding
    state = {"embed": tied, "head": {"kernel": tied}, "other": noise(256, 256)}
    ocp.save(tmp_path / "a", state)
    assert new_bytes(tmp_path / "a") < 2 * embedding.nbytes
    expect_same(ocp.load(tmp_path / "a"), state)
    assert ocp.verify(tmp_path / "a")
    changed = {**state, "other": noise(256, 256)}
    ocp.save(tmp_path / "b", changed, base=tmp_path / "a")
    assert new_bytes(tmp_path / "b", tmp_path / "a") < 0.3 * embedding.nbytes
    untied = {**state, "head": {"kernel": noise(512, 512)}}
    ocp.save(tmp_path / "c", untied, base=tmp_path / "b")
    shutil.rmtree(tmp_path / "a")
    expect_same(ocp.load(tmp_path / "b"), changed)
    expect_same(ocp.load(tmp_path / "c"), untied)


def test_the_same_array_cast_to_another_dtype_is_written(tmp_path: Path) -> None:
    array = jnp.asarray(noise(512, 512)) * 1
    options = ocp.CheckpointManagerOptions(incremental=True)
    with ocp.CheckpointManager(tmp_path / "run", options=options) as run:
        for step, dtype in enumerate((jnp.float8_e4m3fn, jnp.float8_e5m2, None)):
            args = {"w": ocp.SaveArgs(dtype=dtype)}
            run.save(step, args=ocp.args.PyTreeSave({"w": array}, args))
            run.wait_until_finished()
            found = ocp.load(run.directory / str(step))["w"]
            np.testing.assert_array_equal(found, array if dtype is None else array.astype(dtype))


def test_one_array_that_a_handler_stores_in_two_ways_is_written_twice(tmp_path: Path) -> None:
    class Named(NumpyHandler):
        async def serialize(
            self, values: Sequence[Any], infos: Sequence[Any], args: Any = None
        ) -> Any:
            changed = [v * len(info.name) for v, info in zip(values, infos, strict=True)]
            return await super().serialize(changed, infos, args)

        def snapshot(self, values: Sequence[Any]) -> Any:
            return [value.copy() for value in values]

    array = noise(512, 512)
    registry = create_type_handler_registry((np.ndarray, Named()))
    with ocp.Checkpointer(ocp.PyTreeHandler(type_handler_registry=registry)) as writer:
        writer.save(tmp_path / "a", args=ocp.args.PyTreeSave({"a": array, "bb": array}))
    found = ocp.load(tmp_path / "a")
    np.testing.assert_array_equal(found["a"], array)
    np.testing.assert_array_equal(found["bb"], array * 2)

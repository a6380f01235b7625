"""Loads onto another sharding: every chunk is read once, checked, and copied into place."""

from __future__ import annotations

import itertools
import math
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as orbax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

import orbit_ckpt as ocp
from orbit_ckpt._src.arrays import memory, slices
from orbit_ckpt._src.storage import chunk_read, read_units
from orbit_ckpt.errors import CorruptionError
from tests.support import LAYOUTS, checkpointer, counted, damage_chunk, make_mesh, scratch

MESHES: list[dict[str, int]] = [{"x": 8}, {"x": 2, "y": 4}, {"x": 4, "y": 2}, {"x": 3}]


def sharding_of(mesh: dict[str, int], *spec: Any) -> NamedSharding:
    return NamedSharding(make_mesh(**mesh), PartitionSpec(*spec))


def shardings() -> dict[str, Sharding]:
    grid, turned, line = {"x": 2, "y": 4}, {"x": 4, "y": 2}, {"x": 8}
    return {
        "grid": sharding_of(grid, "x", "y"),
        "swapped": sharding_of(turned, "y", "x"),
        "rows": sharding_of(line, "x"),
        "columns": sharding_of(line, None, "x"),
        "replicated": sharding_of(line),
        "partly replicated": sharding_of(grid, None, "y"),
        "single": SingleDeviceSharding(jax.devices()[0]),
    }


def load(path: Path, value: np.ndarray, sharding: Sharding) -> jax.Array:
    like = {"w": jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)}
    return ocp.load(path, like)["w"]


def stored_bytes(path: Path) -> int:
    return ocp.plan(path).bytes_read


@pytest.mark.parametrize("saved", ["grid", "rows", "replicated", "partly replicated"])
@pytest.mark.parametrize("use_compression", [True, False])
def test_chunks_larger_than_a_block_are_read_once(
    use_compression: bool, saved: str, tmp_path: Path
) -> None:
    value = np.random.default_rng(0).integers(0, 1 << 20, (1024, 2176), np.int32)
    tree = {"w": jax.device_put(value, shardings()[saved])}
    checkpointer(use_compression=use_compression).save(tmp_path / "x", tree)
    expected = stored_bytes(tmp_path / "x")
    for name, sharding in shardings().items():
        with counted() as total:
            found = load(tmp_path / "x", value, sharding)
        assert found.sharding == sharding
        assert np.array_equal(found, value), name
        assert total[0] == expected, name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("use_compression", [True, False])
def test_chunks_of_every_layout_are_read_once(
    use_compression: bool, layout: dict[str, bool], tmp_path: Path
) -> None:
    value = np.random.default_rng(0).integers(0, 1 << 20, (64, 128), np.int32)
    tree = {"w": jax.device_put(value, shardings()["grid"])}
    checkpointer(use_compression=use_compression, **layout).save(tmp_path / "x", tree)
    for name, sharding in shardings().items():
        with counted() as total:
            found = load(tmp_path / "x", value, sharding)
        assert np.array_equal(found, value), name
        assert total[0] <= stored_bytes(tmp_path / "x"), name


@pytest.mark.interop
@pytest.mark.parametrize("use_zarr3", [True, False])
def test_chunks_that_orbax_wrote_are_read_once(use_zarr3: bool, tmp_path: Path) -> None:
    value = np.random.default_rng(0).integers(0, 1 << 20, (64, 128), np.int32)
    tree = {"w": jax.device_put(value, shardings()["grid"])}
    handler = orbax.PyTreeCheckpointHandler(use_zarr3=use_zarr3)
    with orbax.Checkpointer(handler) as theirs:
        theirs.save(tmp_path / "x", args=orbax.args.PyTreeSave(tree))
    for name, sharding in shardings().items():
        with counted() as total:
            found = load(tmp_path / "x", value, sharding)
        assert np.array_equal(found, value), name
        assert total[0] <= stored_bytes(tmp_path / "x"), name


@st.composite
def any_sharding(draw: st.DrawFn, shape: tuple[int, ...]) -> NamedSharding:
    mesh = draw(st.sampled_from(MESHES))
    axes = list(itertools.permutations([*mesh, None, None], len(shape)))
    fitting = [
        spec
        for spec in axes
        if all(a is None or n % mesh[a] == 0 for a, n in zip(spec, shape, strict=True))
    ]
    return sharding_of(mesh, *draw(st.sampled_from(fitting)))


@given(data=st.data())
def test_any_sharding_is_loaded_onto_any_other(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 6, 8, 24]), min_size=1, max_size=2)))
    dtype = data.draw(st.sampled_from([np.uint8, np.float32, np.complex64]))
    value = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    saved, loaded = data.draw(any_sharding(shape)), data.draw(any_sharding(shape))
    chunk_bytes = data.draw(st.sampled_from([None, 16, 60, 500]))
    options = {"use_compression": data.draw(st.booleans()), "use_zarr3": data.draw(st.booleans())}
    args = {"w": ocp.SaveArgs(chunk_byte_size=chunk_bytes)}
    with scratch() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_read, "_BLOCK_BYTES", 40)
        patch.setattr(chunk_read, "_MIN_BLOCK_BYTES", 16)
        patch.setattr(read_units, "_DIVIDED_BYTES", data.draw(st.sampled_from([1, 1 << 30])))
        tree = {"w": jax.device_put(value, saved)}
        checkpointer(**options).save(path / "x", args=ocp.args.PyTreeSave(tree, args))
        with counted() as total:
            found = load(path / "x", value, loaded)
        assert found.sharding == loaded
        assert np.array_equal(found, value)
        assert total[0] <= stored_bytes(path / "x")


@pytest.mark.parametrize("use_compression", [True, False])
def test_damage_is_found_by_whoever_needs_the_chunk(use_compression: bool, tmp_path: Path) -> None:
    value = np.random.default_rng(0).integers(0, 1 << 20, (1024, 2176), np.int32)
    tree = {"w": jax.device_put(value, shardings()["rows"])}
    checkpointer(use_compression=use_compression).save(tmp_path / "x", tree)
    damage_chunk(tmp_path / "x", "w/c/5/0")
    for name, sharding in shardings().items():
        with pytest.raises(CorruptionError, match="'w/c/5/0'") as caught:
            load(tmp_path / "x", value, sharding)
        assert caught.value.path == "w", name
    lazy = ocp.load(tmp_path / "x", lazy=True)["w"]
    assert np.array_equal(lazy[: 5 * 128], value[: 5 * 128])
    assert np.array_equal(lazy[6 * 128 :, 3], value[6 * 128 :, 3])
    with pytest.raises(CorruptionError, match="'w/c/5/0'"):
        lazy[6 * 128 - 1, 0]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the buffers that are allocated from now on."""
    sizes: list[int] = []
    allocate = memory.allocate_aligned

    def count(nbytes: int) -> memoryview:
        sizes.append(nbytes)
        return allocate(nbytes)

    monkeypatch.setattr(memory, "allocate_aligned", count)
    return sizes


@pytest.mark.parametrize("use_compression", [True, False])
def test_no_more_than_blocks_is_held_beside_the_result(
    use_compression: bool, held: list[int], tmp_path: Path
) -> None:
    value = np.random.default_rng(0).integers(0, 1 << 20, (2048, 2176), np.int32)
    tree = {"w": jax.device_put(value, shardings()["rows"])}
    checkpointer(use_compression=use_compression).save(tmp_path / "x", tree)
    held.clear()
    assert np.array_equal(load(tmp_path / "x", value, shardings()["columns"]), value)
    threads = max(2, min(8, os.cpu_count() or 2))
    assert value.nbytes <= sum(held) <= value.nbytes + threads * (1 << 20)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_CHUNK_BYTES", 1 << 18)
    monkeypatch.setattr(slices, "_MIN_CHUNK_BYTES", 1 << 12)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("use_compression", [True, False])
def test_a_load_on_the_same_sharding_reads_default_chunks_into_place(
    use_compression: bool, held: list[int], tmp_path: Path
) -> None:
    value = np.random.default_rng(0).integers(0, 1 << 20, (1024, 4096), np.int32)
    sharding = shardings()["grid"]
    tree = {"w": jax.device_put(value, sharding)}
    checkpointer(use_compression=use_compression).save(tmp_path / "x", tree)
    assert ocp.metadata(tmp_path / "x")["w"].storage.chunk_shape == (64, 1024)
    held.clear()
    assert np.array_equal(load(tmp_path / "x", value, sharding), value)
    assert sum(held) == value.nbytes


@pytest.mark.interop
@pytest.mark.usefixtures("small_chunks")
def test_orbax_restores_default_chunks(tmp_path: Path) -> None:
    value = np.random.default_rng(0).integers(0, 1 << 20, (1024, 4096), np.int32)
    tree = {"w": jax.device_put(value, shardings()["grid"]), "n": value[:3]}
    ocp.save(tmp_path / "x", tree)
    wanted = orbax.ArrayRestoreArgs(sharding=shardings()["rows"])
    with orbax.Checkpointer(orbax.PyTreeCheckpointHandler()) as theirs:
        args = orbax.args.PyTreeRestore(restore_args={"w": wanted, "n": orbax.RestoreArgs()})
        found = theirs.restore(tmp_path / "x", args=args)
    assert np.array_equal(found["w"], value)
    assert np.array_equal(found["n"], value[:3])


@pytest.mark.usefixtures("small_chunks")
def test_requested_chunks_are_not_cut_by_default(tmp_path: Path) -> None:
    value = np.zeros((1024, 1024), np.int32)
    args = {"a": ocp.SaveArgs(chunk_byte_size=1 << 20), "b": ocp.SaveArgs(shard_axes=(1,))}
    args["c"] = ocp.SaveArgs(chunk_byte_size=1 << 30)
    tree = dict.fromkeys("abc", value)
    checkpointer().save(tmp_path / "x", args=ocp.args.PyTreeSave(tree, args))
    shapes = {k: m.storage.chunk_shape for k, m in ocp.metadata(tmp_path / "x").items()}
    assert shapes == {"a": (512, 512), "b": (1024, 1), "c": (1024, 1024)}

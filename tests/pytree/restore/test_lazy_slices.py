"""Many slices of a lazy array: how much they read, what is kept for them, and that it is right."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as orbax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import kept_chunks, slice_read
from orbit_ckpt.errors import CorruptionError
from tests.support import checkpointer, scratch

MIB = 1 << 20


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def save(path: Path, value: np.ndarray, *, use_compression: bool, chunk_bytes: int) -> None:
    args = ocp.args.PyTreeSave({"w": value}, {"w": ocp.SaveArgs(chunk_byte_size=chunk_bytes)})
    checkpointer(use_compression=use_compression).save(path, args=args)


def opened(path: Path, **options: Any) -> Any:
    return ocp.load(path, lazy=True, **options)["w"]


def reader_of(lazy: Any) -> Any:
    return lazy.leaf.info.load_batch.reader


@pytest.mark.parametrize("use_compression", [True, False])
def test_many_rows_read_little_more_than_the_array(use_compression: bool, tmp_path: Path) -> None:
    value = noise(2048, 2048)
    save(tmp_path / "x", value, use_compression=use_compression, chunk_bytes=4 * MIB)
    w = opened(tmp_path / "x")
    for row in np.random.default_rng(1).permutation(2048)[:16]:
        assert np.array_equal(w[row], value[row])
    assert reader_of(w).bytes_read <= 1.15 * value.nbytes  # 16 MB and 16 blocks or two of 64 kB


@pytest.mark.interop
@pytest.mark.parametrize("use_zarr3", [True, False])
def test_slices_of_what_orbax_wrote_read_a_chunk_once(use_zarr3: bool, tmp_path: Path) -> None:
    value = noise(64, 64)
    handler = orbax.PyTreeCheckpointHandler(use_zarr3=use_zarr3)
    with orbax.Checkpointer(handler) as theirs:
        theirs.save(tmp_path / "x", args=orbax.args.PyTreeSave({"w": value}))
    w = opened(tmp_path / "x")
    for row in range(64):
        assert np.array_equal(w[row], value[row])
    assert reader_of(w).bytes_read <= ocp.plan(tmp_path / "x").bytes_read


@given(data=st.data())
def test_any_slices_in_any_order_are_those_of_the_array(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    value = noise(*shape)
    chunk_bytes = data.draw(st.sampled_from([8, 40, 100, 1000]))
    limit = data.draw(st.sampled_from([None, 1, 50, 500]))
    with scratch() as path, pytest.MonkeyPatch.context() as patch:
        for module in (kept_chunks, slice_read):
            patch.setattr(module, "CHECKED_BLOCK_BYTES", 8)
        patch.setattr(slice_read, "SPAN_BYTES", data.draw(st.sampled_from([8, 24, 1 << 20])))
        compressed = data.draw(st.booleans())
        args = ocp.args.PyTreeSave({"w": value}, {"w": ocp.SaveArgs(chunk_byte_size=chunk_bytes)})
        with checkpointer(use_compression=compressed, use_ocdbt=False) as ckptr:
            ckptr.save(path / "x", args=args)
        w = opened(path / "x", memory_limit=limit)
        for _ in range(5):
            index = data.draw(st_np.basic_indices(shape))
            assert np.array_equal(w[index], value[index])
            assert reader_of(w).kept.nbytes <= (limit or kept_chunks.KEPT_BYTES)


def flip(path: Path, position: int) -> None:
    (file,) = (f for f in path.rglob("*") if f.is_file() and f.stat().st_size > MIB)
    with file.open("r+b") as opened_file:
        opened_file.seek(position)
        (byte,) = opened_file.read(1)
        opened_file.seek(position)
        opened_file.write(bytes([byte ^ 1]))


def test_damage_after_the_first_slice_is_found_where_it_is_read(tmp_path: Path) -> None:
    value = noise(512, 1024)
    save(tmp_path / "x", value, use_compression=False, chunk_bytes=2 * MIB)
    w = opened(tmp_path / "x")
    assert np.array_equal(w[3], value[3])
    flip(tmp_path / "x", 300 * 4096)
    assert np.array_equal(w[3], value[3])
    assert np.array_equal(w[400:410, 7], value[400:410, 7])
    for index in (300, slice(290, 310), (slice(None), 5)):
        with pytest.raises(CorruptionError, match=r"^w: .*it has changed since it was verified"):
            w[index]


def test_damage_in_another_part_of_a_chunk_is_found_by_the_first_slice(tmp_path: Path) -> None:
    for use_compression in (True, False):
        path = tmp_path / str(use_compression)
        save(path, noise(512, 1024), use_compression=use_compression, chunk_bytes=2 * MIB)
        flip(path, 300 * 4096)
        for _ in range(2):
            with pytest.raises(CorruptionError, match=r"^w: chunk"):
                opened(path)[3]


def test_what_is_kept_stays_within_the_limit_of_the_load(tmp_path: Path) -> None:
    value = noise(1024, 256)
    save(tmp_path / "x", value, use_compression=True, chunk_bytes=MIB // 4)
    w = opened(tmp_path / "x", memory_limit=MIB // 2)
    for _ in range(2):
        for row in (0, 256, 512, 768):
            assert np.array_equal(w[row], value[row])
            assert reader_of(w).kept.nbytes <= MIB // 2
    assert reader_of(w).bytes_read > 1.5 * value.nbytes  # only two of four chunks fit
    unlimited = opened(tmp_path / "x")
    for row in range(0, 1024, 16):
        unlimited[row]
    assert reader_of(unlimited).bytes_read <= value.nbytes * 1.1
    assert reader_of(unlimited).kept.nbytes == value.nbytes


def test_what_is_kept_goes_with_the_lazy_arrays(tmp_path: Path) -> None:
    save(tmp_path / "x", noise(64, 256), use_compression=True, chunk_bytes=MIB)
    w = opened(tmp_path / "x")
    assert w[3, 3] == noise(64, 256)[3, 3]
    kept = weakref.ref(reader_of(w).kept)
    assert kept() is not None
    del w
    gc.collect()
    assert kept() is None


def test_slices_belong_to_the_caller(tmp_path: Path) -> None:
    value = noise(64, 256)
    for use_compression in (True, False):
        path = tmp_path / str(use_compression)
        save(path, value, use_compression=use_compression, chunk_bytes=MIB)
        w = opened(path)
        for _ in range(3):
            row = w[5:7]
            assert np.array_equal(row, value[5:7])
            row += 1


@pytest.mark.parametrize("use_compression", [True, False])
def test_threads_share_what_is_kept(use_compression: bool, tmp_path: Path) -> None:
    value = noise(1024, 256)
    save(tmp_path / "x", value, use_compression=use_compression, chunk_bytes=MIB // 4)
    w = opened(tmp_path / "x", memory_limit=MIB // 2)
    barrier = threading.Barrier(4)

    def read(seed: int) -> bool:
        barrier.wait()
        rows = np.random.default_rng(seed).integers(0, 1024, 30)
        return all(np.array_equal(w[row], value[row]) for row in rows)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))
    assert reader_of(w).kept.nbytes <= MIB // 2

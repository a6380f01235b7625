"""Checkpoints of T5X, TensorFlow, eFormer and Levanter in object stores, against local ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import CheckpointExistsError, CorruptionError, StorageError
from orbit_ckpt.testing.chaos.proxy import Proxy
from tests.support import make_mesh

SAMPLES = Path(__file__).parents[1] / "formats" / "samples"

CHECKPOINTS = {
    "T5X": "t5x/v3_save_f32/checkpoint_42",
    "T5X saved on gs://": "t5x/v3_gcs_born_local",
    "TensorFlow": "t5x/tf_t5_ckpt",
    "eFormer": "eformer/run-20_structured",
    "eFormer without structure": "eformer/run-10_unstructured",
    "Levanter": "levanter/step-7",
}


def put(directory: Path, url: str) -> str:
    """Copy a directory into a store; return its URL."""
    for file in directory.rglob("*"):
        if file.is_file():
            (resolve_path(url) / str(file.relative_to(directory))).write_bytes(file.read_bytes())
    return url


def sample(kind: str) -> Path:
    path = SAMPLES / CHECKPOINTS[kind]
    return path if path.exists() else path.parent


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for leaf, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(value))
        assert type(leaf) is type(value)


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_a_checkpoint_in_a_store_is_the_same_as_on_a_disk(store: str, kind: str) -> None:
    local = sample(kind)
    url = put(local, f"{store}/run/{local.name}")
    assert ocp.detect_format(url) == ocp.detect_format(local)
    expected = ocp.load(local)
    assert jax.tree.leaves(expected)
    assert_same(ocp.load(url), expected)
    assert ocp.metadata(url).custom_metadata == ocp.metadata(local).custom_metadata
    lazy = ocp.load(url, lazy=True)
    arrays = [leaf for leaf in jax.tree.leaves(lazy) if isinstance(leaf, ocp.LazyArray)]
    assert arrays
    whole = jax.tree.map(lambda leaf: leaf.get() if isinstance(leaf, ocp.LazyArray) else leaf, lazy)
    assert_same(whole, expected)
    assert str(ocp.plan(url)) == str(ocp.plan(local))


@pytest.mark.parametrize("kind", ["T5X", "eFormer", "Levanter"])
def test_a_run_in_a_store_has_its_latest_step(store: str, kind: str) -> None:
    local = sample(kind)
    put(local, f"{store}/run/{local.name}")
    assert ocp.latest_step(f"{store}/run") == ocp.latest_step(local)
    assert_same(ocp.load(f"{store}/run"), ocp.load(local))


def test_a_missing_chunk_is_named(store: str) -> None:
    local = sample("Levanter")
    url = put(local, f"{store}/run/{local.name}")
    path = resolve_path(url)
    assert isinstance(path, StorePath)
    chunk = next(key for key in path.keys_below() if key.rpartition("/")[2].startswith("0"))
    (path / chunk).unlink()
    with pytest.raises(CorruptionError, match="missing"):
        ocp.load(url)


def test_only_the_chunks_of_a_shard_are_requested(s3: str, proxy: Proxy, tmp_path: Path) -> None:
    values = np.arange(64, dtype=np.float32).reshape(16, 4)
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": str(tmp_path / "w")},
        "metadata": {"chunks": [4, 4], "compressor": None},
    }
    ts.open(spec, create=True, dtype="float32", shape=(16, 4)).result()[...] = values
    (tmp_path / "metadata.json").write_text('{"step": 1, "timestamp": "2024-01-01T00:00:00"}')
    url = put(tmp_path, f"{s3}/run/step-1")
    rows = ocp.load(url, lazy=True)["w"]
    proxy.clear()
    np.testing.assert_array_equal(rows[4:6], values[4:6])
    assert {path.rpartition("/")[2] for _, path in proxy.requests} <= {
        "1.0",
        ".zarray",
        "metadata.json",
    }
    sharding = NamedSharding(make_mesh(x=2), PartitionSpec("x"))
    loaded = ocp.load(url, sharding=sharding)["w"]
    np.testing.assert_array_equal(loaded, values)
    assert loaded.sharding == sharding


def test_t5x_is_written_into_a_store(store: str, tmp_path: Path) -> None:
    tree = {"w": np.arange(30_000.0).reshape(300, 100), "n": np.int32(3), "none": None}
    ocp.save(tmp_path / "own", tree)
    url = f"{store}/run/checkpoint_7"
    ocp.convert(tmp_path / "own", url, to="t5x")
    assert ocp.detect_format(url) == "t5x"
    assert ocp.latest_step(f"{store}/run") == 7
    assert_same(ocp.load(url), tree)
    with pytest.raises(CheckpointExistsError):
        ocp.convert(tmp_path / "own", url, to="t5x")


def test_a_failed_write_of_t5x_leaves_nothing(s3: str, proxy: Proxy, tmp_path: Path) -> None:
    ocp.save(tmp_path / "own", {"w": np.arange(30_000.0)})
    proxy.fails = lambda method, path, _: "403" if method == "PUT" and "/0" in path else None
    with pytest.raises(StorageError):
        ocp.convert(tmp_path / "own", f"{s3}/run/checkpoint_7", to="t5x")
    proxy.fails = lambda *_: None
    assert list(resolve_path(s3).iterdir()) == []

"""Checkpoints of other programs in object stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from flax import serialization
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import save as to_safetensors

import orbit_ckpt as ocp
from orbit_ckpt._src.storage import buckets
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    FormatError,
)
from orbit_ckpt.testing.chaos.proxy import Proxy
from orbit_ckpt.transform import Map
from tests.support import make_mesh

TREE = {
    "layer.0.kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "layer.0.bias": np.arange(3, dtype=ml_dtypes.bfloat16),
    "ids": np.array(7, np.int32),
    "none": np.zeros((0, 3), np.int8),
}


def at(url: str) -> StorePath:
    path = resolve_path(url)
    assert isinstance(path, StorePath)
    return path


def assert_same(found: Any, expected: Any) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for leaf, value in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (leaf.dtype, leaf.shape) == (value.dtype, value.shape)
        assert np.asarray(leaf).tobytes() == value.tobytes()


@pytest.mark.parametrize("name", ["", "/model.safetensors"])
def test_a_model_is_loaded(store: str, name: str) -> None:
    at(f"{store}/some/model.safetensors").write_bytes(to_safetensors(TREE, {"format": "np"}))
    at(f"{store}/some/README.md").write_bytes(b"about it")
    url = f"{store}/some{name}"
    assert_same(ocp.load(url), TREE)
    assert ocp.metadata(url).custom_metadata == {"format": "np"}
    assert ocp.load(url, lazy=True)["layer.0.kernel"][1:, 2].tolist() == [6, 10]
    ocp.save(f"{store}/ours", ocp.load(url, lazy=True))
    assert_same(ocp.load(f"{store}/ours"), TREE)


def test_a_model_of_several_files_is_loaded(store: str) -> None:
    names = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(TREE)}
    for file in set(names.values()):
        part = {name: TREE[name] for name in TREE if names[name] == file}
        at(f"{store}/m/{file}").write_bytes(to_safetensors(part))
    index = json.dumps({"weight_map": names}).encode()
    at(f"{store}/m/model.safetensors.index.json").write_bytes(index)
    assert_same(ocp.load(f"{store}/m"), TREE)
    at(f"{store}/m/part-1.safetensors").unlink()
    with pytest.raises(FormatError, match=r"part-1\.safetensors is missing"):
        ocp.load(f"{store}/m")


def test_a_sharded_target_reads_its_own_rows_only(s3: str, proxy: Proxy) -> None:
    large = np.random.default_rng(0).random((2048, 2048), np.float32)  # 16 MiB
    data = to_safetensors({"large": large, "other": large + 1})
    at(f"{s3}/model.safetensors").write_bytes(data)
    mesh = make_mesh(x=8)
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    proxy.nbytes = 0
    lazy = ocp.load(f"{s3}/model.safetensors", only="large", lazy=True)
    np.testing.assert_array_equal(lazy["large"][256:512], large[256:512])
    assert proxy.nbytes < large.nbytes / 8 + 100_000
    proxy.nbytes = 0
    found = ocp.load(f"{s3}/model.safetensors", only="large", sharding=sharding)
    np.testing.assert_array_equal(found["large"], large)
    assert proxy.nbytes < large.nbytes + 100_000
    columns = NamedSharding(mesh, PartitionSpec(None, "x"))
    found = ocp.load(f"{s3}/model.safetensors", only="large", sharding=columns)
    np.testing.assert_array_equal(found["large"], large)


@pytest.mark.parametrize("damage", ["cut", "longer", "no header", "empty"])
def test_a_damaged_model_is_refused(store: str, damage: str) -> None:
    data = to_safetensors(TREE)
    damaged = {"cut": data[:-1], "longer": data + b"x", "no header": data[:20], "empty": b""}
    at(f"{store}/model.safetensors").write_bytes(damaged[damage])
    with pytest.raises(FormatError, match="not a sound safetensors file"):
        ocp.load(f"{store}/model.safetensors")


def test_a_model_that_is_replaced_is_noticed(store: str) -> None:
    model = at(f"{store}/model.safetensors")
    model.write_bytes(to_safetensors(TREE))
    lazy = ocp.load(str(model), lazy=True)
    model.write_bytes(to_safetensors({**TREE, "layer.0.kernel": np.ones(40, np.int8)}))
    with pytest.raises(CheckpointNotFoundError, match="replaced by another one"):
        lazy["layer.0.kernel"].get()


@pytest.mark.parametrize("name", ["", "/model.safetensors"])
def test_a_model_that_is_replaced_while_it_is_loaded_is_noticed(store: str, name: str) -> None:
    model = at(f"{store}/m/model.safetensors")
    names = "abcdefgh"
    model.write_bytes(to_safetensors({n: np.zeros(1000, np.float32) for n in names}))
    after = to_safetensors({n: np.ones(1000, np.float32) for n in names})

    def replace(value: Any) -> Any:
        model.write_bytes(after)
        return value

    with pytest.raises(CheckpointNotFoundError, match="replaced by another one"):
        ocp.load(f"{store}/m{name}", transforms=[Map("*", replace)])


def test_msgpack_of_flax_is_loaded(store: str) -> None:
    tree = {"params": {"w": np.random.default_rng(0).random((300, 100)), "b": np.arange(3)}}
    at(f"{store}/run/checkpoint_7").write_bytes(serialization.to_bytes(tree))
    assert_same(ocp.load(f"{store}/run"), tree)
    assert_same(ocp.load(f"{store}/run/checkpoint_7"), tree)
    lazy = ocp.load(f"{store}/run", lazy=True)
    assert lazy["params"]["w"][5, 7] == tree["params"]["w"][5, 7]


@pytest.mark.parametrize("size", [0, 1, 4, 5, 1023, 1024, 1025, 100_000])
def test_the_size_of_an_object_is_found(
    store: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "_PROBED_BYTES", 4)
    monkeypatch.setattr(buckets, "_MAX_SIZE_BITS", 18)
    path = at(f"{store}/a")
    path.write_bytes(bytes(size))
    assert path.bucket.size("a") == size
    for guess in (size, size - 1, size + 1, 7):
        assert path.bucket.size("a", max(0, guess)) == size


def test_models_in_stores_are_verified(store: str) -> None:
    model = at(f"{store}/m/model.safetensors")
    model.write_bytes(to_safetensors(TREE))
    for path in (f"{store}/m", str(model)):
        report = ocp.verify(path)
        assert (report.is_intact, report.files, report.leaves) == (True, 1, len(TREE))
        assert any("safetensors, which has no checksums" in str(u) for u in report.unchecked)
    model.write_bytes(model.read_bytes()[:-1])
    assert "not a sound safetensors file" in str(ocp.verify(f"{store}/m").damage[0])
    for step in (3, 20):
        data = serialization.to_bytes({"a": np.arange(step)})
        at(f"{store}/run/checkpoint_{step}").write_bytes(data)
    assert [path.name for path in ocp.verify(f"{store}/run").checkpoints] == [
        "checkpoint_3",
        "checkpoint_20",
    ]
    with pytest.raises(CheckpointNotFoundError, match="nothing is there"):
        ocp.verify(f"{store}/none")


def test_what_is_in_stores_is_converted(store: str, tmp_path: Path) -> None:
    at(f"{store}/m/model.safetensors").write_bytes(to_safetensors(TREE, {"by": "us"}))
    ocp.convert(f"{store}/m", f"{store}/ours")
    assert_same(ocp.load(f"{store}/ours"), TREE)
    assert ocp.verify(f"{store}/ours").is_intact
    with pytest.raises(CheckpointExistsError):
        ocp.convert(f"{store}/m", f"{store}/ours")
    ocp.convert(f"{store}/m", f"{store}/ours", only="ids", overwrite=True)
    assert_same(ocp.load(f"{store}/ours"), {"ids": TREE["ids"]})
    ocp.convert(f"{store}/m", tmp_path / "x.safetensors", to="safetensors")
    ocp.convert(f"{store}/ours", tmp_path / "x.msgpack", to="flax")
    assert_same(ocp.load(tmp_path / "x.safetensors"), TREE)
    assert ocp.metadata(tmp_path / "x.safetensors").custom_metadata == {"by": "us"}
    assert_same(ocp.load(tmp_path / "x.msgpack"), {"ids": TREE["ids"]})
    for name, to in (("a.safetensors", "safetensors"), ("a", "flax")):
        with pytest.raises(ValueError, match="written to local paths only"):
            ocp.convert(f"{store}/m", f"{store}/out/{name}", to=to)
    assert not at(f"{store}/out").exists()

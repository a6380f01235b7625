"""Checkpoints in object stores, from save to load."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.atomic import AtomicityMode
from orbit_ckpt._src.storage.layout import COMMIT_MARKER, MANIFEST
from orbit_ckpt._src.storage.objects import ObjectDirectory
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.storage.store_path import StorePath
from orbit_ckpt.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    CorruptionError,
    IncompleteCheckpointError,
    StorageError,
)
from orbit_ckpt.stores import register_store
from orbit_ckpt.testing.chaos.proxy import Proxy
from orbit_ckpt.testing.fakes import MemoryClient
from orbit_ckpt.type_handlers import NumpyHandler, create_type_handler_registry
from tests.support import checkpointer, put


def at(url: str) -> StorePath:
    path = resolve_path(url)
    assert isinstance(path, StorePath)
    return path


def data_object(path: StorePath) -> str:
    """Return the name of the only object with more than an index."""
    names = [name for name in path.keys_below() if name.startswith("d/")]
    (name,) = [name for name in names if len((path / name).read_bytes()) > 30_000]
    return name


def tree() -> dict[str, object]:
    return {
        "params": {"w": jnp.arange(6000.0).reshape(60, 100), "b": np.ones(3, np.int8)},
        "layers": [np.full(3000, i) for i in range(8)],
        "zeros": np.zeros((0, 3), np.float32),
        "step": 7,
        "name": "é/ü",
        "key": jax.random.key(1),
    }


def assert_same(found: object, expected: object) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert type(a) is type(b)
        is_key = isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
        of = jax.random.key_data if is_key else np.asarray
        np.testing.assert_array_equal(of(a), of(b))


def test_everything_comes_back(store: str) -> None:
    ocp.save(f"{store}/run/1", tree(), custom_metadata={"loss": 0.5})
    assert_same(ocp.load(f"{store}/run/1"), tree())


def test_a_checkpoint_may_be_at_the_top_of_a_bucket(store: str) -> None:
    ocp.save(store, {"a": np.arange(3)})
    np.testing.assert_array_equal(ocp.load(f"{store}/")["a"], np.arange(3))


def test_metadata_and_plan(store: str) -> None:
    ocp.save(f"{store}/1", tree())
    found = cast(Any, ocp.metadata(f"{store}/1").tree)
    assert found["params"]["w"].shape == (60, 100)
    assert "params/w" in str(ocp.plan(f"{store}/1"))


def test_parts_are_loaded_onto_a_sharding(store: str) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    values = jax.device_put(jnp.arange(8000.0).reshape(80, 100), sharding)
    ocp.save(f"{store}/1", {"a": values, "b": 1})
    found = ocp.load(f"{store}/1", only="a", sharding=sharding)
    np.testing.assert_array_equal(found["a"], values)
    assert found["a"].sharding == sharding


def test_data_is_sent_in_objects_of_a_bounded_size(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit_ckpt._src.storage.value_write.DEFAULT_OBJECT_BYTES", 20_000)
    values = {f"v{i}": np.random.default_rng(i).bytes(9_000) for i in range(20)}
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in values.items()}
    ocp.save(f"{store}/1", arrays)
    objects = [name for name in at(f"{store}/1").keys_below() if name.startswith("d/")]
    sizes = [len((at(f"{store}/1") / name).read_bytes()) for name in objects]
    assert len(sizes) > 5
    assert max(sizes) < 20_000 + 10_000 + 2_000
    assert_same(ocp.load(f"{store}/1"), arrays)


@pytest.mark.parametrize("compressed", [True, False])
def test_large_values_are_read_in_ranges(
    store: str, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orbit_ckpt._src.storage.buckets._READ_BYTES", 100_000)
    monkeypatch.setattr("orbit_ckpt._src.storage.value_read._STREAM_BYTES", 300_000)
    values = np.random.default_rng(0).random(300_000)
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_compression=compressed))
    checkpointer.save(f"{store}/1", {"a": values})
    np.testing.assert_array_equal(checkpointer.restore(f"{store}/1")["a"], values)


@pytest.mark.parametrize("zarr3", [True, False])
def test_a_directory_per_array(store: str, zarr3: bool) -> None:
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=zarr3)
    ocp.Checkpointer(handler).save(f"{store}/1", {"a": np.arange(30_000), "b": np.arange(3)})
    assert_same(ocp.load(f"{store}/1"), {"a": np.arange(30_000), "b": np.arange(3)})


def test_zarr2_in_a_database(store: str) -> None:
    handler = ocp.PyTreeCheckpointHandler(use_zarr3=False)
    ocp.Checkpointer(handler).save(f"{store}/1", {"a": np.arange(30_000)})
    assert_same(ocp.load(f"{store}/1"), {"a": np.arange(30_000)})


def test_a_save_in_the_background(store: str) -> None:
    handle = ocp.save_async(f"{store}/1", tree())
    handle.result()
    assert_same(ocp.load(f"{store}/1"), tree())


def test_items_of_several_kinds(store: str) -> None:
    checkpointer = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
    args = ocp.args.Composite(
        state=ocp.args.StandardSave({"a": np.arange(5)}), about=ocp.args.JsonSave({"x": 1})
    )
    checkpointer.save(f"{store}/1", args)
    found = checkpointer.restore(f"{store}/1")
    assert found.about == {"x": 1}
    np.testing.assert_array_equal(found.state["a"], np.arange(5))
    np.testing.assert_array_equal(ocp.load(f"{store}/1/state")["a"], np.arange(5))


def test_an_existing_checkpoint_is_replaced_only_if_told_to(store: str) -> None:
    ocp.save(f"{store}/1", {"a": 1})
    with pytest.raises(CheckpointExistsError, match="already exists"):
        ocp.save(f"{store}/1", {"a": 2})
    assert ocp.load(f"{store}/1") == {"a": 1}
    ocp.save(f"{store}/1", {"a": 2}, overwrite=True)
    assert ocp.load(f"{store}/1") == {"a": 2}


def test_what_is_no_checkpoint_is_never_overwritten(store: str) -> None:
    (at(store) / "run" / "notes.txt").write_bytes(b"mine")
    with pytest.raises(CheckpointExistsError, match="no checkpoint that was saved there"):
        ocp.save(f"{store}/run", {"a": 2}, overwrite=True)
    assert (at(store) / "run" / "notes.txt").read_bytes() == b"mine"


def test_overwriting_touches_no_path_with_the_same_beginning(store: str) -> None:
    ocp.save(f"{store}/1", {"a": 1})
    ocp.save(f"{store}/10", {"a": 10})
    ocp.save(f"{store}/1", {"a": 2}, overwrite=True)
    assert ocp.load(f"{store}/10") == {"a": 10}


def test_a_run_is_its_newest_step_and_a_step_that_is_not_there_is_an_error(store: str) -> None:
    for step in (9, 10):
        ocp.save(f"{store}/run/{step}", {"a": step})
    with pytest.raises(CheckpointNotFoundError, match=r"No checkpoint at .*run/2"):
        ocp.load(f"{store}/run/2")
    assert ocp.load(f"{store}/run") == {"a": 10}
    assert ocp.latest_step(f"{store}/run") == 10


def test_a_checkpoint_without_its_marker_is_not_restored(store: str) -> None:
    ocp.save(f"{store}/1", {"a": 1})
    (at(f"{store}/1") / COMMIT_MARKER).unlink()
    with pytest.raises(IncompleteCheckpointError, match=COMMIT_MARKER):
        ocp.load(f"{store}/1")


def test_a_failed_save_leaves_nothing(store: str) -> None:
    with pytest.raises(ValueError, match="no type handler"):
        ocp.save(f"{store}/1", {"a": object()})
    assert at(store).keys_below() == []


def test_of_two_saves_into_one_place_the_later_one_wins(store: str) -> None:
    path = at(f"{store}/1")
    with ObjectDirectory(path) as first, ObjectDirectory(path) as second:
        with pytest.raises(StorageError, match="another save into the same place"):
            first.commit()
        (path / "data").write_bytes(b"2")
        second.commit()
    assert path.keys_below() == [COMMIT_MARKER, "data"]


def test_damage_names_leaf_and_object(store: str) -> None:
    ocp.save(f"{store}/1", {"params": {"w": np.random.default_rng(0).random(5000)}})
    path = at(f"{store}/1")
    name = data_object(path)
    data = bytearray((path / name).read_bytes())
    data[1000] ^= 1
    (path / name).write_bytes(data)
    with pytest.raises(CorruptionError, match=r"params/w: chunk") as caught:
        ocp.load(f"{store}/1")
    assert caught.value.file == f"{path}/{name}"
    assert caught.value.path == "params/w"


def test_a_lost_object_names_leaf_and_object(store: str) -> None:
    ocp.save(f"{store}/1", {"params": {"w": np.random.default_rng(0).random(5000)}})
    path = at(f"{store}/1")
    name = data_object(path)
    (path / name).unlink()
    with pytest.raises(CorruptionError) as caught:
        ocp.load(f"{store}/1")
    assert name in str(caught.value)


def test_a_damaged_document_is_told(store: str) -> None:
    ocp.save(f"{store}/1", {"a": 1})
    path = at(f"{store}/1") / "_METADATA"
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))
    with pytest.raises(CorruptionError, match="_METADATA"):
        ocp.load(f"{store}/1")


def test_a_cut_object_is_told(store: str) -> None:
    ocp.save(f"{store}/1", {"a": np.random.default_rng(0).random(5000)})
    path = at(f"{store}/1")
    for name in path.keys_below():
        if name.startswith("d/"):
            data = (path / name).read_bytes()
            (path / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptionError, match="d/"):
        ocp.load(f"{store}/1")


def test_a_copy_is_a_checkpoint(store: str, tmp_path: Path) -> None:
    local, back = tmp_path / "local", tmp_path / "back"
    ocp.save(local, tree())
    path = at(f"{store}/copied")
    for file in local.rglob("*"):
        if file.is_file():
            (path / file.relative_to(local)).write_bytes(file.read_bytes())
    assert_same(ocp.load(path), tree())
    for name in path.keys_below():
        (back / name).parent.mkdir(parents=True, exist_ok=True)
        (back / name).write_bytes((path / name).read_bytes())
    shutil.rmtree(local)
    assert_same(ocp.load(back), tree())


def test_what_a_store_holds_is_a_checkpoint_on_a_disk(store: str, tmp_path: Path) -> None:
    ocp.save(f"{store}/1", tree())
    path = at(f"{store}/1")
    assert MANIFEST in path.keys_below()
    for name in path.keys_below():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((path / name).read_bytes())
    assert_same(ocp.load(tmp_path), tree())


def test_a_rename_is_refused(store: str) -> None:
    options = ocp.AtomicityOptions(mode=AtomicityMode.ATOMIC_RENAME)
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(), atomicity_options=options)
    with pytest.raises(ValueError, match="no rename"):
        checkpointer.save(f"{store}/1", {"a": 1})


def test_a_save_is_one_line_in_the_log(s3: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "orbit_ckpt"):
        ocp.save(f"{s3}/1", {"a": 1})
    (record,) = caplog.records
    assert record.getMessage().startswith(f"Saved {s3}/1: 8 B in ")


@pytest.mark.slow
@pytest.mark.parametrize("use_compression", [True, False])
def test_each_byte_is_requested_once_whatever_the_sharding(
    use_compression: bool, s3: str, proxy: Proxy
) -> None:
    value = np.random.default_rng(0).integers(0, 1 << 24, (256, 4096), np.int32)
    tree = {"w": put(value, "x", "y", x=2, y=4)}
    checkpointer(use_compression=use_compression).save(f"{s3}/1", tree)
    stored = ocp.plan(f"{s3}/1").bytes_read
    for spec in (("x",), (None, "x"), ()):
        wanted = put(np.zeros_like(value), *spec, x=8)
        before = proxy.nbytes
        found = ocp.load(f"{s3}/1", {"w": wanted})["w"]
        np.testing.assert_array_equal(found, value)
        assert found.sharding == wanted.sharding
        assert stored <= proxy.nbytes - before < 1.05 * stored


@pytest.mark.parametrize("kind", ["item", "type"])
def test_what_a_handler_writes_with_its_own_client_is_checked(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    client = MemoryClient("bucket")
    monkeypatch.setattr("orbit_ckpt._src.storage.bucket._registered", {})
    register_store("own", lambda _: client)

    class Arrays(NumpyHandler):
        def finalize(self, directory: Path) -> None:
            client.write(f"{at(str(directory)).key}/sums.txt", b"all of it")

    class Tree(ocp.PyTreeHandler):
        def finalize(self, directory: Any) -> None:
            client.write(f"{at(str(directory)).key}/sums.txt", b"all of it")

    if kind == "item":
        handler = ocp.Checkpointer(Tree())
    else:
        registry = create_type_handler_registry((np.ndarray, Arrays()))
        handler = checkpointer(type_handler_registry=registry)
    handler.save("own://bucket/x", {"a": np.arange(3)})
    report = ocp.verify("own://bucket/x")
    assert report.is_intact
    assert not report.unchecked
    client.write("x/sums.txt", b"something else")
    assert not ocp.verify("own://bucket/x").is_intact

"""Orbax's store of metadata documents, records of shardings, and metadata of steps."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as orbax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import orbit_ckpt as ocp
from orbit_ckpt import metadata
from orbit_ckpt.errors import IncompleteCheckpointError, StepNotFoundError

TREE = {"w": np.arange(3.0), "n": 2, "s": "text"}


@pytest.mark.interop
@pytest.mark.parametrize("is_blocking", [True, False])
def test_store_writes_and_updates_what_that_of_orbax_does(
    is_blocking: bool, tmp_path: Path
) -> None:
    found: list[Any] = []
    for name, library in (("orbax", orbax), ("ours", ocp)):
        store = library.metadata.metadata_store(enable_write=True, blocking_write=is_blocking)
        file = tmp_path / name / "_CHECKPOINT_METADATA"
        file.parent.mkdir()
        store.write(file, {"metrics": {"loss": 1.5}, "a": [1, None]})
        store.update(file, commit_timestamp_nsecs=7, a="b")
        store.update(tmp_path / name / "new", x=1)
        store.wait_until_finished()
        assert store.is_blocking_writer() is is_blocking
        found.append([store.read(file), store.read(file.with_name("new")), store.read(tmp_path)])
        store.close() if not is_blocking else None
        assert sorted(p.name for p in file.parent.iterdir()) == ["_CHECKPOINT_METADATA", "new"]
    assert found[0] == found[1]


def test_store_that_reads_only_writes_nothing(tmp_path: Path) -> None:
    store = metadata.metadata_store(enable_write=False)
    store.write(tmp_path / "a", {"x": 1})
    store.update(tmp_path / "a", x=1)
    store.wait_until_finished()
    assert not (tmp_path / "a").exists()


def test_damaged_document_is_none_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert metadata.metadata_store(enable_write=False).read(tmp_path / "a") is None
    assert "cannot be read" in caplog.text


@pytest.mark.parametrize("is_blocking", [True, False])
def test_error_of_a_write_is_raised(is_blocking: bool, tmp_path: Path) -> None:
    store = metadata.metadata_store(enable_write=True, blocking_write=is_blocking)

    def write() -> None:
        store.write(tmp_path / "none" / "a", {})
        store.wait_until_finished()

    with pytest.raises(FileNotFoundError):
        write()
    with pytest.raises(TypeError, match="JSON"):
        store.write(tmp_path / "a", {"x": object()})


def test_checkpoint_with_updated_metadata_stays_intact(tmp_path: Path) -> None:
    ocp.save(tmp_path / "x", TREE)
    store = metadata.metadata_store(enable_write=True, blocking_write=True)
    store.update(tmp_path / "x" / "_CHECKPOINT_METADATA", custom_metadata={"note": "good"})
    assert ocp.verify(tmp_path / "x").is_intact
    assert metadata.get_step_metadata(tmp_path / "x").custom_metadata == {"note": "good"}


# Metadata of steps


@pytest.mark.interop
def test_metadata_of_a_step_is_that_of_orbax(tmp_path: Path) -> None:
    checkpointer = ocp.Checkpointer(ocp.StandardHandler())
    checkpointer.save(tmp_path / "x", TREE, custom_metadata={"note": [1]})
    ours = metadata.get_step_metadata(tmp_path / "x")
    theirs = orbax.metadata.get_step_metadata(tmp_path / "x")
    for name in ("item_handlers", "item_metadata", "metrics", "custom_metadata"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("init_timestamp_nsecs", "commit_timestamp_nsecs"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.performance_metrics.step is theirs.performance_metrics.step is None


def test_directory_without_a_record_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "3").mkdir()
    for name in ("3", "none"):
        with pytest.raises(StepNotFoundError, match="no _CHECKPOINT_METADATA"):
            metadata.get_step_metadata(tmp_path / name)
    (tmp_path / f"4{ocp.step.TMP_DIR_SUFFIX}").mkdir()
    with pytest.raises(IncompleteCheckpointError):
        metadata.get_step_metadata(tmp_path / f"4{ocp.step.TMP_DIR_SUFFIX}")


def test_saves_record_how_long_they_blocked_as_orbax_reads_it(tmp_path: Path) -> None:
    ocp.save(tmp_path / "alone", {"w": np.ones(3)})
    with ocp.CheckpointManager(tmp_path / "run") as run:
        run.save(1, {"w": np.ones(3)}, custom_metadata={"note": "mine"})
    for path, waits in ((tmp_path / "alone", False), (tmp_path / "run" / "1", True)):
        found: Any = orbax.metadata.get_step_metadata(path)
        times = found.performance_metrics
        took = (found.commit_timestamp_nsecs - found.init_timestamp_nsecs) / 1e9
        assert times.checkpointer_blocking_start_time == found.init_timestamp_nsecs / 1e9
        assert 0 < times.checkpointer_blocking_duration_secs < took + 0.1
        assert (times.wait_for_prev_duration_secs is not None) == waits
        assert found.custom_metadata == ({"note": "mine"} if waits else {})


def test_leaves_of_two_checkpoints_have_equal_metadata(tmp_path: Path) -> None:
    for name in ("a", "b"):
        ocp.save(tmp_path / name, TREE)
    one, other = (ocp.metadata(tmp_path / name) for name in ("a", "b"))
    assert jax.tree.leaves(one) == jax.tree.leaves(other)
    assert one["w"] != one["n"]
    assert isinstance(one["w"], metadata.value.ArrayMetadata)
    assert isinstance(one, metadata.tree.TreeMetadata)


# Shardings


def shardings() -> list[NamedSharding]:
    devices = np.array(jax.devices()[:4]).reshape(2, 2)
    mesh = Mesh(devices, ("x", "y"))
    return [
        NamedSharding(mesh, PartitionSpec(("x", "y"), None)),
        NamedSharding(mesh, PartitionSpec("y")),
    ]


@pytest.mark.interop
@pytest.mark.parametrize("number", [0, 1])
def test_records_of_shardings_are_converted_as_by_orbax(number: int) -> None:
    sharding = shardings()[number]
    ours = metadata.NamedShardingMetadata.from_jax_sharding(sharding)
    theirs = orbax.metadata.NamedShardingMetadata.from_jax_sharding(sharding)
    assert ours.to_jax_sharding() == theirs.to_jax_sharding() == sharding
    built = metadata.NamedShardingMetadata(
        theirs.shape,
        theirs.axis_names,  # pyright: ignore[reportArgumentType] - a list, as in Orbax
        theirs.partition_spec,
        theirs.axis_types,  # pyright: ignore[reportArgumentType] - JAX's, as in Orbax
        ours.device_mesh,
    )
    assert built == ours
    assert isinstance(ours, metadata.ShardingMetadata)
    document = json.loads(theirs.to_serialized_string())
    assert {**document, "partition_spec": None} == {**ours.to_json(), "partition_spec": None}


def test_record_of_one_device_is_converted() -> None:
    sharding = SingleDeviceSharding(jax.devices()[1])
    record = metadata.SingleDeviceShardingMetadata.from_jax_sharding(sharding)
    assert record.to_jax_sharding() == sharding
    assert isinstance(record, metadata.ShardingMetadata)

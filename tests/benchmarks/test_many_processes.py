"""The plan of a save by many processes is what they would do, at a size that can be checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from benchmarks.many_processes import Cluster, llama, owners_in, plan_many
from benchmarks.plan_many_processes import main, measure
from orbit_ckpt._src.arrays.replicas import ReplicaOptions
from orbit_ckpt._src.arrays.slices import from_index
from orbit_ckpt._src.storage.ocdbt import read_index
from orbit_ckpt.errors import StorageError
from tests.support import make_mesh

SMALL = Cluster((("replica", 2), ("fsdp", 4), ("tensor", 2)), 2)


@pytest.mark.parametrize(
    "spec", [(), ("a",), (None, "b"), ("c", "a"), (("a", "b"), "c"), (("c", "b", "a"),)]
)
def test_shards_are_those_of_jax(spec: Any) -> None:
    sharding = NamedSharding(make_mesh(a=2, b=2, c=2), PartitionSpec(*spec))
    owners, _, _ = owners_in(Cluster((("a", 2), ("b", 2), ("c", 2)), 1), (8, 16), spec)
    found = {(region, process) for region, processes in owners.items() for process in processes}
    indices = sharding.devices_indices_map((8, 16))
    assert found == {(from_index(index, (8, 16)), d.id) for d, index in indices.items()}


@pytest.mark.parametrize("options", [ReplicaOptions(), ReplicaOptions(enabled=False)])
@pytest.mark.parametrize("devices", [1, 2, 3, 16])
def test_planned_pieces_make_up_the_arrays(devices: int, options: ReplicaOptions) -> None:
    cluster = Cluster(SMALL.axes, devices)
    processes = -(-16 // devices)
    plan = plan_many(cluster._replace(axes=SMALL.axes), llama(2, scale=64), options)
    written = np.zeros(len(plan.nbytes), np.int64)
    assert len(plan.nbytes) == processes
    for planned in plan.arrays:
        covered = np.zeros(planned.array.shape, int)
        for process, share in planned.shares():
            covered[share.slices] += 1
            written[process] += share.size * planned.array.dtype.itemsize
        assert (covered == 1).all(), planned.array.name
    assert written.tolist() == plan.nbytes.tolist()


def test_planned_databases_merge(tmp_path: Path) -> None:
    plan = plan_many(SMALL, llama(2, scale=64))
    cost = measure(plan, tmp_path)
    index = read_index(tmp_path)
    assert len(index) == plan.keys == cost.keys
    arrays = sum(math.prod(p.array.shape) * p.array.dtype.itemsize for p in plan.arrays)
    chunks = sum(value.length for key, value in index.items() if not isinstance(value, bytes))
    assert chunks == arrays - sum(len(v) for v in index.values() if isinstance(v, bytes)) + sum(
        len(planned.document) for planned in plan.arrays
    )


def test_planned_database_that_lacks_a_process_does_not_merge(tmp_path: Path) -> None:
    plan = plan_many(SMALL, llama(1, scale=64))
    whole = plan.keys_of_processes()
    assert len(set.union(*map(set, whole))) == sum(map(len, whole)) == plan.keys
    short = plan._replace(arrays=plan.arrays[1:])
    with pytest.raises(StorageError, match="written by no process"):
        measure(short, tmp_path, expected=plan)


def test_figures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--replica", "2", "--fsdp", "8", "--layers", "2", "--processes", "4", "16"])
    text = capsys.readouterr().out
    assert "32 processes with 4 devices each; mesh replica 2 x fsdp 8 x tensor 8" in text
    assert "(4 x processes: one range x" in text

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from orbit_ckpt._src.arrays.slices import Region, whole
from orbit_ckpt._src.arrays.snapshot import Snapshots
from orbit_ckpt._src.arrays.transfer import (
    begin_transfers,
    copy_to_host,
    host_blocks,
    local_regions,
    shards_of,
)
from tests.support import make_mesh, put

VALUES = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ((), 1),
        (("x",), 4),
        (("x", "y"), 8),
        ((("x", "y"),), 8),
        ((None, "y"), 2),
    ],
    ids=["replicated", "rows", "both", "both axes on one dimension", "partially replicated"],
)
def test_shards_cover_an_array_once_whatever_its_replication(spec: Any, count: int) -> None:
    shards = shards_of(put(VALUES, *spec, x=4, y=2))
    assert len(shards) == count
    covered = np.zeros(VALUES.shape, int)
    for shard in shards:
        covered[shard.region.slices] += 1
        assert np.array_equal(np.asarray(shard.data), VALUES[shard.region.slices])
        assert shard.nbytes == VALUES.nbytes // count
    assert (covered == 1).all()


def test_numpy_array_is_one_shard() -> None:
    (shard,) = shards_of(VALUES)
    assert shard.region == whole((8, 8))
    assert shard.data is VALUES


@pytest.mark.parametrize("on_device", [False, True])
def test_a_copy_outlives_its_source(on_device: bool) -> None:
    source = VALUES.copy()
    array = put(source, "x", x=8) if on_device else source
    shards = shards_of(array)
    copies = copy_to_host(shards, begin_transfers(shards), Snapshots())
    if isinstance(array, jax.Array):
        array.delete()
    else:
        array[:] = -1
    for copy in copies:
        assert isinstance(copy.data, np.ndarray)
        assert np.array_equal(copy.data, VALUES[copy.region.slices])


@pytest.mark.parametrize("on_device", [False, True])
def test_host_data_is_not_copied_needlessly(on_device: bool) -> None:
    source = put(VALUES) if on_device else VALUES
    (block,) = host_blocks(source, Region((2, 0), (3, 8)), 1)
    assert np.shares_memory(block, np.asarray(source))
    assert np.array_equal(block, VALUES[2:5])


def test_every_device_has_its_region() -> None:
    regions = local_regions(NamedSharding(make_mesh(x=2), P(None, "x")), (3, 8))
    assert regions == {
        jax.devices()[0]: Region((0, 0), (3, 4)),
        jax.devices()[1]: Region((0, 4), (3, 4)),
    }


def test_sharding_that_does_not_divide_a_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match="evenly divide"):
        local_regions(NamedSharding(make_mesh(x=8), P("x")), (9,))

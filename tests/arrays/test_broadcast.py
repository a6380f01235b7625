from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from orbit_ckpt._src.arrays.broadcast import (
    broadcast,
    first_failure,
    replica_devices,
    sent_bytes,
    unused_axes,
)
from orbit_ckpt._src.arrays.slices import Region
from orbit_ckpt._src.arrays.transfer import local_regions
from tests.support import make_mesh

DTYPES = [
    *("bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "int32", "uint32"),
    *("float32", "complex64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
]


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(("axis", "replica"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_one_replica_arrive_at_all(
    dtype: str, axis: int, replica: int, axis_type: AxisType
) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    data = np.random.default_rng(0).integers(0, 256, 6 * 8 * kind.itemsize, np.uint8)
    values: Any = (data & 1 if dtype == "bool" else data).view(kind).reshape(6, 8)
    devices = np.array(jax.devices()[:6]).reshape(2, 3)
    mesh = Mesh(devices, ("a", "b"), axis_types=(axis_type,) * 2)
    sharding = NamedSharding(mesh, P("b" if axis == 0 else "a"))
    target = jax.ShapeDtypeStruct((6, 8), kind, sharding=sharding)
    senders = replica_devices(mesh, axis, replica)
    pieces = {d: [r] for d, r in local_regions(sharding, (6, 8)).items() if d in senders}
    parts = {region: values[region.slices] for regions in pieces.values() for region in regions}
    array = broadcast(parts, target, axes=[mesh.axis_names[axis]], pieces=pieces)
    assert array.sharding == sharding
    assert array.dtype == kind
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tobytes() == values[shard.index].tobytes()
    assert sent_bytes(target) == values.nbytes // (3 if axis == 0 else 2)


def test_what_nobody_sends_is_zeros() -> None:
    sharding = NamedSharding(make_mesh(a=2, b=2), P("b"))
    target = jax.ShapeDtypeStruct((4,), np.float32, sharding=sharding)
    array = broadcast({}, target, axes=["a"], pieces={})
    assert not np.asarray(array).any()


def test_pieces_of_several_devices_make_the_array_whole() -> None:
    mesh = make_mesh(a=2, b=2, c=2)
    values = np.arange(48, dtype=np.float16).reshape(8, 6)
    sharding = NamedSharding(mesh, P("b"))
    target = jax.ShapeDtypeStruct((8, 6), np.float16, sharding=sharding)
    pieces: dict[jax.Device, list[Region]] = {}
    for device, part in local_regions(sharding, (8, 6)).items():
        a, _, c = np.argwhere(mesh.devices == device)[0]
        row = part.start[0] + 2 * a + c  # the last device along `a` and `c` contributes two
        rows = {(0, 0): 1, (0, 1): 1, (1, 0): 2}.get((int(a), int(c)), 0)
        pieces[device] = [Region((int(row), 0), (1, 6)) for row in range(row, row + rows)]
    parts = {region: values[region.slices] for regions in pieces.values() for region in regions}
    array = broadcast(parts, target, axes=["a", "c"], pieces=pieces)
    for shard in array.addressable_shards:
        assert np.asarray(shard.data).tobytes() == values[shard.index].tobytes()


@pytest.mark.parametrize("has_failed", [True, False])
def test_failure_is_known_to_all(has_failed: bool) -> None:
    found = first_failure(make_mesh(a=2, b=2), has_failed=has_failed)
    assert found == (0 if has_failed else None)


def test_what_one_process_has_needs_no_sending() -> None:
    mesh = make_mesh(a=2, b=2)
    assert not unused_axes(NamedSharding(mesh, P("b")), np.dtype("f4"))
    assert not unused_axes(SingleDeviceSharding(jax.devices()[0]), np.dtype("f4"))


def test_replica_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="primary_replica_id=2: axis 0 of the mesh has 2"):
        replica_devices(make_mesh(a=2, b=4), 0, 2)

from __future__ import annotations

import json
import logging
from dataclasses import replace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from orbit_ckpt._src.arrays.recorded_sharding import (
    NamedShardingMetadata,
    ShardingMetadata,
    SingleDeviceShardingMetadata,
    decode_sharding,
    encode_sharding,
    is_same_sharding,
)
from orbit_ckpt._src.arrays.sharding import ShardingResolver, default_sharding, describe_sharding
from tests.support import make_mesh

ABSENT = NamedShardingMetadata((2,), ("x",), ("x",), device_mesh=(7, 8))


def named(*spec: object, types: tuple[AxisType, ...] | None = None) -> NamedSharding:
    devices = np.array(jax.devices())[::-1].reshape(2, 4)
    return NamedSharding(Mesh(devices, ("x", "y"), axis_types=types), P(*spec))


@pytest.mark.parametrize(
    "sharding",
    [
        named("x", "y"),
        named(("x", "y"), None),
        named(None, "y"),
        named(),
        named("y", types=(AxisType.Explicit, AxisType.Auto)),
        NamedSharding(make_mesh(x=1), P("x")),
        SingleDeviceSharding(jax.devices()[3]),
    ],
    ids=lambda s: str(getattr(s, "spec", "single device")),
)
def test_sharding_comes_back_from_its_record(sharding: jax.sharding.Sharding) -> None:
    recorded = describe_sharding(sharding)
    assert recorded is not None
    decoded = decode_sharding(encode_sharding(recorded))
    assert decoded == recorded
    assert decoded is not None
    assert decoded.to_jax_sharding() == sharding


def test_sharding_that_orbax_has_no_form_for_is_not_recorded() -> None:
    abstract = NamedSharding(AbstractMesh((2,), ("x",)), P("x"))
    assert describe_sharding(abstract) is None


def test_record_of_orbax_is_understood() -> None:
    text = (
        '{"sharding_type":"NamedSharding","shape":[2,2],"axis_names":["x","y"],'
        '"axis_types":["AxisType.Auto","AxisType.Auto"],"partition_spec":["x",null],"device_mesh":'
        '{"mesh":[[{"id":0},{"id":1}],[{"id":2},{"id":3}]]}}'
    )
    decoded = decode_sharding(text)
    assert decoded is not None
    assert decoded.to_jax_sharding() == NamedSharding(make_mesh(x=2, y=2), P("x", None))
    assert json.loads(encode_sharding(decoded)) == json.loads(text)


def test_old_record_without_devices_takes_the_first_ones() -> None:
    text = (
        '{"sharding_type":"NamedSharding","shape":[4],"axis_names":["x"],"partition_spec":[["x"]]}'
    )
    decoded = decode_sharding(text)
    assert decoded is not None
    assert decoded.to_jax_sharding() == NamedSharding(make_mesh(x=4), P(("x",)))


@pytest.mark.parametrize("name", ["TFRT_CPU_2", "cpu:2", "CPU:2"])
def test_every_spelling_of_a_device_is_understood(name: str) -> None:
    sharding = SingleDeviceShardingMetadata(name).to_jax_sharding()
    assert sharding == SingleDeviceSharding(jax.devices()[2])


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (SingleDeviceShardingMetadata("tpu:0"), "device tpu:0 is not available"),
        (ABSENT, r"devices \[8\] are not available"),
        (NamedShardingMetadata((16,), ("x",), ()), "devices 16 are not available"),
    ],
    ids=["single", "named", "too many"],
)
def test_devices_that_are_not_here_are_named(
    metadata: NamedShardingMetadata | SingleDeviceShardingMetadata, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        metadata.to_jax_sharding()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting"),
        ("[]", "expected an object, found list"),
        ("{}", "unknown sharding type None"),
        ('{"sharding_type":"SingleDeviceSharding"}', "SingleDeviceSharding: field 'device_str'"),
        ('{"sharding_type":"NamedSharding","shape":[1]}', "NamedSharding: field 'axis_names'"),
        ('{"sharding_type":"NamedSharding","shape":7}', "NamedSharding: field expected a list"),
    ],
)
def test_record_that_is_not_understood_says_where(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_sharding(text)


@pytest.mark.parametrize("text", ["", '{"sharding_type":"PositionalSharding","shape":[8]}'])
def test_record_of_a_kind_that_cannot_be_rebuilt_is_none(text: str) -> None:
    assert decode_sharding(text) is None


def test_default_sharding_is_that_of_the_default_device() -> None:
    assert default_sharding() == SingleDeviceSharding(jax.devices()[0])
    with jax.default_device(jax.devices()[5]):
        assert default_sharding() == SingleDeviceSharding(jax.devices()[5])


def test_missing_devices_fall_back_to_the_default_device_and_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    resolver = ShardingResolver()
    absent = [ABSENT, SingleDeviceShardingMetadata("tpu:0"), ABSENT]
    with caplog.at_level(logging.WARNING):
        assert [resolver.resolve(a, (8, 8)) for a in absent] == [default_sharding()] * 3
    (record,) = caplog.records
    assert "Recorded sharding cannot be used here" in record.getMessage()
    assert "devices [8] are not available" in record.getMessage()


def test_given_fallback_is_used_for_missing_devices_and_for_arrays_without_a_record() -> None:
    fallback = NamedSharding(make_mesh(x=8), P())
    resolver = ShardingResolver(fallback)
    assert resolver.resolve(ABSENT, (8, 8)) is fallback
    assert resolver.resolve(None, ()) is fallback


def test_recorded_sharding_wins_over_the_fallback(caplog: pytest.LogCaptureFixture) -> None:
    wanted = named("x", "y")
    resolver = ShardingResolver(NamedSharding(make_mesh(x=8), P()))
    assert resolver.resolve(describe_sharding(wanted), (8, 8)) == wanted
    assert not caplog.records


MESH = NamedShardingMetadata((4, 2), ("x", "y"), ("x", None), ("Auto", "Auto"), tuple(range(8)))


def test_recorded_shardings_are_the_same_if_what_both_record_is() -> None:
    single = SingleDeviceShardingMetadata
    assert is_same_sharding(single("cpu:0"), single("TFRT_CPU_0"))
    assert not is_same_sharding(single("cpu:0"), single("cpu:1"))
    assert not is_same_sharding(single("cpu:0"), MESH)
    assert is_same_sharding(MESH, MESH)
    assert is_same_sharding(MESH, replace(MESH, axis_types=None, device_mesh=None))
    assert not is_same_sharding(MESH, replace(MESH, device_mesh=tuple(range(8))[::-1]))
    assert not is_same_sharding(MESH, replace(MESH, axis_types=("Auto", "Explicit")))
    assert not is_same_sharding(MESH, replace(MESH, partition_spec=("y", None)))
    assert not is_same_sharding(MESH, replace(MESH, shape=(2, 4)))


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (SingleDeviceShardingMetadata("TFRT_CPU_0"), "cpu:0"),
        (MESH, "('x', None) over x=4, y=2 (devices 0-7)"),
        (replace(MESH, device_mesh=None), "('x', None) over x=4, y=2"),
        (
            replace(MESH, axis_types=("Explicit", "Auto"), device_mesh=(1, 0, *range(2, 8))),
            "('x', None) over x=4, y=2, Explicit/Auto (devices 1, 0, 2, 3, 4, 5, 6, 7)",
        ),
        (
            NamedShardingMetadata((9,), ("x",), (), device_mesh=tuple(range(9))[::-1]),
            "() over x=9 (devices 8, 7, 6, 5, 4, 3, 2, 1, ...)",
        ),
    ],
)
def test_a_recorded_sharding_is_a_line_of_text(metadata: ShardingMetadata, text: str) -> None:
    assert str(metadata) == text


@pytest.mark.parametrize(
    ("ids", "is_recorded"),
    [(range(256), True), (range(512), False), (range(1, 513), True), (range(511, -1, -1), True)],
)
def test_ids_of_many_devices_in_order_go_without_saying(ids: range, is_recorded: bool) -> None:
    sharding = NamedShardingMetadata((2, len(ids) // 2), ("x", "y"), ("x",), None, tuple(ids))
    found = decode_sharding(encode_sharding(sharding))
    assert isinstance(found, NamedShardingMetadata)
    assert found.device_mesh == (tuple(ids) if is_recorded else None)
    assert is_same_sharding(found, sharding)

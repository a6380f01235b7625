"""Shardings as a checkpoint records them: read, compared and printed without any device.

The JSON forms are those of Orbax's `_sharding` file. Needs no JAX; `arrays.sharding` converts
between these and JAX's shardings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from orbit_ckpt._src.guards import is_json_object, is_list_or_tuple

if TYPE_CHECKING:
    import jax

_SHOWN = 8
_MANY = 256
"""A mesh of more devices omits ids that are 0 to n - 1 in order; Orbax and we assume those where
none are recorded."""

PartitionEntry = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SingleDeviceShardingMetadata:
    """A whole array on one device.

    Attributes:
        device_str: The device as text, `cpu:0`; older checkpoints have `TFRT_CPU_0`.
    """

    device_str: str

    @classmethod
    def from_jax_sharding(
        cls, jax_sharding: jax.sharding.SingleDeviceSharding
    ) -> SingleDeviceShardingMetadata:
        """Return the record of a sharding."""
        return cls(str(next(iter(jax_sharding.device_set))))

    def __str__(self) -> str:
        return _device_name(self.device_str)

    def to_jax_sharding(self) -> jax.sharding.Sharding:
        """Return the sharding on the devices of this process.

        Raises:
            ValueError: The device does not exist here.
        """
        wanted = _device_name(self.device_str)
        import jax  # noqa: PLC0415 - only what is about devices needs it

        for device in jax.local_devices():
            if _device_name(str(device)) == wanted:
                return jax.sharding.SingleDeviceSharding(device)
        raise ValueError(f"device {self.device_str} is not available")

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"sharding_type": "SingleDeviceSharding", "device_str": self.device_str}


@dataclass(frozen=True, slots=True)
class NamedShardingMetadata:
    """An array partitioned over a mesh by axis names.

    Attributes:
        shape: Number of devices along every mesh axis.
        axis_names: Names of the mesh axes.
        partition_spec: For every array dimension, the mesh axes that split it.
        axis_types: `Auto`, `Explicit` or `Manual` for every mesh axis, if recorded.
        device_mesh: Ids of the devices in C order, if recorded.
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    partition_spec: tuple[PartitionEntry, ...]
    axis_types: tuple[str, ...] | None = None
    device_mesh: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        types = self.axis_types
        given = {
            "shape": tuple(map(int, self.shape)),
            "axis_names": tuple(map(str, self.axis_names)),
            "partition_spec": tuple(map(as_partition_entry, self.partition_spec)),
            "axis_types": types and tuple(str(kind).rpartition(".")[2] for kind in types),
        }
        for name, value in given.items():
            object.__setattr__(self, name, value)  # a program may give lists, arrays and enums

    @classmethod
    def from_jax_sharding(cls, jax_sharding: jax.sharding.NamedSharding) -> NamedShardingMetadata:
        """Return the record of a sharding over devices."""
        mesh = cast("jax.sharding.Mesh", jax_sharding.mesh)
        return cls(
            shape=mesh.devices.shape,
            axis_names=tuple(map(str, mesh.axis_names)),
            partition_spec=tuple(map(as_partition_entry, jax_sharding.spec)),
            axis_types=tuple(kind.name for kind in mesh.axis_types),
            device_mesh=tuple(device.id for device in mesh.devices.flat),
        )

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={n}" for name, n in zip(self.axis_names, self.shape, strict=True))
        ids = list(self.device_mesh or ())
        is_range = len(ids) > 1 and ids == list(range(ids[0], ids[0] + len(ids)))
        some = f"{ids[0]}-{ids[-1]}" if is_range else ", ".join(map(str, ids[:_SHOWN]))
        more = ", ..." if not is_range and len(ids) > _SHOWN else ""
        devices = f" (devices {some}{more})" if ids else ""
        types = {*self.axis_types} - {"Auto"} if self.axis_types else set[str]()
        kind = f", {'/'.join(self.axis_types or ())}" if types else ""
        return f"{self.partition_spec} over {axes}{kind}{devices}"

    @property
    def _is_long_range(self) -> bool:
        """Whether the ids are a long range, which need not be repeated for each array."""
        ids = self.device_mesh or ()
        return len(ids) > _MANY and ids == tuple(range(len(ids)))

    def to_jax_sharding(self) -> jax.sharding.Sharding:
        """Return the sharding on the devices of the same ids.

        Raises:
            ValueError: Some of the devices do not exist here.
        """
        import jax  # noqa: PLC0415 - only what is about devices needs it
        from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec  # noqa: PLC0415 - as above

        count = math.prod(self.shape)
        by_id = {device.id: device for device in jax.devices()}
        ids = self.device_mesh or tuple(sorted(by_id)[:count])
        missing = [i for i in ids if i not in by_id]
        if missing or len(set(ids)) != count:
            raise ValueError(f"devices {missing or count} are not available")
        devices = np.array([by_id[i] for i in ids], dtype=object).reshape(self.shape)
        types = tuple(AxisType[t] for t in self.axis_types) if self.axis_types else None
        mesh = Mesh(devices, self.axis_names, axis_types=types)
        return NamedSharding(mesh, PartitionSpec(*self.partition_spec))

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        document: dict[str, object] = {
            "sharding_type": "NamedSharding",
            "shape": list(self.shape),
            "axis_names": list(self.axis_names),
            "partition_spec": [list(e) if isinstance(e, tuple) else e for e in self.partition_spec],
        }
        if self.axis_types is not None:
            document["axis_types"] = [f"AxisType.{t}" for t in self.axis_types]
        if self.device_mesh is not None and not self._is_long_range:
            ids = np.array([{"id": i} for i in self.device_mesh], dtype=object)
            document["device_mesh"] = {"mesh": ids.reshape(self.shape).tolist()}
        return document


ShardingMetadata = SingleDeviceShardingMetadata | NamedShardingMetadata


def is_same_sharding(a: ShardingMetadata, b: ShardingMetadata) -> bool:
    """Return whether two shardings agree in every field that both record."""
    if isinstance(a, SingleDeviceShardingMetadata) or isinstance(b, SingleDeviceShardingMetadata):
        return str(a) == str(b)
    optional = ((a.axis_types, b.axis_types), (a.device_mesh, b.device_mesh))
    return (a.shape, a.axis_names, a.partition_spec) == (
        b.shape,
        b.axis_names,
        b.partition_spec,
    ) and all(None in pair or pair[0] == pair[1] for pair in optional)


def encode_sharding(metadata: ShardingMetadata) -> str:
    """Encode a sharding as text for the `_sharding` file."""
    return json.dumps(metadata.to_json(), separators=(",", ":"))


def decode_sharding(text: str) -> ShardingMetadata | None:
    """Decode a text of the `_sharding` file.

    None for kinds that mean nothing without their devices (`PositionalSharding`, or the empty text
    that old writers left for it).

    Raises:
        ValueError: The text is not JSON or lacks a field.
    """
    if not text:
        return None
    try:
        document: object = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not is_json_object(document):
        raise ValueError(f"expected an object, found {type(document).__name__}")
    kind = document.get("sharding_type")
    try:
        if kind == "SingleDeviceSharding":
            return SingleDeviceShardingMetadata(str(document["device_str"]))
        if kind == "NamedSharding":
            return _decode_named(document)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{kind}: field {error} is missing or of a wrong type") from error
    if isinstance(kind, str):
        return None
    raise ValueError(f"unknown sharding type {kind!r}")


def _decode_named(fields: Mapping[str, object]) -> NamedShardingMetadata:
    types = fields.get("axis_types")
    mesh = fields.get("device_mesh")
    return NamedShardingMetadata(
        shape=tuple(map(_int, _list(fields["shape"]))),
        axis_names=tuple(map(str, _list(fields["axis_names"]))),
        partition_spec=tuple(map(as_partition_entry, _list(fields["partition_spec"]))),
        axis_types=tuple(map(str, _list(types))) if types else None,
        device_mesh=_device_ids(mesh) if mesh else None,
    )


def _device_ids(mesh: object) -> tuple[int, ...]:
    ids: list[int] = []

    def walk(node: object) -> None:
        if is_json_object(node):
            ids.append(_int(node["id"]))
        else:
            for child in _list(node):
                walk(child)

    if not is_json_object(mesh):
        raise TypeError(f"expected an object, found {type(mesh).__name__}")
    walk(mesh["mesh"])
    return tuple(ids)


def as_partition_entry(entry: object) -> PartitionEntry:
    """Convert a partition spec's entry for one dimension to plain types."""
    if entry is None or isinstance(entry, str):
        return entry
    return tuple(map(str, _list(entry)))


def _int(value: object) -> int:
    if not isinstance(value, int | float | str):
        raise TypeError(f"expected a number, found {type(value).__name__}")
    return int(value)


def _list(value: object) -> Sequence[object]:
    if not is_list_or_tuple(value):
        raise TypeError(f"expected a list, found {type(value).__name__}")
    return value


def _device_name(text: str) -> str:
    """Normalize the spelling of a device: `TFRT_CPU_0` and `cpu:0` are the same."""
    return text.lower().removeprefix("tfrt_").replace("_", ":")

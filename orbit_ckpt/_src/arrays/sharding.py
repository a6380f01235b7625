"""Shardings as a checkpoint records them: read, compared and printed without any device.

The JSON forms are those of Orbax's `_sharding` file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.text import visible

_logger = logging.getLogger(__name__)

_SHOWN = 8
_MANY = 256
"""Devices of a mesh whose ids are left out if they are the first ones in order; to Orbax and to us
they are what is meant where none are recorded."""

PartitionEntry = str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SingleDeviceShardingMetadata:
    """A whole array on one device.

    Attributes:
        device_str: The device as text, `cpu:0`; older checkpoints have `TFRT_CPU_0`.
    """

    device_str: str

    def __str__(self) -> str:
        return _device_name(self.device_str)

    def to_jax_sharding(self) -> jax.sharding.Sharding:
        """Return the sharding on this process's devices.

        Raises:
            ValueError: The device is not here.
        """
        wanted = _device_name(self.device_str)
        for device in jax.local_devices():
            if _device_name(str(device)) == wanted:
                return SingleDeviceSharding(device)
        raise ValueError(f"device {self.device_str} is not available")

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"sharding_type": "SingleDeviceSharding", "device_str": self.device_str}


@dataclass(frozen=True, slots=True)
class NamedShardingMetadata:
    """An array laid out over a mesh by axis names.

    Attributes:
        shape: Number of devices along every mesh axis.
        axis_names: Names of the mesh axes.
        partition_spec: For every array dimension the mesh axes it is split over.
        axis_types: `Auto`, `Explicit` or `Manual` for every mesh axis, if recorded.
        device_mesh: Ids of the devices in C order, if recorded.
    """

    shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    partition_spec: tuple[PartitionEntry, ...]
    axis_types: tuple[str, ...] | None = None
    device_mesh: tuple[int, ...] | None = None

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
        """Whether the ids are many that go without saying; each array would repeat them."""
        ids = self.device_mesh or ()
        return len(ids) > _MANY and ids == tuple(range(len(ids)))

    def to_jax_sharding(self) -> jax.sharding.Sharding:
        """Return the sharding on the devices of the same ids.

        Raises:
            ValueError: Some of the devices are not here.
        """
        count = int(np.prod(self.shape))
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
    """Whether two recorded shardings agree in all that is recorded of both."""
    if isinstance(a, SingleDeviceShardingMetadata) or isinstance(b, SingleDeviceShardingMetadata):
        return str(a) == str(b)
    optional = ((a.axis_types, b.axis_types), (a.device_mesh, b.device_mesh))
    return (a.shape, a.axis_names, a.partition_spec) == (
        b.shape,
        b.axis_names,
        b.partition_spec,
    ) and all(None in pair or pair[0] == pair[1] for pair in optional)


def describe_sharding(
    sharding: jax.sharding.Sharding | ShardingMetadata,
) -> ShardingMetadata | None:
    """Return what a checkpoint records of a sharding, None for kinds that Orbax has no form for.

    What one has recorded is returned as it is.
    """
    match sharding:
        case NamedSharding(mesh=Mesh() as mesh, spec=spec):
            return NamedShardingMetadata(
                shape=tuple(mesh.devices.shape),
                axis_names=tuple(map(str, mesh.axis_names)),
                partition_spec=tuple(_partition_entry(entry) for entry in spec),
                axis_types=tuple(t.name for t in mesh.axis_types),
                device_mesh=tuple(device.id for device in mesh.devices.flat),
            )
        case SingleDeviceSharding():
            (device,) = sharding.device_set
            return SingleDeviceShardingMetadata(str(device))
        case NamedShardingMetadata() | SingleDeviceShardingMetadata():
            return sharding
        case _:
            return None


def encode_sharding(metadata: ShardingMetadata) -> str:
    """Return the text that stands for a sharding in the `_sharding` file."""
    return json.dumps(metadata.to_json(), separators=(",", ":"))


def decode_sharding(text: str) -> ShardingMetadata | None:
    """Return the sharding that a text of the `_sharding` file describes.

    None for kinds that say nothing without their devices (`PositionalSharding`, or the empty text
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
    if not isinstance(document, Mapping):
        raise ValueError(f"expected an object, found {type(document).__name__}")
    fields = cast(Mapping[str, object], document)
    kind = fields.get("sharding_type")
    try:
        if kind == "SingleDeviceSharding":
            return SingleDeviceShardingMetadata(str(fields["device_str"]))
        if kind == "NamedSharding":
            return _decode_named(fields)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{kind}: field {error} is missing or of a wrong type") from error
    if isinstance(kind, str):
        return None
    raise ValueError(f"unknown sharding type {kind!r}")


def as_sharding(value: object, where: str) -> jax.sharding.Sharding:
    """Return the sharding that a caller's value stands for.

    Args:
        value: A sharding; a memory layout, which wraps one; or a device, which holds whole arrays.
        where: The argument or leaf that it was given for, for the message.

    Raises:
        TypeError: It is something else, or a sharding without devices.
    """
    if isinstance(value, NamedSharding) and type(value.mesh) is Mesh:
        return value  # what most are
    inner: object = value
    if not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        inner = getattr(value, "sharding", value)  # of a jax.experimental.layout.Format
    if isinstance(inner, jax.Device):
        return SingleDeviceSharding(inner)
    if isinstance(inner, jax.sharding.Sharding):
        if not isinstance(inner, NamedSharding) or isinstance(inner.mesh, Mesh):
            return inner
        found = f"{inner}, whose mesh is abstract and has no devices"
    else:
        found = f"{type(value).__name__} {str(value)[:200]!r}"
    raise TypeError(
        f"{where}: expected a jax.sharding.Sharding or a jax.Device, found {found}. Give a "
        "jax.sharding.NamedSharding(mesh, PartitionSpec(...)); to choose by leaf names, give "
        "sharding=orbit_ckpt.transform.partition(mesh, {'**/kernel': PartitionSpec('x'), ...})."
    )


def check_divides(sharding: jax.sharding.Sharding, shape: Shape, rank: int) -> None:
    """Check that an array can have a sharding.

    Args:
        sharding: The sharding.
        shape: The array's shape.
        rank: How many of its dimensions the caller knows of; typed keys have more.

    Raises:
        ValueError: The sharding has more dimensions than the array, or does not divide one evenly.
    """
    entries = tuple(sharding.spec) if isinstance(sharding, NamedSharding) else ()
    spec = sharding.spec if isinstance(sharding, NamedSharding) else sharding
    # the trailing dimensions of keys are recorded as entries that are None
    if len(entries) > len(shape) or any(entry is not None for entry in entries[rank:]):
        problem = f"the spec has {len(entries)} entries, the array {rank} dimensions"
    else:
        try:
            sharding.shard_shape(shape)
        except (ValueError, IndexError) as error:
            problem = str(error)
        else:
            return
    raise ValueError(
        f"shape {shape[:rank]} cannot have a sharding with {spec}: {problem}. Give this leaf "
        "another sharding, by its name in sharding={...} or in the target."
    )


def default_sharding() -> jax.sharding.Sharding:
    """Return the sharding of JAX's default device."""
    default: object = jax.config.jax_default_device
    device = default if isinstance(default, jax.Device) else jax.local_devices()[0]
    return SingleDeviceSharding(device)


class ShardingResolver:
    """Turns recorded shardings into JAX's; a hint, not a requirement.

    One resolver serves one restore: it builds equal shardings once and reports once if recorded
    devices are not here.
    """

    def __init__(self, fallback: jax.sharding.Sharding | None = None) -> None:
        """Make a resolver.

        Args:
            fallback: Sharding for arrays whose own cannot be had; None is the default device.
        """
        self.fallback = fallback
        self._resolved: dict[ShardingMetadata, jax.sharding.Sharding] = {}
        self._reported = False

    def resolve(self, metadata: ShardingMetadata | None, shape: Shape) -> jax.sharding.Sharding:
        """Return the recorded sharding, or the fallback if an array cannot have it here."""
        if metadata is None:
            return self.fallback or default_sharding()
        try:
            self._build(metadata).shard_shape(shape)
            return self._resolved[metadata]
        except Exception as error:  # noqa: BLE001 - a hint may be wrong in any way
            instead = self.fallback or default_sharding()
            if not self._reported:
                self._reported = True
                _logger.warning(
                    "Recorded sharding cannot be used here (%s); placing arrays on %s instead. "
                    "Give a target with shardings to choose.",
                    visible(str(error)),
                    instead,
                )
            return instead

    def find(self, metadata: ShardingMetadata) -> jax.sharding.Sharding | None:
        """Return the recorded sharding, whatever the shape; None if its devices are not here."""
        try:
            return self._build(metadata)
        except Exception:  # noqa: BLE001 - a hint may be wrong in any way
            return None

    def _build(self, metadata: ShardingMetadata) -> jax.sharding.Sharding:
        if metadata not in self._resolved:
            self._resolved[metadata] = metadata.to_jax_sharding()
        return self._resolved[metadata]


def _decode_named(fields: Mapping[str, object]) -> NamedShardingMetadata:
    types = fields.get("axis_types")
    mesh = fields.get("device_mesh")
    return NamedShardingMetadata(
        shape=tuple(int(cast(int, n)) for n in _list(fields["shape"])),
        axis_names=tuple(map(str, _list(fields["axis_names"]))),
        partition_spec=tuple(_partition_entry(entry) for entry in _list(fields["partition_spec"])),
        axis_types=tuple(str(t).rpartition(".")[2] for t in _list(types)) if types else None,
        device_mesh=_device_ids(cast(Mapping[str, object], mesh)) if mesh else None,
    )


def _device_ids(mesh: Mapping[str, object]) -> tuple[int, ...]:
    ids: list[int] = []

    def walk(node: object) -> None:
        if isinstance(node, Mapping):
            ids.append(int(cast(Mapping[str, int], node)["id"]))
        else:
            for child in _list(node):
                walk(child)

    walk(mesh["mesh"])
    return tuple(ids)


def _partition_entry(entry: object) -> PartitionEntry:
    if entry is None or isinstance(entry, str):
        return entry
    return tuple(map(str, _list(entry)))


def _list(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"expected a list, found {type(value).__name__}")
    return cast(Sequence[object], value)


def _device_name(text: str) -> str:
    """Return one spelling for a device: `TFRT_CPU_0` and `cpu:0` are the same."""
    return text.lower().removeprefix("tfrt_").replace("_", ":")

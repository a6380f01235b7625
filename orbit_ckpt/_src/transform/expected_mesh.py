"""Meshes that a checkpoint will be loaded on, and the parts of arrays that their devices need."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from orbit_ckpt._src.arrays.recorded_sharding import (
    NamedShardingMetadata,
    PartitionEntry,
    as_partition_entry,
)
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.errors import FormatError
from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping
from orbit_ckpt._src.runtime.checks import check_int, show
from orbit_ckpt._src.transform.patterns import Pattern, compile_pattern, compile_regex

PartitionEntries = tuple[PartitionEntry, ...]

_EXAMPLE = '{"axes": {"data": 2, "model": 4}, "specs": {".*/kernel": [null, "model"]}}'


@dataclass(frozen=True, slots=True)
class ExpectedMesh:
    """A mesh that a checkpoint will be loaded on; it needs no devices here.

    Attributes:
        axes: Number of devices along each axis, by name.
        specs: Partition specs by patterns, of which the first that matches a leaf counts; a leaf
            that none matches keeps the spec that it has or was saved with. Axes of a spec that the
            mesh lacks do not split arrays.

    Raises:
        TypeError: A size is not an integer, or a spec is none.
        ValueError: A size is not positive.

    Example:
        >>> mesh = ExpectedMesh({"data": 2, "model": 4}, {"**/kernel": (None, "model")})
        >>> mesh.shard_shape("mlp/kernel", (64, 64))
        (64, 16)
    """

    axes: Mapping[str, int]
    specs: Mapping[Pattern, Sequence[PartitionEntry]] = field(
        default_factory=dict[Pattern, Sequence[PartitionEntry]]
    )

    def __post_init__(self) -> None:
        for name, size in self.axes.items():
            check_int(f"axes[{name!r}]", size, least=1)
        for pattern, spec in self.specs.items():
            compile_pattern(pattern)
            _as_entries(spec, f"specs[{pattern!r}]")

    def shard_shape(self, name: str, shape: Shape, own: PartitionEntries | None = None) -> Shape:
        """Return the shape of the part of a leaf that a device of the mesh holds.

        Args:
            name: The leaf's name.
            shape: Its shape.
            own: Its own partition spec, None if it has none.
        """
        found = (spec for key, spec in self.specs.items() if compile_pattern(key).fullmatch(name))
        entries = _as_entries(next(found, own or ()), name)
        counts = [math.prod(self.axes.get(axis, 1) for axis in _axes_of(e)) for e in entries]
        counts += [1] * (len(shape) - len(counts))
        return tuple(-(-n // count) for n, count in zip(shape, counts, strict=False))


def as_expected_meshes(meshes: object) -> list[ExpectedMesh]:
    """Convert a caller's meshes.

    Args:
        meshes: A sequence of meshes of JAX, with devices or abstract, of sizes by axis name, and of
            `ExpectedMesh`.

    Raises:
        TypeError: It is something else.
    """
    if not is_list_or_tuple(meshes):
        raise TypeError(
            f"expected_meshes must be a list of meshes, found {show(meshes)}. Give [mesh], or "
            "[{'data': 8}]."
        )
    return [_as_mesh(mesh) for mesh in meshes]


def read_meshes(text: str, where: str) -> list[ExpectedMesh]:
    """Parse a JSON document of one mesh or a list of them.

    A mesh is an object with `axes`, the sizes by name, and optionally `specs`, partition specs by
    regular expressions, which must match the whole name of a leaf.

    Args:
        text: The document.
        where: Its file, for messages.

    Raises:
        FormatError: It is something else.
    """
    try:
        document: object = json.loads(text)
        documents = document if is_list_or_tuple(document) else [document]
        return [_parse_mesh(one) for one in documents]
    except (ValueError, TypeError, LookupError) as error:
        raise FormatError(f"{where}: {error}. Expected a mesh such as {_EXAMPLE}.") from error


def own_spec(sharding: object) -> PartitionEntries | None:
    """Return the partition spec of a leaf's sharding, of JAX or recorded; None without any."""
    if isinstance(sharding, NamedShardingMetadata):
        return sharding.partition_spec
    spec = getattr(sharding, "spec", None)
    return None if spec is None else tuple(map(as_partition_entry, spec))


def _parse_mesh(document: object) -> ExpectedMesh:
    if not is_mapping(document) or not is_mapping(document.get("axes")):
        raise ValueError("a mesh is an object with 'axes'")
    if unknown := sorted(str(name) for name in document if name not in {"axes", "specs"}):
        raise ValueError(f"unknown names {unknown}")
    specs = cast(Mapping[str, Any], document.get("specs", {}))
    return ExpectedMesh(
        cast(Mapping[str, int], document["axes"]),
        {compile_regex(pattern): spec for pattern, spec in specs.items()},
    )


def _as_mesh(mesh: object) -> ExpectedMesh:
    if isinstance(mesh, ExpectedMesh):
        return mesh
    axes = mesh if is_mapping(mesh) else getattr(mesh, "shape", None)  # of JAX's meshes
    if not is_mapping(axes):
        raise TypeError(
            f"expected_meshes has {show(mesh)}; give a jax.sharding.Mesh, sizes by axis name such "
            "as {'data': 8}, or an ExpectedMesh."
        )
    return ExpectedMesh(dict(cast(Mapping[str, int], axes)))


def _as_entries(spec: object, where: str) -> PartitionEntries:
    if isinstance(spec, str) or not isinstance(spec, Sequence):
        raise TypeError(f"{where} must be a partition spec such as ('x', None), found {show(spec)}")
    entries = cast(Sequence[object], spec)
    bad = [e for e in entries if not (e is None or isinstance(e, str) or is_list_or_tuple(e))]
    if bad:
        raise TypeError(f"{where} has {show(bad[0])}; give axis names, tuples of them, or None")
    return tuple(as_partition_entry(entry) for entry in entries)


def _axes_of(entry: PartitionEntry) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)

"""Shardings as a page draws them: which part of an array each device holds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from orbit_ckpt._src.arrays.recorded_sharding import NamedShardingMetadata, ShardingMetadata
from orbit_ckpt._src.checkpointer.inspect import metadata
from orbit_ckpt._src.metadata.values import ArrayMetadata
from orbit_ckpt._src.tree.build import leaves_of

_MOST_PARTS = 1024
"""A map of more parts is not drawn."""


def device_maps(path: Path) -> dict[str, dict[str, object]]:
    """Return the shardings of a checkpoint by their text, as JSON fields.

    Each has `mesh`, the sizes of the mesh axes by name; `spec`, the axes that split each dimension;
    `dims`, the one or two dimensions that the map shows; and `grid`, for every part along these the
    ids of the devices that hold it. `grid` is None for too many parts.
    """
    found: dict[str, dict[str, object]] = {}
    for _, value in leaves_of(metadata(path).tree):
        if isinstance(value, ArrayMetadata) and value.sharding is not None:
            text = str(value.sharding)
            if text not in found:
                found[text] = _device_map(value.sharding)
    return found


def _device_map(sharding: ShardingMetadata) -> dict[str, object]:
    if not isinstance(sharding, NamedShardingMetadata):
        return {"mesh": {}, "spec": [], "dims": [], "grid": [[[str(sharding)]]]}
    sizes = dict(zip(sharding.axis_names, sharding.shape, strict=True))
    spec = [
        [] if entry is None else [entry] if isinstance(entry, str) else list(entry)
        for entry in sharding.partition_spec
    ]
    parts = [math.prod(sizes.get(axis, 1) for axis in axes) for axes in spec]
    dims = [dim for dim, count in enumerate(parts) if count > 1][:2]
    return {
        "mesh": sizes,
        "spec": spec,
        "dims": dims,
        "grid": _grid(sharding, [spec[dim] for dim in dims]),
    }


def _grid(sharding: NamedShardingMetadata, splits: list[list[str]]) -> list[list[list[int]]] | None:
    """Return the ids of the devices that hold each part along the split dimensions."""
    count = math.prod(sharding.shape)
    ids = np.array(sharding.device_mesh or range(count)).reshape(sharding.shape)
    axes = [[sharding.axis_names.index(name) for name in names] for names in splits]
    order = [axis for group in axes for axis in group]
    rest = [axis for axis in range(ids.ndim) if axis not in order]
    rows, columns = (
        math.prod(sharding.shape[axis] for axis in group) for group in [*axes, [], []][:2]
    )
    if rows * columns > _MOST_PARTS:
        return None
    return ids.transpose([*order, *rest]).reshape(rows, columns, -1).tolist()

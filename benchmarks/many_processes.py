"""Plan the save of a model by many processes, without data, devices or processes.

The plan uses the functions of a real save: the division of arrays among processes
(`orbit_ckpt._src.arrays.replicas`), the chunks, and the contents of the documents.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import ml_dtypes
import numpy as np

from orbit_ckpt._src.arrays.dtypes import DType
from orbit_ckpt._src.arrays.recorded_sharding import NamedShardingMetadata, encode_sharding
from orbit_ckpt._src.arrays.replicas import (
    Division,
    ReplicaOptions,
    WriterRotation,
    divide_among,
    owners_of,
)
from orbit_ckpt._src.arrays.slices import (
    Region,
    Shape,
    choose_chunk_shape,
    chunk_indices,
    effective_chunk_bytes,
)
from orbit_ckpt._src.metadata.array_records import ArrayRecord, encode_arrays
from orbit_ckpt._src.metadata.schema import JAX_ARRAY, LeafRecord, TreeDocument
from orbit_ckpt._src.storage.layout import DEFAULT_DATA_FILE_BYTES, join_key
from orbit_ckpt._src.storage.zarr import ZarrArray, describe_array

Spec = tuple[str | tuple[str, ...] | None, ...]
Owners = Mapping[Region, Sequence[int]]


class Cluster(NamedTuple):
    """Processes and the mesh of their devices.

    Attributes:
        axes: Devices along each axis of the mesh; the last varies fastest.
        devices: Number of devices per process; they are consecutive in the mesh.
    """

    axes: tuple[tuple[str, int], ...]
    devices: int

    @property
    def processes(self) -> int:
        """Number of processes."""
        return -(-math.prod(n for _, n in self.axes) // self.devices)


class Array(NamedTuple):
    """An array of a model.

    Attributes:
        name: Its storage name.
        shape: Its shape.
        dtype: Its dtype.
        spec: The mesh axes that each dimension is divided over.
    """

    name: str
    shape: Shape
    dtype: DType
    spec: Spec


class PlannedArray(NamedTuple):
    """An array and its division among processes.

    Attributes:
        array: The array.
        division: How its shards are split.
        owners: The processes that hold each shard.
        first: The one of them that writes the first piece.
        layout: How it is stored.
        document: Its zarr document.
    """

    array: Array
    division: Division
    owners: Owners
    first: int
    layout: ZarrArray
    document: bytes

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        grid = zip(self.array.shape, self.layout.chunk_shape, strict=True)
        return math.prod(-(-n // chunk) for n, chunk in grid)

    def shares(self) -> Iterator[tuple[int, Region]]:
        """Yield the numbers of processes with the regions that they write."""
        for shard, processes in self.owners.items():
            for position, process in enumerate(processes):
                turned = (position - self.first) % len(processes)
                share = self.division.share(shard, turned, len(processes))
                if share is not None:
                    yield process, share


class Plan(NamedTuple):
    """The plan of a save.

    Attributes:
        cluster: The processes that write.
        arrays: The arrays.
        nbytes: Bytes of arrays that each process writes.
    """

    cluster: Cluster
    arrays: Sequence[PlannedArray]
    nbytes: np.ndarray

    @property
    def keys(self) -> int:
        """Entries of the B+tree at the root."""
        return sum(planned.chunks + 1 for planned in self.arrays)

    def keys_of_processes(self) -> list[dict[str, int]]:
        """Return the keys that each process writes, and the size of each value."""
        found: list[dict[str, int]] = [{} for _ in range(self.cluster.processes)]
        for planned in self.arrays:
            name, layout = planned.array.name, planned.layout
            found[0][join_key(name, layout.document_name)] = len(planned.document)
            for process, share in planned.shares():
                for index in chunk_indices(share, layout.chunk_shape):
                    found[process][layout.chunk_key(name, index)] = layout.chunk_nbytes
        return found

    @property
    def records(self) -> bytes:
        """The records of all arrays that each process writes."""
        return encode_arrays(
            [
                ArrayRecord(
                    planned.array.name,
                    planned.division.shape,
                    planned.layout.chunk_shape,
                    None,
                    planned.array.shape,
                    planned.layout.dtype.name,
                )
                for planned in self.arrays
            ]
        )

    @property
    def tree_document(self) -> bytes:
        """The document that lists the leaves."""
        names = [tuple(planned.array.name.split(".")) for planned in self.arrays]
        return TreeDocument(
            [
                LeafRecord(path, path, planned.array.name, JAX_ARRAY, False, planned.division.shape)
                for path, planned in zip(names, self.arrays, strict=True)
            ]
        ).encode()

    @property
    def sharding_bytes(self) -> int:
        """Size of the document with the shardings, in which each array repeats its own."""
        sizes = {spec: len(self._sharding(spec)) for spec in {p.array.spec for p in self.arrays}}
        return sum(sizes[p.array.spec] + 4 * len(p.array.name) // 3 for p in self.arrays)

    def _sharding(self, spec: Spec) -> str:
        shape = tuple(n for _, n in self.cluster.axes)
        names = tuple(name for name, _ in self.cluster.axes)
        ids = tuple(range(math.prod(shape)))
        types = ("Auto",) * len(names)
        return encode_sharding(NamedShardingMetadata(shape, names, spec, types, ids))


def plan_many(
    cluster: Cluster, arrays: Sequence[Array], options: ReplicaOptions | None = None
) -> Plan:
    """Return the plan of a save.

    Args:
        cluster: The processes.
        arrays: The arrays of the tree, in its order.
        options: Options for the division of replicas.
    """
    nbytes = np.zeros(cluster.processes, np.int64)
    rotation = WriterRotation()
    planned: list[PlannedArray] = []
    for array in arrays:
        owners, table, count = owners_in(cluster, array.shape, array.spec)
        itemsize = array.dtype.itemsize
        division, layout, document = _division(
            cluster, array.shape, array.dtype, array.spec, options or ReplicaOptions()
        )
        first = rotation.next_writer(division, count, itemsize)
        planned.append(PlannedArray(array, division, owners, first, layout, document))
        piece = math.prod(division.shape) * itemsize
        if table is None:
            for process, share in planned[-1].shares():
                nbytes[process] += share.size * itemsize
            continue
        for number in range(division.pieces):
            position = (number * count // division.pieces + first) % count
            np.add.at(nbytes, table[:, position], piece)
    return Plan(cluster, planned, nbytes)


@functools.lru_cache
def owners_in(cluster: Cluster, shape: Shape, spec: Spec) -> tuple[Owners, np.ndarray | None, int]:
    """Return the processes that hold each shard of an array.

    Returns:
        The processes by shard; the same as a table with a row per shard, None if their numbers
        differ; the largest number of processes that hold one shard.
    """
    sizes = dict(cluster.axes)
    places = np.indices(tuple(sizes.values())).reshape(len(sizes), -1)
    coordinates = dict(zip(sizes, places, strict=True))
    starts: list[list[int]] = []
    extents: list[int] = []
    for extent, entry in zip(shape, (*spec, *[None] * (len(shape) - len(spec))), strict=True):
        axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        number = np.zeros(places.shape[1], np.int64)
        for axis in axes:
            number = number * sizes[axis] + coordinates[axis]
        extents.append(extent // math.prod(sizes[axis] for axis in axes))
        starts.append((number * extents[-1]).tolist())
    processes = (np.arange(places.shape[1]) // cluster.devices).tolist()
    corners = zip(*starts, strict=True) if starts else [()] * len(processes)
    owners = owners_of(
        (Region(corner, tuple(extents)), process)
        for corner, process in zip(corners, processes, strict=True)
    )
    counts = {len(found) for found in owners.values()}
    table = np.array(list(owners.values())) if len(counts) == 1 else None
    return owners, table, max(counts)


@functools.lru_cache
def _division(
    cluster: Cluster, shape: Shape, dtype: DType, spec: Spec, options: ReplicaOptions
) -> tuple[Division, ZarrArray, bytes]:
    owners, _, _ = owners_in(cluster, shape, spec)
    division = divide_among(owners, dtype.itemsize, options)
    write_bytes = math.prod(division.shape) * dtype.itemsize
    limit = effective_chunk_bytes(write_bytes, chunk_bytes=None, file_bytes=DEFAULT_DATA_FILE_BYTES)
    chunk = choose_chunk_shape(shape, division.shape, itemsize=dtype.itemsize, max_bytes=limit)
    layout, document = describe_array(shape, chunk, dtype, zarr_format=3, compress=True)
    return division, layout, document


def llama(layers: int = 80, *, scale: int = 1) -> list[Array]:
    """Return the arrays of a model like Llama 70B and of Adam's two moments.

    Args:
        layers: Number of layers.
        scale: Divisor of its dimensions.
    """
    model, hidden, keys, words = 8192 // scale, 28672 // scale, 1024 // scale, 128256 // scale
    into: Spec = ("fsdp", "tensor")
    out: Spec = ("tensor", "fsdp")
    layer: dict[str, tuple[Shape, Spec]] = {
        "attention.wq": ((model, model), into),
        "attention.wk": ((model, keys), into),
        "attention.wv": ((model, keys), into),
        "attention.wo": ((model, model), out),
        "mlp.gate": ((model, hidden), into),
        "mlp.up": ((model, hidden), into),
        "mlp.down": ((hidden, model), out),
        "norm_1.scale": ((model,), ()),
        "norm_2.scale": ((model,), ()),
    }
    parameters: dict[str, tuple[Shape, Spec]] = {
        "embedding": ((words, model), out),
        "head": ((model, words), into),
        "norm.scale": ((model,), ()),
        **{f"layers.{i}.{name}": found for i in range(layers) for name, found in layer.items()},
    }
    kinds = {
        "params": np.dtype(ml_dtypes.bfloat16),
        "opt_state.mu": np.dtype(np.float32),
        "opt_state.nu": np.dtype(np.float32),
    }
    return [
        Array(f"{kind}.{name}", shape, dtype, spec)
        for kind, dtype in kinds.items()
        for name, (shape, spec) in parameters.items()
    ]

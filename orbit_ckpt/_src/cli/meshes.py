"""Commands about the meshes that a checkpoint will be loaded on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, structs

from orbit_ckpt._src.arrays.chunk_choice import read_ratio
from orbit_ckpt._src.arrays.dtypes import is_prng_dtype
from orbit_ckpt._src.arrays.slices import Shape
from orbit_ckpt._src.checkpointer.convert import rechunk as rechunk_checkpoint
from orbit_ckpt._src.checkpointer.inspect import metadata
from orbit_ckpt._src.cli.executors import open_executor
from orbit_ckpt._src.cli.output import echo, print_json, stored_bytes
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import find_checkpoint
from orbit_ckpt._src.errors import CheckpointExistsError
from orbit_ckpt._src.metadata.values import ArrayMetadata
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.storage.path import resolve_path
from orbit_ckpt._src.text import human_bytes
from orbit_ckpt._src.transform.expected_mesh import ExpectedMesh, own_spec, read_meshes
from orbit_ckpt._src.transform.patterns import join_name
from orbit_ckpt._src.tree.flatten import flatten


class LeafOnMesh(Struct, frozen=True):
    """What a device of a mesh reads of a leaf.

    Attributes:
        name: The leaf.
        shard: Shape of the part that a device needs.
        chunk: Shape of the chunks.
        bytes_needed: Size of that part.
        over_read: Bytes of the chunks that a device reads, in relation to that.
    """

    name: str
    shard: Shape
    chunk: Shape
    bytes_needed: int
    over_read: float


def plan_for(path: str, files: Sequence[Path], as_json: bool) -> None:
    """Show how much the devices of meshes read of each leaf, and how much of it in vain."""
    root = find_checkpoint(path)
    meshes = _read(files)
    found = [(mesh, _on_mesh(root, mesh)) for mesh in meshes]
    if as_json:
        print_json(
            "plan",
            path=root,
            meshes=[
                {
                    "axes": dict(mesh.axes),
                    "over_read": _total(leaves),
                    "leaves": [structs.asdict(leaf) for leaf in leaves],
                }
                for mesh, leaves in found
            ],
        )
        return
    for mesh, leaves in found:
        echo(", ".join(f"{name}={size}" for name, size in mesh.axes.items()), style="bold")
        header = ["leaf", "shard", "chunk", "per device", "over-read"]
        rows = [
            [
                leaf.name,
                str(list(leaf.shard)),
                str(list(leaf.chunk)),
                human_bytes(leaf.bytes_needed),
                f"{leaf.over_read:.2f}",
            ]
            for leaf in leaves
        ]
        print_table(header, rows, right={"per device", "over-read"})
        needed = sum(leaf.bytes_needed for leaf in leaves)
        echo(f"{human_bytes(needed)} per device, over-read {_total(leaves):.2f}")


def rechunk(  # noqa: PLR0913, PLR0917 - options of a command
    source: str,
    destination: str,
    meshes: Sequence[Path],
    memory: int,
    overwrite: bool,
    workers: int | None,
    dask: str | None,
    as_json: bool,
) -> None:
    """Copy a checkpoint with chunks that suit loads on meshes."""
    expected = _read(meshes)
    start, end = find_checkpoint(source), resolve_path(destination)
    if not overwrite and end.exists():
        raise CheckpointExistsError(f"{end} exists already. Pass --overwrite, or another path.")
    with open_executor(workers, dask) as executor, progress_bar("Rechunking") as progress:
        rechunk_checkpoint(
            start,
            end,
            expected,
            overwrite=overwrite,
            max_bytes=memory * 10**6,
            progress=progress,
            executor=executor,
        )
    nbytes = stored_bytes(end)
    ratios = [_total(_on_mesh(end, mesh)) for mesh in expected]
    if as_json:
        print_json("rechunk", source=start, destination=end, bytes=nbytes, over_read=ratios)
    else:
        shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        echo(f"{start} -> {end}: {human_bytes(nbytes)}, over-read {shown}")


def _read(files: Sequence[Path]) -> list[ExpectedMesh]:
    return [mesh for file in files for mesh in read_meshes(file.read_text(), str(file))]


def _on_mesh(path: Path, mesh: ExpectedMesh) -> list[LeafOnMesh]:
    flat = flatten(metadata(path).tree)
    found: list[LeafOnMesh] = []
    for names, value in zip(flat.names, flat.values, strict=True):
        if not isinstance(value, ArrayMetadata) or value.storage is None:
            continue
        chunk, dtype = value.storage.chunk_shape, value.dtype
        if chunk is None or is_prng_dtype(dtype):
            continue
        name = join_name(names)
        shard = mesh.shard_shape(name, value.shape, own_spec(value.sharding))
        needed = math.prod(shard) * dtype.itemsize
        found.append(LeafOnMesh(name, shard, chunk, needed, read_ratio(value.shape, chunk, shard)))
    return found


def _total(leaves: Sequence[LeafOnMesh]) -> float:
    needed = sum(leaf.bytes_needed for leaf in leaves)
    read = sum(leaf.bytes_needed * leaf.over_read for leaf in leaves)
    return read / needed if needed else 1.0

"""One process of several that save, and load what others have saved.

All groups of processes run at the same time: each saves its checkpoints, waits for those of the
others and loads them all. What a process has seen it writes to
`<directory>/report_<scenario>_<count>_<index>.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from orbit_ckpt._src.storage.batch_read import BatchReader
from orbit_ckpt._src.type_handlers import exchange
from orbit_ckpt.errors import ProcessFailedError, StorageError
from orbit_ckpt.type_handlers import (
    ArrayHandler,
    SingleReplicaArrayHandler,
    SingleReplicaArrayRestoreArgs,
    create_type_handler_registry,
)
from tests.support import counted, wait_until

WAIT_S = 100
DEVICES = {1: [4], 2: [4, 2], 4: [2, 1, 1, 1]}
"""How many devices each process has, by the number of processes."""
COUNTS = tuple(DEVICES)
ORBAX_LAYOUTS = ("sharded", "replicated", "mixed")
"""Orbax wants as many devices on each process as on any other."""

Spec = tuple[Any, ...]
LAYOUTS: dict[str, dict[str, Spec]] = {
    "sharded": {"matrix": ("x", "y"), "tall": (("x", "y"),), "keys": ("x",), "bits": ("y", "x")},
    "replicated": {"matrix": (), "tall": (), "keys": (), "bits": (), "half": (), "flags": ()},
    "mixed": {"matrix": ("x",), "tall": (None, "y"), "keys": ("y",), "bits": (), "scalar": ()},
    "uneven": {"matrix": ("x", "y"), "tall": ("y",), "half": (), "whole": ("x",)},
}
SHAPES: dict[str, tuple[tuple[int, ...], Any]] = {
    "matrix": ((64, 96), np.float32),
    "tall": ((4096, 2), np.int16),
    "keys": ((4, 2), np.uint32),
    "bits": ((48, 32), np.uint8),
    "half": ((120, 72), jax.numpy.bfloat16),
    "flags": ((8192,), np.bool_),
    "whole": ((64, 33), np.complex64),
    "scalar": ((), np.float32),
}
OTHERS = {"numpy": np.arange(5, dtype=np.int16), "step": 7, "name": "héllo"}


def host(name: str) -> np.ndarray:
    """Return the values of an array; those of floats are any bits, infinities and NaN as well."""
    shape, dtype = SHAPES[name]
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    data = np.random.default_rng(len(name)).integers(0, 256, size, np.uint8)
    return (data & 1 if dtype is np.bool_ else data).view(dtype).reshape(shape)


def mesh_for(layout: str, *, axes: tuple[str, str] = ("x", "y")) -> Mesh:
    """Return a mesh of four devices, of which each process has as many as any other.

    In the uneven layout one process has more than others, or one has none.
    """
    devices = jax.devices()
    groups = [[d for d in devices if d.process_index == i] for i in range(jax.process_count())]
    if layout == "uneven":
        chosen = devices[:3] + devices[4:5] if len(groups) == 2 else devices[:4]
    else:
        chosen = [d for group in groups for d in group[: 4 // len(groups)]]
    return Mesh(np.array(chosen).reshape(2, 2), axes)


def shardings(layout: str, mesh: Mesh) -> dict[str, NamedSharding]:
    return {n: NamedSharding(mesh, PartitionSpec(*spec)) for n, spec in LAYOUTS[layout].items()}


def make_tree(layout: str) -> dict[str, Any]:
    """Return a tree, of which this process has a part."""
    arrays: dict[str, jax.Array] = {
        name: jax.make_array_from_callback(
            host(name).shape, sharding, host(name).__getitem__, host(name).dtype
        )
        for name, sharding in shardings(layout, mesh_for(layout)).items()
    }
    if "keys" in arrays:
        arrays["keys"] = jax.random.wrap_key_data(arrays["keys"])
    return {"arrays": arrays, **OTHERS}


def check(tree: dict[str, Any], layout: str, wanted: dict[str, NamedSharding]) -> None:
    """Compare all that this process has of a tree, bit for bit."""
    assert tree["arrays"].keys() == wanted.keys()
    for name, sharding in wanted.items():
        array, values = tree["arrays"][name], host(name)
        if name == "keys":
            array = jax.random.key_data(array)
        assert array.sharding.is_equivalent_to(sharding, array.ndim), (layout, name)
        assert (array.shape, array.dtype) == (values.shape, values.dtype), (layout, name)
        assert len(array.addressable_shards) == len(sharding.addressable_devices)
        for shard in array.addressable_shards:
            found = np.asarray(shard.data).tobytes()
            assert found == values[shard.index].tobytes(), (layout, name, shard.index)
    for name, value in OTHERS.items():
        np.testing.assert_equal(tree[name], value)


def targets(wanted: dict[str, NamedSharding]) -> dict[str, Any]:
    """Return what a tree is to be loaded as."""
    arrays: dict[str, Any] = {}
    for name, sharding in wanted.items():
        values = host(name)
        dtype = jax.random.key(0).dtype if name == "keys" else values.dtype
        shape = values.shape[:-1] if name == "keys" else values.shape
        arrays[name] = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)
    return {"arrays": arrays, **OTHERS}


def save_and_load(directory: Path, report: dict[str, Any]) -> None:
    """Save every layout; load what every number of processes has saved, in two ways."""
    count = jax.process_count()
    for layout in LAYOUTS:
        ocp.save(directory / f"{layout}_{count}", make_tree(layout))
    for saved in COUNTS:
        for layout in LAYOUTS:
            path = directory / f"{layout}_{saved}"
            wait_until(path.exists, WAIT_S)
            wanted = shardings(layout, mesh_for(layout))
            with counted() as total:
                tree = ocp.load(path, like=make_tree(layout))
            check(tree, layout, wanted)
            report["read"][f"{layout}_{saved}"] = total[0]
            turned = shardings(layout, mesh_for(layout, axes=("y", "x")))
            check(ocp.load(path, like=targets(turned)), layout, turned)
            report["loaded"].append(f"{layout}_{saved}")


def load_from_orbax(directory: Path, report: dict[str, Any]) -> None:
    """Load what two processes of Orbax have saved."""
    wait_until((directory / "orbax_done").exists, WAIT_S)
    for layout in ORBAX_LAYOUTS:
        wanted = shardings(layout, mesh_for(layout))
        check(ocp.load(directory / f"orbax_{layout}", like=targets(wanted)), layout, wanted)
        report["loaded"].append(f"orbax_{layout}")


def restore_with(
    handler: SingleReplicaArrayHandler, path: Path, wanted: dict[str, NamedSharding]
) -> dict[str, Any]:
    arrays = {name: SingleReplicaArrayRestoreArgs(sharding=s) for name, s in wanted.items()}
    args = {"arrays": arrays, **{name: ocp.RestoreArgs() for name in OTHERS}}
    registry = create_type_handler_registry((jax.Array, handler))
    with ocp.Checkpointer(ocp.PyTreeHandler(type_handler_registry=registry)) as checkpointer:
        return checkpointer.restore(path, args=ocp.args.PyTreeRestore(restore_args=args))


def broadcast_cases(directory: Path, report: dict[str, Any]) -> None:
    """Load with one replica reading for all, of each axis; on an explicit mesh too."""
    count = jax.process_count()
    for axis, replica, limit in ((0, 0, None), (0, 1, 1), (1, 0, 40_000)):
        handler = SingleReplicaArrayHandler(axis, replica, limit)
        for layout in LAYOUTS:
            wanted = shardings(layout, mesh_for(layout))
            with counted() as total:
                tree = restore_with(handler, directory / f"{layout}_{count}", wanted)
            check(tree, layout, wanted)
            report["broadcast"][f"{layout}_{axis}_{replica}"] = total[0]
    explicit = Mesh(mesh_for("mixed").devices, ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
    wanted = shardings("mixed", explicit)
    tree = restore_with(SingleReplicaArrayHandler(), directory / f"mixed_{count}", wanted)
    check(tree, "mixed", wanted)


def shared_reads(directory: Path, report: dict[str, Any]) -> None:
    """Load what every number of processes has saved, sharing the reads of small replicas, too."""
    exchange._LEAST_BYTES = 1  # pyright: ignore[reportPrivateUsage] - arrays that large take long
    for saved in COUNTS:
        for layout in LAYOUTS:
            wanted = shardings(layout, mesh_for(layout))
            with counted() as total:
                tree = ocp.load(
                    directory / f"{layout}_{saved}", like=targets(wanted), share_reads=True
                )
            check(tree, layout, wanted)
            report["shared"][f"{layout}_{saved}"] = total[0]


def managed_reads(directory: Path, report: dict[str, Any]) -> None:
    """Restore a step, sharing the reads of small replicas or only of large ones."""
    wanted = shardings("replicated", mesh_for("replicated"))
    with ocp.CheckpointManager(directory / f"managed_{jax.process_count()}") as manager:
        manager.save(0, make_tree("replicated"))
        manager.wait_until_finished()
        for least in (1 << 16, 1):
            exchange._LEAST_BYTES = least  # pyright: ignore[reportPrivateUsage] - as above
            with counted() as total:
                tree = manager.restore(0, targets(wanted), share_reads=True)
            check(tree, "replicated", wanted)
            report["managed"][str(least)] = total[0]


def failed_broadcast(directory: Path, report: dict[str, Any]) -> None:
    """Let the first process fail to read what it should send, then load again."""
    count = jax.process_count()
    path = directory / f"replicated_{count}"
    wanted = shardings("replicated", mesh_for("replicated"))
    original = BatchReader.read

    def load(*, share_reads: bool) -> Any:
        if share_reads:
            return ocp.load(path, like=targets(wanted), share_reads=True)
        return restore_with(SingleReplicaArrayHandler(), path, wanted)

    async def fail(self: BatchReader, reads: object) -> Any:  # noqa: ARG001 - as the method
        raise StorageError("the disk is on fire")

    for share_reads in (False, True):
        if jax.process_index() == 0:
            BatchReader.read = fail
        try:
            load(share_reads=share_reads)
        except (StorageError, ProcessFailedError) as error:
            report[f"failure_{share_reads}"] = [type(error).__name__, str(error)]
        finally:
            BatchReader.read = original
        check(load(share_reads=share_reads), "replicated", wanted)


def disagreements(directory: Path, report: dict[str, Any]) -> None:
    """Save what differs between processes; all must be told how."""
    index, count = jax.process_index(), jax.process_count()
    if count == 1:
        return
    mesh = mesh_for("sharded")
    rows = NamedSharding(mesh, PartitionSpec("x"))

    def array(shape: tuple[int, ...], dtype: Any, sharding: NamedSharding = rows) -> jax.Array:
        values = np.ones(shape, dtype)
        return jax.make_array_from_callback(shape, sharding, values.__getitem__, values.dtype)

    odd = index == count - 1
    columns = NamedSharding(mesh, PartitionSpec(None, "y"))
    turned = NamedSharding(Mesh(mesh.devices[::-1], ("x", "y")), PartitionSpec("x"))
    cases: dict[str, Any] = {
        "dtype": array((8, 8), np.float16 if odd else np.float32),
        "shape": array((16, 8) if odd else (8, 8), np.float32),
        "chunks": array((8, 8), np.float32, columns if odd else rows),
        "order": array((8, 8), np.float32, turned if odd else rows),
        "missing": array((8, 8), np.float32) if odd else {},
    }
    common = array((8, 8), np.float32)
    if count > 2:  # else the last process has replicas only, which are not compared
        del cases["order"]
    for use_ocdbt in (True, False):
        for name, value in cases.items():
            path = directory / f"disagree_{count}_{use_ocdbt}_{name}"
            with ocp.Checkpointer(ocp.PyTreeHandler(use_ocdbt=use_ocdbt)) as checkpointer:
                try:
                    checkpointer.save(path, {"common": common, "odd": {name: value}})
                except (StorageError, ProcessFailedError) as error:
                    report["disagreed"][f"{name}_{use_ocdbt}"] = str(error)
            assert not path.exists(), name


def replica_options(directory: Path, report: dict[str, Any]) -> None:
    """Save with other options of the handler."""
    tree = {"arrays": {"matrix": make_tree("replicated")["arrays"]["matrix"]}}
    options: dict[str, dict[str, Any]] = {
        "off": {"use_replica_parallel": False},
        "few": {"max_replicas_for_replica_parallel": 2},
        "large": {"min_slice_bytes_for_replica_parallel": 64 * 96 * 4},
    }
    for name, chosen in options.items():
        registry = create_type_handler_registry((jax.Array, ArrayHandler(**chosen)))
        handler = ocp.PyTreeHandler(type_handler_registry=registry)
        path = directory / f"option_{name}_{jax.process_count()}"
        with ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save(path, tree)
        found = ocp.load(path, like=tree)["arrays"]["matrix"]
        for shard in found.addressable_shards:
            assert np.asarray(shard.data).tobytes() == host("matrix").tobytes()
    for use_zarr3 in (True, False):
        path = directory / f"files_{use_zarr3}_{jax.process_count()}"
        handler = ocp.PyTreeHandler(use_ocdbt=False, use_zarr3=use_zarr3)
        with ocp.Checkpointer(handler) as checkpointer:
            checkpointer.save(path, make_tree("mixed"))
        wanted = shardings("mixed", mesh_for("mixed"))
        check(ocp.load(path, like=targets(wanted)), "mixed", wanted)
    report["options"] = list(options)


def pairs(directory: Path, report: dict[str, Any]) -> None:
    """Save with two of four processes, while the other two save what they have."""
    index, count = jax.process_index(), jax.process_count()
    if count != 4:
        return
    mine = sorted({index, (index + 2) % 4})
    devices = [next(d for d in jax.devices() if d.process_index == i) for i in mine]
    sharding = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec("x"))
    values = host("matrix")
    tree = {
        "arrays": {
            "matrix": jax.make_array_from_callback(values.shape, sharding, values.__getitem__)
        },
        "primary": index,
    }
    options = ocp.MultiprocessingOptions(
        primary_host=mine[1], active_processes=mine, barrier_sync_key_prefix=f"pair {mine[0]}"
    )
    with ocp.Checkpointer(ocp.PyTreeHandler(), multiprocessing_options=options) as checkpointer:
        checkpointer.save(directory / f"pair_{mine[0]}", tree)
    report["pair"] = mine


def save_with_orbax(directory: Path, report: dict[str, Any]) -> None:
    """Save every layout with Orbax, as its two processes."""
    import orbax.checkpoint as orbax  # noqa: PLC0415 - takes seconds

    for layout in ORBAX_LAYOUTS:
        with orbax.PyTreeCheckpointer() as checkpointer:
            checkpointer.save(directory / f"orbax_{layout}", make_tree(layout))
    if jax.process_index() == 0:
        (directory / "orbax_done").touch()
    del report


SCENARIOS = {
    "ours": (
        save_and_load,
        broadcast_cases,
        shared_reads,
        managed_reads,
        failed_broadcast,
        disagreements,
        replica_options,
        pairs,
        load_from_orbax,
    ),
    "orbax": (save_with_orbax,),
}


def main(index: int, count: int, devices: int, port: int, scenario: str, directory: Path) -> None:
    """Take all steps of a scenario as one of several processes."""
    if count > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
    assert len(jax.local_devices()) == devices
    report: dict[str, Any] = {"loaded": [], "read": {}, "disagreed": {}}
    report |= {"broadcast": {}, "shared": {}, "managed": {}}
    for step in SCENARIOS[scenario]:
        step(directory, report)
    if count > 1:
        jax.distributed.shutdown()
    (directory / f"report_{scenario}_{count}_{index}.json").write_text(json.dumps(report))

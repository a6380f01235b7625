"""Print the plan of a save of a 70B model by 4,096 processes, and its bottlenecks.

    python -m benchmarks.plan_many_processes

The plan is exact and needs neither data nor devices. The final work of the first process is
measured with fewer processes and extrapolated. Time spent waiting for a file system is not counted.
"""

from __future__ import annotations

import argparse
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.many_processes import Cluster, Plan, llama, plan_many
from orbit_ckpt._src.arrays.replicas import ReplicaOptions
from orbit_ckpt._src.metadata.files import arrays_file
from orbit_ckpt._src.pytree.save.agreement import check_agreement
from orbit_ckpt._src.storage.integrity import write_manifest
from orbit_ckpt._src.storage.layout import ARRAY_METADATAS, Extent, process_directory
from orbit_ckpt._src.storage.manifest import Manifest
from orbit_ckpt._src.storage.ocdbt_expected import ExpectedKeys
from orbit_ckpt._src.storage.ocdbt_merge import merge_databases
from orbit_ckpt._src.storage.ocdbt_part import write_part
from orbit_ckpt._src.storage.value_write import DatabaseWriter

_TASK_BYTES = 1 << 25
_THREADS = 16
"""Bytes per writing task, and the number of threads, each of which starts at most one data file."""


class Cost(NamedTuple):
    """The measured cost of the final work of the first process.

    Attributes:
        processes: Number of processes that wrote.
        keys: Number of keys.
        merge_s: Processor seconds to merge all databases.
        tree_bytes: Size of the B+tree.
    """

    processes: int
    keys: int
    merge_s: float
    tree_bytes: int


def write_databases(plan: Plan, directory: Path) -> None:
    """Write the databases of a plan, without the values."""
    arrays = [(planned.array.name, planned.layout) for planned in plan.arrays]
    starts = ExpectedKeys(arrays).ranges(plan.cluster.processes)
    for process, keys in enumerate(plan.keys_of_processes()):
        part = directory / process_directory(process)
        part.mkdir()
        writer = DatabaseWriter(part, data_file_bytes=None)
        file, offset = f"d/{secrets.token_hex(16)}", 0
        for key, nbytes in keys.items():
            writer.refer({key: Extent(file, offset, nbytes, offset % 2**32)}, Manifest())
            offset += nbytes
        writer.close()
        write_part(part, writer.record, writer.values, starts)


def measure(plan: Plan, directory: Path, *, expected: Plan | None = None) -> Cost:
    """Merge the databases of a plan.

    Args:
        plan: The plan of the databases.
        directory: An empty directory.
        expected: The plan of the merged database, if different.
    """
    write_databases(plan, directory)
    parts = [process_directory(i) for i in range(plan.cluster.processes)]
    arrays = [(planned.array.name, planned.layout) for planned in (expected or plan).arrays]
    merge_s = _time(lambda: merge_databases(directory, parts, arrays))
    tree = sum(file.stat().st_size for file in (directory / "d").iterdir())
    return Cost(len(parts), plan.keys, merge_s, tree)


def measure_records(plan: Plan, processes: int, directory: Path) -> tuple[float, float]:
    """Return the cost of comparing the records of processes and computing their checksums."""
    (directory / ARRAY_METADATAS).mkdir()
    records = plan.records
    for process in range(processes):
        (directory / arrays_file(process)).write_bytes(records)
    compare_s = _time(lambda: check_agreement(directory, processes))
    return compare_s, _time(lambda: write_manifest(directory))


def _time(run: Callable[[], object]) -> float:
    began = time.process_time()  # processor time, because other programs may be running
    run()
    return time.process_time() - began


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    options = _parse(arguments)
    cluster = Cluster(
        (("replica", options.replica), ("fsdp", options.fsdp), ("tensor", options.tensor)),
        options.devices,
    )
    began = time.process_time()
    plan = plan_many(cluster, llama(options.layers))
    seconds = time.process_time() - began
    axes = " x ".join(f"{name} {n}" for name, n in cluster.axes)
    print(f"{cluster.processes} processes with {cluster.devices} devices each; mesh {axes}")
    print(f"planned for all processes in {seconds:.2f} s\n")
    _print_plan(plan)
    alone = plan_many(cluster, llama(options.layers), ReplicaOptions(max_replicas=1))
    first = _first_replica_only(plan)
    print(f"\nmaximum per process, whole shards in turn: {_size(alone.nbytes.max())}")
    print(f"maximum per process, first replica only:    {_size(first)}")
    few, many = _measured(options.scale_down)
    _print_cost(plan, few, many)


def _first_replica_only(plan: Plan) -> int:
    nbytes = np.zeros(plan.cluster.processes, np.int64)
    for planned in plan.arrays:
        size = math.prod(planned.array.shape) * planned.array.dtype.itemsize
        owners = [processes[0] for processes in planned.owners.values()]
        np.add.at(nbytes, owners, size // len(owners))
    return int(nbytes.max())


def _print_plan(plan: Plan) -> None:
    nbytes = plan.nbytes
    count = plan.cluster.processes
    files = int(np.minimum(_THREADS, -(-nbytes // _TASK_BYTES)).max())
    records = len(plan.records)
    rows = {
        "arrays": f"{len(plan.arrays):,}",
        "bytes in total": _size(nbytes.sum()),
        "bytes per process: minimum": _size(nbytes.min()),
        "  median": _size(np.median(nbytes)),
        "  maximum": _size(nbytes.max()),
        "data files per process, at most": f"{files:,}",
        "files in total, at most": f"{count * (files + 2):,}",
        "keys of the B+tree": f"{plan.keys:,}",
        "_METADATA": _size(len(plan.tree_document)),
        "_sharding": _size(plan.sharding_bytes),
        "array_metadatas per process": _size(records),
        "  in total": _size(records * count),
    }
    for name, value in rows.items():
        print(f"{name:34} {value}")


def _measured(scale_down: int) -> tuple[Cost, Cost]:
    """Return the cost for few processes that write much and for many that write little."""
    costs: list[Cost] = []
    for axes, devices, layers in (
        ((("replica", 1), ("fsdp", 32 // scale_down), ("tensor", 8)), 32, 40 // scale_down),
        ((("replica", 1), ("fsdp", 64 // scale_down), ("tensor", 8)), 1, 1),
    ):
        plan = plan_many(Cluster(axes, devices), llama(layers))
        with tempfile.TemporaryDirectory() as directory:
            costs.append(measure(plan, Path(directory)))
    return costs[0], costs[1]


def _print_cost(plan: Plan, few: Cost, many: Cost) -> None:
    print("\nfinal work of the first process, measured in processor seconds:")
    for cost in (few, many):
        print(
            f"  {cost.processes} processes, {cost.keys:,} keys: merge {cost.merge_s:.2f} s, B+tree "
            f"{_size(cost.tree_bytes)}"
        )
    matrix = np.array([[c.keys, c.processes] for c in (few, many)], float)
    per_key, per_process = np.linalg.solve(matrix, [few.merge_s, many.merge_s])
    processes = plan.cluster.processes
    merge = per_key * plan.keys + max(0.0, per_process) * processes
    tree = few.tree_bytes / few.keys * plan.keys
    print(f"  a key costs {per_key * 1e6:.1f} us, a database {per_process * 1e3:.2f} ms")
    some = max(1, processes // 8)
    with tempfile.TemporaryDirectory() as directory:
        compare_s, manifest_s = measure_records(plan, some, Path(directory))
    print(
        f"  records of {some} processes: compared in {compare_s:.2f} s, checksums computed in "
        f"{manifest_s:.2f} s"
    )
    compare, manifest = (s / some * processes for s in (compare_s, manifest_s))
    print(
        f"\nextrapolated: merge {merge:.0f} s, B+tree {_size(tree)}, records compared in "
        f"{compare:.0f} s, their checksums {manifest:.0f} s"
    )


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.1f} {unit}" if unit != "B" else f"{nbytes:.0f} B"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_many_processes")
    parser.add_argument("--replica", type=int, default=8, help="size of the axis of replicas")
    parser.add_argument("--fsdp", type=int, default=256)
    parser.add_argument("--tensor", type=int, default=8)
    parser.add_argument("--devices", type=int, default=4, help="devices per process")
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument(
        "--scale-down", type=int, default=1, help="factor by which the measured save is smaller"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

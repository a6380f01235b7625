"""Print the plan of a save of a 70B model by 4,096 processes, and its bottlenecks.

    python -m benchmarks.plan_many_processes

The plan is exact and needs neither data nor devices. The merge is a real one, of databases with
all keys of the plan but without values, for several numbers of processes that hold the same arrays.
Time spent waiting for a file system is not counted.
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
from orbit_ckpt._src.storage.ocdbt_merge import DatabaseMerge
from orbit_ckpt._src.storage.ocdbt_part import write_part
from orbit_ckpt._src.storage.value_write import DatabaseWriter

_TASK_BYTES = 1 << 25
_THREADS = 16
"""Bytes per writing task, and the number of threads, each of which starts at most one data file."""


class Cost(NamedTuple):
    """The measured cost of a merge, in processor seconds.

    Attributes:
        processes: Number of processes that wrote.
        keys: Number of keys.
        ranges: Number of ranges that they are divided into.
        share_s: The longest merge of one range, by one process.
        alone_s: The merge of all ranges.
        finish_s: What the primary process adds if others merge the ranges.
        record_s: Its search for files that the manifest does not have yet, and the manifest.
        tree_bytes: Size of the B+tree.
    """

    processes: int
    keys: int
    ranges: int
    share_s: float
    alone_s: float
    finish_s: float
    record_s: float
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
    merge = DatabaseMerge(directory, parts, arrays)
    starts = merge.ranges(len(parts))
    numbers = range(len(starts) + 1)
    shares = [_time(lambda n=n: merge.write_range(merge.merge(starts, n), n)) for n in numbers]
    finished: list[Manifest] = []

    def finish() -> None:
        finished.append(merge.finish([merge.read_range(number) for number in numbers]))

    finish_s = _time(finish)
    record_s = _time(lambda: write_manifest(directory, known=finished[0]))
    tree = sum(file.stat().st_size for file in (directory / "d").iterdir())
    return Cost(
        len(parts),
        plan.keys,
        len(numbers),
        max(shares),
        sum(shares) + finish_s,
        finish_s,
        record_s,
        tree,
    )


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
    _print_costs(options)
    if options.processes:
        with tempfile.TemporaryDirectory() as directory:
            some = max(1, cluster.processes // 8)
            compare_s, manifest_s = measure_records(plan, some, Path(directory))
        print(
            f"\nrecords of {some} processes: compared in {compare_s:.2f} s if they differ, "
            f"checksums computed in {manifest_s:.2f} s where no process has reported them"
        )


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


def _print_costs(options: argparse.Namespace) -> None:
    """Measure and print merges, and how they grow with the number of processes."""
    print("\nmerge, in processor seconds:")
    print("  processes  keys         ranges  one range  primary   manifest  all, alone  B+tree")
    first: Cost | None = None
    devices = options.replica * options.fsdp * options.tensor
    axes = (("replica", options.replica), ("fsdp", options.fsdp), ("tensor", options.tensor))
    for processes in options.processes:
        cluster = Cluster(axes, max(1, devices // processes))
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            cost = measure(plan_many(cluster, llama(options.layers)), Path(directory))
        first = first or cost
        print(
            f"  {cost.processes:<10,} {cost.keys:<12,} {cost.ranges:<7} {cost.share_s:<10.2f} "
            f"{cost.finish_s:<9.2f} {cost.record_s:<9.2f} {cost.alone_s:<11.2f} "
            f"{_size(cost.tree_bytes)}   "
            f"({cost.processes // first.processes} x processes: one range x "
            f"{cost.share_s / first.share_s:.1f}, primary x {cost.finish_s / first.finish_s:.1f})"
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
        "--processes",
        type=int,
        nargs="*",
        default=[64, 512, 4096],
        help="numbers of processes whose databases are written and merged",
    )
    parser.add_argument("--directory", help="where to write them, by default with temporary files")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

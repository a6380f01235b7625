"""Jobs by one worker process and by several: `python -m benchmarks.jobs`.

All pools stay open. In every round each of them does the job once, in random order, so that none
always follows the same one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

import orbit_ckpt as ocp
from orbit_ckpt.transform import ExpectedMesh

_ARRAYS = 32
_COLUMNS = 1024
_MESHES = [ExpectedMesh({"model": 8}, {"**": (None, "model")})]

Job = Callable[[Executor | None], object]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs")
    parser.add_argument("--megabytes", type=int, default=1024, help="Size of the checkpoint.")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=args.directory))
    spawn = multiprocessing.get_context("spawn")
    try:
        with ExitStack() as stack:
            pools: dict[str, Executor | None] = {"threads": None}
            for count in args.workers:
                pool = ProcessPoolExecutor(count, mp_context=spawn)
                pools[str(count)] = stack.enter_context(pool)
            _compare(_jobs(root, args.megabytes << 20), pools, args.rounds)
    finally:
        shutil.rmtree(root)


def _jobs(root: Path, nbytes: int) -> dict[str, Job]:
    """Save two checkpoints; return the jobs by name."""
    rng = np.random.default_rng(0)
    rows = nbytes // _ARRAYS // 4 // _COLUMNS
    tree = {f"w{i}": rng.standard_normal((rows, _COLUMNS), np.float32) for i in range(_ARRAYS)}
    first, second, out = root / "first", root / "second", root / "out"
    for path in (first, second):
        ocp.save(path, tree)
    weights = out / "x.safetensors"
    return {
        "verify": lambda pool: ocp.verify(first, executor=pool),
        "diff": lambda pool: ocp.diff(first, second, values=True, executor=pool),
        "convert to orbit": lambda pool: ocp.convert(
            first, out / "orbit", overwrite=True, executor=pool
        ),
        "convert to safetensors": lambda pool: ocp.convert(
            first, weights, to="safetensors", overwrite=True, executor=pool
        ),
        "rechunk": lambda pool: ocp.rechunk(
            first, out / "columns", _MESHES, overwrite=True, executor=pool
        ),
    }


def _compare(jobs: dict[str, Job], pools: dict[str, Executor | None], rounds: int) -> None:
    names = list(pools)
    print(f"{rounds} rounds, medians in seconds; threads: without an executor\n")
    print(f"| job | {' | '.join(names)} | {names[-1]} workers / {names[1]} |")
    print("|---" * (len(names) + 2) + "|")
    for name, job in jobs.items():
        found: dict[str, list[float]] = {kind: [] for kind in pools}
        for number in range(rounds + 1):  # the first one starts the workers
            for kind in random.sample(names, len(names)):
                began = time.perf_counter()
                job(pools[kind])
                if number:
                    found[kind].append(time.perf_counter() - began)
        medians = {kind: statistics.median(times) for kind, times in found.items()}
        row = " | ".join(f"{median:.3f}" for median in medians.values())
        ratio = medians[names[-1]] / medians[names[1]]
        print(f"| {name} | {row} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()

"""Time and size of incremental saves: `python -m benchmarks.incremental`.

A run of which most is frozen, as with LoRA, and one in which everything changes. Saves of each kind
alternate in one process; the minimum of several rounds is printed.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax

import orbit_ckpt as ocp

_LAYERS = 32
_RANK = 8

Tree = dict[str, list[jax.Array]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.incremental")
    parser.add_argument("--megabytes", type=int, default=2048, help="Size of the frozen arrays.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, default=None)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=args.directory))
    try:
        _run(root, args.megabytes << 20, args.rounds)
    finally:
        shutil.rmtree(root)


def _run(root: Path, nbytes: int, rounds: int) -> None:
    rows = nbytes // _LAYERS // 4 // 4096
    make = jax.jit(lambda key: jax.random.normal(key, (rows, 4096)))
    frozen = [make(jax.random.key(i)) for i in range(_LAYERS)]
    trained = [jax.random.normal(jax.random.key(i), (_RANK, 8192)) for i in range(_LAYERS)]
    through = jax.jit(lambda leaves: [leaf + 0 for leaf in leaves])
    state: Tree = {"frozen": frozen, "trained": trained}
    save = ocp.CheckpointManagerOptions(incremental=True, max_to_keep=2, full_every=None)
    full = ocp.CheckpointManagerOptions(max_to_keep=2)
    with (
        ocp.CheckpointManager(root / "same", options=save) as same,
        ocp.CheckpointManager(root / "jit", options=save) as jitted,
        ocp.CheckpointManager(root / "all", options=save) as changing,
        ocp.CheckpointManager(root / "full", options=full) as complete,
        ocp.CheckpointManager(root / "all-full", options=full) as changing_full,
    ):
        kinds: dict[str, tuple[ocp.CheckpointManager, Callable[[int], list[jax.Array]]]] = {
            "full": (complete, lambda _: frozen),
            "frozen arrays are the same objects": (same, lambda _: frozen),
            "frozen arrays passed through jit": (jitted, lambda _: through(frozen)),
            "everything changes": (changing, lambda step: [leaf * (1 + step) for leaf in frozen]),
            "everything changes, not incremental": (
                changing_full,
                lambda step: [leaf * (1 + step) for leaf in frozen],
            ),
        }
        found: dict[str, list[tuple[float, float, int]]] = {kind: [] for kind in kinds}
        for step in range(rounds + 1):
            trained = [leaf + 1 for leaf in trained]
            for kind, (manager, leaves) in kinds.items():
                state = {"frozen": leaves(step), "trained": trained}
                jax.block_until_ready(state)
                wall, cpu = time.perf_counter(), time.process_time()
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
                seconds = time.perf_counter() - wall, time.process_time() - cpu
                if step:
                    written = _new_bytes(manager.directory / str(step), manager.directory)
                    found[kind].append((*seconds, written))
    size = sum(leaf.nbytes for leaf in trained)
    print(f"{nbytes / 2**20:,.0f} MiB frozen, {size / 2**20:,.0f} MiB trained, {rounds} rounds\n")
    print("| later save | wall | processor time | of a full save | bytes written / trained |")
    print("|---|---|---|---|---|")
    whole = min(wall for wall, _, _ in found["full"])
    for kind, rows_ in found.items():
        wall, cpu = min(r[0] for r in rows_), min(r[1] for r in rows_)
        written = max(r[2] for r in rows_) / size
        print(f"| {kind} | {wall:.3f} s | {cpu:.3f} s | 1/{whole / wall:.1f} | {written:,.3f} |")


def _new_bytes(step: Path, run: Path) -> int:
    """Return the bytes of the files of a step that are in no other step of its run."""
    others = [path for path in run.iterdir() if path != step]
    known = {f.stat().st_ino for path in others for f in path.rglob("*") if f.is_file()}
    files = [file.stat() for file in step.rglob("*") if file.is_file()]
    return sum(status.st_size for status in files if status.st_ino not in known)


if __name__ == "__main__":
    main()

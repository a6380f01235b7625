"""Time and size of incremental saves: `python -m benchmarks.incremental`.

A run of which most is frozen, as with LoRA, and one in which everything changes. Saves of each kind
alternate in one process; the minimum of several rounds is printed.

`--steps 10` times nothing: it prints the bytes that each of ten steps adds, restores
each with Orbax after the others were deleted, and lists a checkpoint with tied embeddings.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

import orbit_ckpt as ocp

_LAYERS = 32
_RANK = 8

Tree = dict[str, list[jax.Array]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.incremental")
    parser.add_argument("--megabytes", type=int, default=2048, help="Size of the frozen arrays.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None, help="Check this many steps instead.")
    parser.add_argument("--tied-megabytes", type=int, default=400, help="Size of the embedding.")
    parser.add_argument("--directory", type=Path, default=None)
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=args.directory))
    try:
        if args.steps is None:
            _run(root, args.megabytes << 20, args.rounds)
        else:
            _count(root, args.megabytes << 20, args.steps)
            _list_tied(root / "tied", args.tied_megabytes << 20)
    finally:
        shutil.rmtree(root)


def _run(root: Path, nbytes: int, rounds: int) -> None:
    frozen, trained = _arrays(nbytes)
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
            for kind in random.sample(list(kinds), len(kinds)):  # none always follows the same one
                manager, leaves = kinds[kind]
                state = {"frozen": leaves(step), "trained": trained}
                jax.block_until_ready(state)
                wall, cpu = time.perf_counter(), time.process_time()
                manager.save(step, args=ocp.args.StandardSave(state))
                manager.wait_until_finished()
                seconds = time.perf_counter() - wall, time.process_time() - cpu
                if step:
                    place = manager.directory / str(step)
                    written = _new_bytes(place, [p for p in place.parent.iterdir() if p != place])
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


def _arrays(nbytes: int) -> tuple[list[jax.Array], list[jax.Array]]:
    """Return frozen arrays of a size together, and the trained ones."""
    rows = nbytes // _LAYERS // 4 // 4096
    make = jax.jit(lambda key: jax.random.normal(key, (rows, 4096)))
    frozen = [make(jax.random.key(i)) for i in range(_LAYERS)]
    trained = [jax.random.normal(jax.random.key(i), (_RANK, 8192)) for i in range(_LAYERS)]
    return frozen, trained


def _count(root: Path, nbytes: int, steps: int) -> None:
    """Print the bytes that each step adds, then restore each step alone with Orbax."""
    frozen, trained = _arrays(nbytes)
    size = sum(leaf.nbytes for leaf in trained)
    through = jax.jit(lambda leaves: [leaf + 0 for leaf in leaves])
    options = ocp.CheckpointManagerOptions(incremental=True, full_every=None)
    kinds: dict[str, Callable[[], list[jax.Array]]] = {
        "the same objects": lambda: frozen,
        "passed through jit": lambda: through(frozen),
    }
    for kind, leaves in kinds.items():
        path = root / kind.replace(" ", "-")
        with ocp.CheckpointManager(path, options=options) as run:
            for step in range(steps):
                state: Tree = {"frozen": leaves(), "trained": [leaf + step for leaf in trained]}
                run.save(step, args=ocp.args.StandardSave(state))
                run.wait_until_finished()
        paths = [path / f"{step}" for step in range(steps)]
        new = [_new_bytes(paths[step], paths[:step]) for step in range(steps)]
        later = ", ".join(f"{found / size:.3f}" for found in new[1:])
        print(f"{kind}: {new[0]:,} bytes first, then of the trained bytes: {later}")
        for step in range(steps):
            alone = root / "alone" / f"{step}"
            shutil.copytree(paths[step], alone, copy_function=os.link)
            hidden = path.rename(root / "hidden")  # the other steps do not exist for Orbax
            state = {"frozen": frozen, "trained": [leaf + step for leaf in trained]}
            _restore_with_orbax(next(alone.glob("*/manifest.ocdbt")).parent, state)
            hidden.rename(path)
            shutil.rmtree(alone)
        shutil.rmtree(path)
        print(f"{kind}: Orbax restored each of {steps} steps without the others")


def _restore_with_orbax(path: Path, state: Tree) -> None:
    """Restore a step, and compare it bit for bit."""
    import orbax.checkpoint  # noqa: PLC0415 - takes seconds

    with orbax.checkpoint.StandardCheckpointer() as reader:
        found = reader.restore(path, jax.eval_shape(lambda: state))
    jax.tree.map(np.testing.assert_array_equal, found, state)


def _list_tied(path: Path, nbytes: int) -> None:
    """Save a tree with tied embeddings, and list it."""
    embedding = jax.random.normal(jax.random.key(0), (nbytes // 4 // 4096, 4096))
    ocp.save(path, {"embed": embedding, "head": {"kernel": embedding}, "bias": embedding[0]})
    print(f"{embedding.nbytes:,} bytes twice, stored in {_new_bytes(path, []):,}")
    for command in ("ls", "tree", "du"):
        print(f"$ orbit-ckpt {command} {path.name}")
        subprocess.run([sys.executable, "-m", "orbit_ckpt.cli", command, path], check=True)


def _new_bytes(step: Path, others: Sequence[Path]) -> int:
    """Return the bytes of the files of a step that no other step has."""
    known = {f.stat().st_ino for path in others for f in path.rglob("*") if f.is_file()}
    files = [file.stat() for file in step.rglob("*") if file.is_file()]
    return sum(status.st_size for status in files if status.st_ino not in known)


if __name__ == "__main__":
    main()

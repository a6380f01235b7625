"""Trees to damage, an exact comparison, and child processes to kill."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import orbit_ckpt as ocp
from tests.cells import cells
from tests.soak import SOAK

MANY_FILES = 20

Moments = collections.namedtuple("Moments", "mu nu")
NoState = collections.namedtuple("NoState", "")


@dataclass(frozen=True)
class Layout:
    """One way to store a tree."""

    use_ocdbt: bool = True
    use_zarr3: bool = True
    use_compression: bool = True
    data_file_bytes: int | None = None

    def __str__(self) -> str:
        names = [
            "ocdbt" if self.use_ocdbt else "files",
            "zarr3" if self.use_zarr3 else "zarr2",
            "compressed" if self.use_compression else "plain",
            *(["many_data_files"] if self.data_file_bytes else []),
        ]
        return "-".join(names)

    def save(
        self,
        path: Path,
        tree: object,
        *,
        save_args: object = None,
        overwrite: bool = False,
        in_place: bool = False,
    ) -> None:
        """Save a tree in this layout, with all that `load` needs to give it back exactly."""
        handler = ocp.PyTreeHandler(
            use_ocdbt=self.use_ocdbt,
            use_zarr3=self.use_zarr3,
            use_compression=self.use_compression,
            pytree_metadata_options=ocp.PyTreeMetadataOptions(support_rich_types=True),
        )
        mode = ocp.AtomicityMode.COMMIT_FILE if in_place else ocp.AtomicityMode.AUTO
        args = ocp.args.PyTreeSave(tree, save_args, self.data_file_bytes)
        ocp.Checkpointer(handler, atomicity_options=ocp.AtomicityOptions(mode=mode)).save(
            path, args=args, force=overwrite
        )


LAYOUTS = [
    *(
        Layout(ocdbt, zarr3, compressed)
        for ocdbt in (True, False)
        for zarr3 in (True, False)
        for compressed in (True, False)
    ),
    Layout(data_file_bytes=4096),
]


DAMAGED = cells(LAYOUTS, lambda layout: layout in (Layout(), Layout(use_ocdbt=False)))
"""Layouts to damage; a usual run takes the usual one, and one with a file for each chunk."""


def every_kind_of_leaf() -> dict[str, object]:
    """Return a tree of every kind of leaf and container, over eight devices."""
    rng = np.random.default_rng(0)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))

    def put(value: object, *spec: object) -> jax.Array:
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))  # pyright: ignore[reportArgumentType] - axis names

    def rough(*shape: int) -> np.ndarray:
        return np.round(rng.standard_normal(shape), 1)  # compresses a little

    return {
        "jax": {
            "sharded": put(rough(16, 8).astype(np.float32), "x", "y"),
            "replicated": put(np.arange(8, dtype=np.int32)),
            "partly": put(np.arange(64).reshape(8, 8).astype(ml_dtypes.bfloat16), None, "y"),
            "large": put(rough(64, 80).astype(np.float32), "x"),
            "single": jax.device_put(np.arange(5, dtype=np.float32), jax.devices()[0]),
            "key": jax.random.key(7),
            "keys": jax.random.split(jax.random.key(1, impl="rbg"), 3),
        },
        "numpy": {
            "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
            "twin": np.arange(12, 24, dtype=np.float32).reshape(3, 4),
            "large": rough(40, 60),
            "block": rough(40, 20),
            "block_twin": rough(40, 20),
            "uint4": np.arange(4).astype(ml_dtypes.uint4),
            "empty": np.zeros((0, 3), np.int8),
            "date": np.array(["2020-01-01", "NaT"], "M8[D]"),
        },
        "scalars": [1, 2.5, True, 1 + 2j, np.float32(3), ml_dtypes.bfloat16(2)],
        "te/xt~": "ä\n/x",
        "bytes": b"\x00abc",
        "nothing": (None, {}, [], (), NoState()),
        "moments": Moments(np.ones(2), (1, [2, "x"])),
        "by_step": {3: np.ones(1, np.int16), 10: "y"},
    }


Snapshot = tuple[object, ...]


def snapshot(tree: object) -> Snapshot:
    """Return what two trees share exactly if structure, types, dtypes, shardings and bits agree."""
    leaves, treedef = jax.tree_util.tree_flatten(tree)
    # equal structures may still differ in their keys: 1 == True == 1.0
    return str(treedef), treedef, *map(_leaf_snapshot, leaves)


def _leaf_snapshot(leaf: object) -> tuple[object, ...]:
    if isinstance(leaf, jax.Array):
        is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        data = jax.random.key_data(leaf) if is_key else leaf
        return ("jax", leaf.dtype, data.shape, np.asarray(data).tobytes(), data.sharding)
    if isinstance(leaf, np.ndarray | np.generic):
        return (type(leaf), leaf.dtype, leaf.shape, leaf.tobytes())
    return (type(leaf), leaf)


def files_below(directory: Path) -> dict[str, bytes]:
    """Return the contents of every file below a directory, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def chosen(names: Iterable[str]) -> list[str]:
    """Return the files to damage: all, or in a usual run all at the top and some of many below."""
    names = list(names)
    if SOAK or len(names) <= MANY_FILES:
        return names
    below = [name for name in names if "/" in name]
    return [*(name for name in names if "/" not in name), *below[::5]]


@contextmanager
def replaced(directory: Path, contents: dict[str, bytes | None]) -> Iterator[None]:
    """Give files below a directory other contents, None to delete them, as long as a block runs."""
    before = {name: (directory / name).read_bytes() for name in contents}
    for name, data in contents.items():
        if data is None:
            (directory / name).unlink()
        else:
            (directory / name).write_bytes(data)
    yield
    for name, data in before.items():
        (directory / name).write_bytes(data)


def numbered_tree(number: int) -> dict[str, object]:
    """Return a tree of which every leaf tells its number, with small and with large values."""
    return {
        "large": np.full((4, 2000), float(number)),
        "blocks": [np.full(300, number, np.int32) for _ in range(2)],
        "name": f"number {number}",
        "number": number,
    }


class Saver:
    """The process of `saver.py`, as the test sees it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.saver"],
            cwd=Path(__file__).parents[2],
            bufsize=0,  # what is buffered, `select` does not see
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._child: int | None = None
        assert self.report() == {"ready": True}

    def order(self, **order: object) -> int:
        """Let a child do something; return its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        self._child = self.report()["child"]
        assert self._child is not None
        return self._child

    def report(self) -> dict[str, Any]:
        """Return the next line that the process prints."""
        (report,) = self.reports_within(60, most=1)
        return report

    def reports_within(self, seconds: float, *, most: int | None = None) -> list[dict[str, Any]]:
        """Return the lines printed before a moment, or the first ones."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        reports: list[dict[str, Any]] = []
        while len(reports) != most:
            remaining = max(0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], remaining)[0]:
                break
            line = self._process.stdout.readline()
            assert line, "the saving process died"
            reports.append(json.loads(line))
            if "exit" in reports[-1]:
                self._child = None
        return reports

    def end_child(self) -> None:
        """Kill a child that a failed test left behind."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            while self._child is not None:
                self.report()

    def close(self) -> None:
        """End the process."""
        self.end_child()
        self._process.communicate()

"""Named sets of trees, contenders and operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.contenders import BUILT_IN
from benchmarks.operations import PARTIAL, RESHARD, STANDARD
from benchmarks.trees import USUAL

_LIBRARIES = ("orbit_ckpt", "orbax")
_WITHOUT_TORCH = ("orbit_ckpt", "orbax", "safetensors", "bare")


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of benchmarks; options of the command line replace its fields.

    Attributes:
        about: What it measures.
        trees: Names of trees.
        contenders: Names of contenders.
        operations: Names of operations.
        storages: Kinds of storage, "memory" or "disk".
        rounds: Number of counted rounds.
        compression: Whether to compress; None to leave it to each tree.
        memory_limit_gb: Limit for the contenders that have one.
        too_slow: Contenders, and trees that would take them minutes.
    """

    about: str
    trees: Sequence[str]
    contenders: Sequence[str] = _LIBRARIES
    operations: Sequence[str] = tuple(STANDARD)
    storages: Sequence[str] = ("memory",)
    rounds: int = 5
    compression: bool | None = None
    memory_limit_gb: float | None = None
    too_slow: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class TrainingSuite:
    """Training loops; options of the command line replace its fields.

    Attributes:
        about: What it measures.
        loops: Names of trees, and whether the steps donate their arguments.
        contenders: Names of contenders.
        rounds: Number of rounds.
        steps: Number of steps of a run.
        every: Number of steps from one save to the next.
    """

    about: str
    loops: Sequence[tuple[str, bool]]
    contenders: Sequence[str] = _LIBRARIES
    rounds: int = 3
    steps: int = 100
    every: int = 20

    @property
    def trees(self) -> Sequence[str]:
        """Names of trees."""
        return list(dict.fromkeys(tree for tree, _ in self.loops))


SUITES: dict[str, Suite | TrainingSuite] = {
    "usual": Suite(
        "all contenders on the usual trees, in memory and on a disk",
        USUAL,
        contenders=tuple(BUILT_IN),
        storages=("memory", "disk"),
    ),
    "plain": Suite(
        "the libraries without compression",
        ["small-5000", "transformer", "16x64MB"],
        contenders=_WITHOUT_TORCH,
        rounds=4,
        compression=False,
    ),
    "compressed": Suite(
        "the libraries that compress",
        ["small-5000", "transformer", "16x64MB"],
        operations=("save", "load_jax", "load_numpy", "save_async"),
        rounds=3,
        compression=True,
    ),
    "leaves": Suite(
        "the cost per leaf",
        ["small-1000", "small-5000", "small-20000", "small-50000"],
        contenders=("orbit_ckpt", "orbax", "safetensors"),
        operations=("save", "load_jax"),
        rounds=2,
        too_slow=frozenset({("orbax", "small-20000"), ("orbax", "small-50000")}),
    ),
    "disk": Suite(
        "saves to a disk",
        ["16x64MB"],
        contenders=("orbit_ckpt", "orbax", "bare"),
        operations=("save",),
        storages=("disk",),
        rounds=7,
    ),
    "memory": Suite(
        "peak memory with a limit of 128 MB",
        ["16x64MB"],
        operations=("save", "load_jax", "load_numpy"),
        rounds=2,
        memory_limit_gb=0.128,
    ),
    "reshard": Suite(
        "loads onto other layouts over eight devices",
        ["mesh-2x4", "replicated-8", "rows-8"],
        operations=("save", *RESHARD),
        rounds=4,
    ),
    "partial": Suite(
        "loads of a leaf or of rows",
        ["small-5000", "1x256MB"],
        operations=("save", *PARTIAL),
        rounds=3,
        compression=False,
    ),
    "training": TrainingSuite(
        "100 steps of a training loop with a save every 20",
        [("transformer", True), ("transformer", False), ("small-1000", False)],
    ),
}
"""All suites by name."""

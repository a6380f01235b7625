"""Messages between the parent and a worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clock import Cost
from benchmarks.contenders import Settings
from benchmarks.results import Laps


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make a tree, and a contender for it.

    Attributes:
        contender: Name of the contender.
        tree: Name of the tree.
        small: Whether to scale the tree down.
        seed: Seed of the random numbers.
        settings: Settings of the contender.
        keep: Whether to keep the trees that were made before.
    """

    contender: str
    tree: str
    small: bool
    seed: int
    settings: Settings
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Measure:
    """Do an operation.

    Attributes:
        tree: Name of a tree that was made.
        operation: Name of the operation.
        path: Path of the checkpoint.
        verify: Whether to compare the result of a load.
        settle: Whether to collect garbage and touch memory first; only needed for timing.
    """

    tree: str
    operation: str
    path: Path
    verify: bool
    settle: bool


@dataclass(frozen=True, slots=True)
class PrepareTraining:
    """Make a tree, a contender for it, and a training loop.

    Attributes:
        tree: What to make.
        donate: Whether the steps donate their arguments.
        directory: Directory of the saves.
    """

    tree: Prepare
    donate: bool
    directory: Path


@dataclass(frozen=True, slots=True)
class Train:
    """Do steps of the training loop.

    Attributes:
        steps: Number of steps.
        every: Number of steps from one save to the next, 0 not to save.
        settle: Whether to collect garbage and touch memory first; only needed for timing.
    """

    steps: int
    every: int
    settle: bool


@dataclass(frozen=True, slots=True)
class CheckTraining:
    """Compare a save with the state that it was given, and end the training loop."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The saved state was right."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The contender is ready.

    Attributes:
        operations: The operations it supports.
        leaves: Number of leaves.
        nbytes: Size of their data.
        asked: Bytes of arrays that each operation asks for.
    """

    operations: frozenset[str]
    leaves: int
    nbytes: int
    asked: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Measured:
    """The operation was done.

    Attributes:
        cost: Times, and bytes read.
        peak_bytes: Peak of resident memory minus the resident memory before, where available.
    """

    cost: Cost
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The contender cannot represent the tree.

    Attributes:
        reason: The reason.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The operation raised an error.

    Attributes:
        trace: The traceback.
    """

    trace: str


Command = Prepare | Measure | PrepareTraining | Train | CheckTraining
Result = Prepared | Measured | Laps | Checked
Answer = Result | Unsupported | Failed

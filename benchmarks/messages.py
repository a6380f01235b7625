"""What the parent asks a worker, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Settings


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make a tree, and a contender for it.

    Attributes:
        contender: Which contender.
        tree: Which tree.
        small: Whether the tree is scaled down.
        seed: Where the random numbers start.
        settings: For the contender.
    """

    contender: str
    tree: str
    small: bool
    seed: int
    settings: Settings


@dataclass(frozen=True, slots=True)
class Measure:
    """Do an operation.

    Attributes:
        operation: Which one.
        path: Path of the checkpoint.
        verify: Whether to compare what was loaded.
        settle: Whether to do it once before and to collect garbage; not if nothing is timed.
    """

    operation: str
    path: Path
    verify: bool
    settle: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """There is a contender now.

    Attributes:
        operations: What it can do.
        leaves: How many leaves the tree has.
        nbytes: Size of their data.
    """

    operations: frozenset[str]
    leaves: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """The operation was done.

    Attributes:
        seconds: How long it took.
        peak_bytes: Highest resident memory beyond what there was before, where the system tells.
    """

    seconds: float
    peak_bytes: int | None


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The contender cannot represent the tree.

    Attributes:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """Something was raised.

    Attributes:
        trace: The traceback.
    """

    trace: str


Command = Prepare | Measure
Result = Prepared | Measured
Answer = Result | Unsupported | Failed

"""Results of a run, and their JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.operations import OPERATIONS


@dataclass(frozen=True, slots=True)
class Disk:
    """Disk usage of a checkpoint.

    Attributes:
        files: Number of files.
        nbytes: Their total size.
    """

    files: int
    nbytes: int

    @classmethod
    def measure(cls, path: Path) -> Disk:
        """Return the disk usage of a file or directory."""
        sizes = [p.stat().st_size for p in (path, *path.rglob("*")) if p.is_file()]
        return cls(len(sizes), sum(sizes))


@dataclass(slots=True)
class Row:
    """One operation of one contender on one tree.

    Attributes:
        operation: Its name in `OPERATIONS`.
        contender: Name of the contender.
        seconds: Wall time of each counted round.
        processor_s: Processor time of each counted round.
        read_bytes: Bytes read from files in each counted round, where available.
        peak_bytes: Additional memory of each counted round, where available.
        asked_bytes: Bytes of arrays that the operation asks for.
        disk: Disk usage of the checkpoint, for the operation `save`.
        unsupported: Why the contender does not support it.
        error: Why it failed.
    """

    operation: str
    contender: str
    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    read_bytes: list[int] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)
    asked_bytes: int = 0
    disk: Disk | None = None
    unsupported: str | None = None
    error: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether there are figures."""
        return bool(self.seconds) and not self.error

    @property
    def median_s(self) -> float | None:
        """The median time, if the operation was done."""
        return median(self.seconds) if self.is_done else None

    @property
    def best_s(self) -> float | None:
        """The time of the fastest round, if the operation was done."""
        return min(self.seconds) if self.is_done else None

    @property
    def best_processor_s(self) -> float | None:
        """The least processor time of a round, if the operation was done."""
        return min(self.processor_s) if self.is_done and self.processor_s else None

    @property
    def is_closed(self) -> bool:
        """Whether further attempts are pointless."""
        return self.unsupported is not None or self.error is not None


@dataclass(slots=True)
class Group:
    """All results of one tree on one storage.

    Attributes:
        tree: Name of the tree.
        storage: Label of the storage.
        compression: Whether contenders compressed.
        suite: Name of the suite.
        memory_limit_gb: Limit for the contenders that have one.
        leaves: Number of leaves.
        nbytes: Size of their data.
        rows: One per operation and contender.
    """

    tree: str
    storage: str
    compression: bool
    suite: str = ""
    memory_limit_gb: float | None = None
    leaves: int = 0
    nbytes: int = 0
    rows: list[Row] = field(default_factory=list)

    def row(self, operation: str, contender: str) -> Row | None:
        """Return one row, or None."""
        wanted = (operation, contender)
        return next((row for row in self.rows if (row.operation, row.contender) == wanted), None)


@dataclass(frozen=True, slots=True)
class Laps:
    """One run of a training loop.

    Attributes:
        seconds: Wall time of all steps and saves, the wait for the last save included.
        processor_s: Processor time of the same.
        steps: Wall time of each step.
        blocked: Wall time of each call that starts a save.
    """

    seconds: float
    processor_s: float
    steps: list[float]
    blocked: list[float]


@dataclass(slots=True)
class TrainingRow:
    """The training loop of one contender.

    Attributes:
        contender: Its name.
        alone: The run without saves of each round.
        saving: The run with saves of each round.
        every: Number of steps from one save to the next.
        unsupported: Why the contender does not support it.
        error: Why it failed.
    """

    contender: str
    alone: list[Laps] = field(default_factory=list)
    saving: list[Laps] = field(default_factory=list)
    every: int = 1
    unsupported: str | None = None
    error: str | None = None

    @property
    def is_done(self) -> bool:
        """Whether there are figures."""
        return bool(self.alone and self.saving) and not self.error

    @property
    def is_closed(self) -> bool:
        """Whether further attempts are pointless."""
        return self.unsupported is not None or self.error is not None

    @property
    def added_s(self) -> list[float]:
        """What the saves of each round added to the wall time of the steps."""
        pairs = zip(self.saving, self.alone, strict=False)
        return [saving.seconds - alone.seconds for saving, alone in pairs]

    @property
    def added_processor_s(self) -> list[float]:
        """What the saves of each round added to the processor time of the steps."""
        pairs = zip(self.saving, self.alone, strict=False)
        return [saving.processor_s - alone.processor_s for saving, alone in pairs]

    @property
    def first_blocked_s(self) -> float:
        """How long the manager's first save blocked."""
        return self.saving[0].blocked[0]

    @property
    def later_blocked_s(self) -> list[float]:
        """How long each other save blocked."""
        return [seconds for laps in self.saving for seconds in laps.blocked][1:]

    @property
    def steps_alone_s(self) -> list[float]:
        """The time of each step of the runs without saves."""
        return [seconds for laps in self.alone for seconds in laps.steps]

    @property
    def steps_after_s(self) -> list[float]:
        """The time of each step that follows a save immediately."""
        return [seconds for laps in self.saving for seconds in laps.steps[1 :: self.every]]


@dataclass(slots=True)
class Training:
    """The training loops on one tree.

    Attributes:
        tree: Name of the tree.
        donate: Whether the steps donate their arguments.
        storage: Label of the storage.
        compression: Whether contenders compressed.
        steps: Number of steps of a run.
        leaves: Number of leaves.
        nbytes: Size of their data.
        rows: One per contender.
    """

    tree: str
    donate: bool
    storage: str
    compression: bool
    steps: int
    leaves: int = 0
    nbytes: int = 0
    rows: list[TrainingRow] = field(default_factory=list)


@dataclass(slots=True)
class Results:
    """The results of a run.

    Attributes:
        machine: The machine and the versions.
        options: The command line's options.
        left_out: Contenders that could not take part, and why.
        groups: The results by tree and storage.
        trainings: The results of training loops.
    """

    machine: dict[str, str]
    options: dict[str, Any]
    left_out: dict[str, str] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)

    @property
    def errors(self) -> Iterator[tuple[str, str]]:
        """What failed, as the contender and what it did, and its traceback."""
        for group in self.groups:
            for row in group.rows:
                if row.error:
                    what = OPERATIONS[row.operation].label
                    yield f"{row.contender}, {what}, {group.tree} on {group.storage}", row.error
        for training in self.trainings:
            for loop in training.rows:
                if loop.error:
                    yield f"{loop.contender}, training, {training.tree}", loop.error

    def write(self, path: Path) -> None:
        """Write JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what `write` wrote.

        Raises:
            msgspec.ValidationError: The file is something else.
        """
        return msgspec.json.decode(path.read_bytes(), type=cls)

"""Results of a run, and their JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any


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


@dataclass(slots=True)
class Results:
    """The results of a run.

    Attributes:
        machine: The machine and the versions.
        options: The command line's options.
        left_out: Contenders that could not take part, and why.
        groups: The results by tree and storage.
    """

    machine: dict[str, str]
    options: dict[str, Any]
    left_out: dict[str, str] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)

    @property
    def errors(self) -> Iterable[tuple[Group, Row]]:
        """The rows that failed."""
        return ((group, row) for group in self.groups for row in group.rows if row.error)

    def write(self, path: Path) -> None:
        """Write JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read what `write` wrote."""
        document = json.loads(path.read_text(encoding="utf-8"))
        groups = [_group(**group) for group in document.pop("groups")]
        return cls(**document, groups=groups)


def _group(*, rows: list[dict[str, Any]], **rest: Any) -> Group:
    return Group(**rest, rows=[_row(**row) for row in rows])


def _row(*, disk: dict[str, int] | None, **rest: Any) -> Row:
    return Row(**rest, disk=Disk(**disk) if disk else None)

"""Places for checkpoints, and their kind of storage."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_IN_MEMORY = {"ramfs", "tmpfs"}
_CANDIDATES = ("/dev/shm", tempfile.gettempdir(), "/var/tmp")  # noqa: S108 - one is chosen by kind


@dataclass(frozen=True, slots=True)
class Storage:
    """A place for checkpoints.

    Attributes:
        label: Its name in reports.
        in_memory: Whether its files occupy memory.
        directory: Its directory.
    """

    label: str
    in_memory: bool
    directory: Path

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Make a directory for one run."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="benchmarks-", dir=self.directory) as scratch:
            yield Path(scratch).resolve()


def find_storages(kinds: Sequence[str]) -> list[Storage]:
    """Return one place of each kind, "memory" or "disk", as far as they exist."""
    candidates = [
        path for path in map(Path, _CANDIDATES) if path.is_dir() and os.access(path, os.W_OK)
    ]
    first = {_is_in_memory(path): path for path in reversed(candidates)}
    wanted = [kind == "memory" for kind in kinds]
    return label_storages([first[kind] for kind in wanted if kind in first])


def label_storages(directories: Sequence[Path]) -> list[Storage]:
    """Return storages labelled by kind, and by directory if kinds are not unique."""
    in_memory = [_is_in_memory(directory) for directory in directories]
    labels = ["memory" if kind else "disk" for kind in in_memory]
    return [
        Storage(label if labels.count(label) == 1 else f"{label} {directory}", kind, directory)
        for label, kind, directory in zip(labels, in_memory, directories, strict=True)
    ]


def _is_in_memory(directory: Path) -> bool:
    """Return whether a directory is in memory, judged by its file system."""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    # A later mount hides an earlier one at the same place, hence the dictionary.
    types = {Path(point): kind for _, point, kind, *_ in map(str.split, lines)}
    path = directory.resolve()
    mount = next(parent for parent in (path, *path.parents) if parent in types)
    return types[mount] in _IN_MEMORY

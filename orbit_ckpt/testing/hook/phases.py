"""The phase of the save to which an operation belongs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from enum import StrEnum

from orbit_ckpt.testing.hook.operations import Operation


class Phase(StrEnum):
    """The phases of a save.

    Attributes:
        CREATE: Make the directory to write into, and remove leftovers of killed processes.
        SNAPSHOT: Copy the program's values.
        WRITE: Write the values.
        INDEX: Write the index of the values.
        METADATA: Write the files that describe the tree and the step.
        MANIFEST: Write the list of files with their checksums.
        COMMIT: Make everything durable, and the checkpoint visible.
        RETENTION: Delete the steps that are no longer kept.
    """

    CREATE = "create"
    SNAPSHOT = "snapshot"
    WRITE = "write"
    INDEX = "index"
    METADATA = "metadata"
    MANIFEST = "manifest"
    COMMIT = "commit"
    RETENTION = "retention"


_PHASES = {
    "making the directory": Phase.CREATE,
    "staging": Phase.SNAPSHOT,
    "writing": Phase.WRITE,
    "finishing": Phase.METADATA,
    "committing": Phase.COMMIT,
}
"""By the names under which a save reports its phases."""

_FILES = {
    "manifest.ocdbt": Phase.INDEX,
    "orbit_manifest.json": Phase.MANIFEST,
    "_METADATA": Phase.METADATA,
    "_CHECKPOINT_METADATA": Phase.METADATA,
    "_sharding": Phase.METADATA,
    "orbit_tree.json": Phase.METADATA,
    "orbit_step.json": Phase.METADATA,
    "commit_success.txt": Phase.METADATA,
}
"""Files that are written in a phase of their own."""


class PhaseTracker:
    """Knows the saves and deletions in progress, and so the phase of every operation."""

    def __init__(self) -> None:
        self._saves: dict[str, Phase] = {}
        self._deletions: list[str] = []

    def enter(self, checkpoint: str, phase: str) -> Phase | None:
        """Note the phase of a save, by the checkpoint's path; return it if it has a name."""
        found = _PHASES.get(phase)
        if found is not None:
            self._saves[checkpoint] = found
        return found

    def leave(self, checkpoint: str) -> None:
        """Note that a save has ended."""
        self._saves.pop(checkpoint, None)

    @contextlib.contextmanager
    def deleting(self, *paths: str) -> Generator[None]:
        """Note what is being deleted for the duration of a block."""
        self._deletions += paths
        try:
            yield
        finally:
            for path in paths:
                self._deletions.remove(path)

    def of(self, operation: Operation) -> Phase | None:
        """Return the phase to which an operation belongs, None outside of saves."""
        paths = [path for path in (operation.path, operation.source) if path is not None]
        for deleted in list(self._deletions):
            if any(_is_of(path, deleted) for path in paths) or _is_parent(operation, deleted):
                return Phase.RETENTION
        for checkpoint, phase in list(self._saves.items()):
            if any(_is_of(path, checkpoint) for path in paths):
                return _refined(phase, operation)
            if _is_parent(operation, checkpoint):
                return phase
        return None


def _is_of(path: str, checkpoint: str) -> bool:
    """Return whether a path is a checkpoint, is inside, or has a temporary name of its."""
    return path == checkpoint or path.startswith((f"{checkpoint}/", f"{checkpoint}."))


def _is_parent(operation: Operation, checkpoint: str) -> bool:
    """Return whether an operation makes or syncs the directory that a checkpoint is in."""
    return operation.path == os.path.dirname(checkpoint)


def _refined(phase: Phase, operation: Operation) -> Phase:
    if phase not in (Phase.WRITE, Phase.METADATA):
        return phase
    return _FILES.get(os.path.basename(operation.path), phase)

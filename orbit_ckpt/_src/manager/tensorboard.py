"""Metrics that a run logs to TensorBoard, by step."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from orbit_ckpt._src.manager.event_file import EventFile
from orbit_ckpt._src.runtime.forking import ForkSafeLock
from orbit_ckpt._src.storage.path import PathLike, resolve_local, storage_errors


class TensorBoardMetrics:
    """One scalar of a run by step, as some writer of TensorBoard's event files recorded it.

    A metric `train/eval/loss` is the tag `eval/loss` of the run `train`: the first of the
    directories `train` and `train/eval` that holds event files is the run. Where neither does, it
    is the tag `train/eval/loss` of files in `logdir` itself.
    """

    def __init__(self, logdir: PathLike, metric: str) -> None:
        if not metric or metric.endswith("/"):
            raise ValueError(f"The metric {metric!r} has no tag; give run and tag: 'train/loss'.")
        self._logdir = resolve_local(logdir)
        self._metric = metric
        self._run: tuple[Path, str] | None = None
        self._files: dict[Path, EventFile] = {}
        self._lock = ForkSafeLock()

    @property
    def metric(self) -> str:
        """Name of the metric, with the run."""
        return self._metric

    def values(self, steps: Collection[int]) -> Mapping[int, float]:
        """Return the metric of those steps for which it was recorded.

        Of several values for one step the last counts; files count in the order of their names.
        Only what was written since the last call is read. A damaged record is skipped with a
        warning.

        Raises:
            StorageError: A file cannot be read.
        """
        found: dict[int, float] = {}
        advice = "Check that it may be read."
        with self._lock, storage_errors(self._logdir, "reading metrics", advice):
            self._find_files()
            for path in sorted(self._files):
                file = self._files[path]
                file.read_new()
                found |= {step: file.values[step] for step in steps if step in file.values}
        return found

    def _find_files(self) -> None:
        if self._run is None:
            self._run = self._find_run()
            if self._run is not None:
                self._files = {}
        directory, tag = self._run or (self._logdir, self._metric)
        for path in _event_files(directory):
            self._files.setdefault(path, EventFile(path, tag.encode()))

    def _find_run(self) -> tuple[Path, str] | None:
        """Return the run's directory and the tag; once found they stay, whatever appears later."""
        parts = self._metric.split("/")
        for count in range(1, len(parts)):
            directory = self._logdir.joinpath(*parts[:count])
            if _event_files(directory):
                return directory, "/".join(parts[count:])
        return None


def _event_files(directory: Path) -> list[Path]:
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [directory / name for name in names if "tfevents" in name]

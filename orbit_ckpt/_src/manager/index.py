"""The steps that a manager lists."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from orbit_ckpt._src.errors import CheckpointError, StepNotFoundError
from orbit_ckpt._src.manager.step_info import MetricFn, StepInfo, rank
from orbit_ckpt._src.manager.steps import StepNames, StepRecord, list_steps, read_step
from orbit_ckpt._src.metadata.codec import read_json_item
from orbit_ckpt._src.runtime.process import ForkSafeLock
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.storage.durable import sync_directory, write_file
from orbit_ckpt._src.storage.integrity import open_checked
from orbit_ckpt._src.storage.layout import PINNED
from orbit_ckpt._src.storage.path import describe_unfinished, storage_errors
from orbit_ckpt._src.storage.store_path import map_paths

METRICS_ITEM = "metrics"
"""Name of the item, and of the file in it, that holds the metrics of a step."""

_logger = logging.getLogger(__name__)


class MetricsSource(Protocol):
    """A source of metrics that were not passed to `save`."""

    @property
    def metric(self) -> str:
        """Name of the metric."""
        ...

    def values(self, steps: Collection[int], /) -> Mapping[int, float]:
        """Return the metric of those steps that have one."""
        ...


@dataclass(frozen=True, slots=True)
class StepEntry:
    """A step of an index.

    Attributes:
        info: The step as policies see it.
        path: Its directory.
    """

    info: StepInfo
    path: Path


class StepIndex:
    """The committed steps of a run when its directory was last read.

    Steps that this process saves, deletes or pins are updated at once. A step that failed to
    restore can be refused: it is no longer listed, and is not deleted.
    """

    def __init__(
        self,
        root: Path,
        names: StepNames,
        *,
        source: MetricsSource | None = None,
        needs_marker: bool = False,
        reads: bool = True,
    ) -> None:
        """Make an index and read the directory.

        Args:
            root: The run's directory.
            names: How steps are named.
            source: Another source of metrics.
            needs_marker: Whether a step without a commit marker is uncommitted.
            reads: Whether to read the directory; if not, updates fill the index.
        """
        self._root = root
        self._names = names
        self._source = source
        self._needs_marker = needs_marker
        self._lock = ForkSafeLock()
        self._entries: dict[int, StepEntry] = {}
        self._refused: dict[int, Exception] = {}
        self._infos: list[StepInfo] | None = None
        """All that are listed, ascending; None if they must be collected again."""
        self._version = 0
        if reads:
            self.reload()

    def unread(self) -> StepIndex:
        """Return an empty index of the same directory, which updates fill."""
        return StepIndex(self._root, self._names, reads=False)

    @property
    def version(self) -> int:
        """A number that differs after every change."""
        return self._version

    def entries(self) -> dict[int, StepEntry]:
        """Return all steps with the metrics of all sources; a failing source contributes none."""
        with self._lock:
            entries = dict(self._entries)
        try:
            infos = self.infos(with_metrics=True)
        except Exception:  # a user's source may raise anything
            _logger.warning("No metrics can be had from %r", self._source, exc_info=True)
            return entries
        with_metrics = {
            info.step: replace(entries[info.step], info=info)
            for info in infos
            if info.step in entries
        }
        return {**entries, **with_metrics}

    def change(self, changed: Mapping[int, StepEntry], gone: Collection[int]) -> None:
        """Apply an update from another process."""
        with self._lock:
            for step in gone:
                self._entries.pop(step, None)
                self._refused.pop(step, None)
            for step, entry in changed.items():
                known = self._entries.get(step)
                if known is None or known.info.time != entry.info.time:  # it was saved again
                    self._refused.pop(step, None)
                self._entries[step] = entry
            self._has_changed()

    def reload(self) -> None:
        """Read the directory again."""
        with self._lock:  # nothing may be added or removed during this
            known = {step: entry.info.metrics for step, entry in self._entries.items()}
            records = list_steps(self._root, self._names, needs_marker=self._needs_marker)
            found = map_paths(lambda r: make_entry(r, known.get(r.step)), records, root=self._root)
            self._entries = {entry.info.step: entry for entry in found}
            self._has_changed()

    def add(self, step: int, path: Path, metrics: Mapping[str, object] | None = None) -> None:
        """Add a committed step.

        Args:
            step: Its number.
            path: Its directory.
            metrics: Its metrics, None to read those stored with it.
        """
        with self._lock:
            record = read_step(step, path, needs_marker=self._needs_marker)
            if record is not None:
                self._entries[step] = make_entry(record, metrics)
                self._refused.pop(step, None)
                self._has_changed()

    def remove(self, step: int) -> None:
        """Remove a deleted step."""
        with self._lock:
            self._entries.pop(step, None)
            self._has_changed()

    def pin(self, step: int) -> None:
        """Pin a step; see `CheckpointManager.pin`."""
        path = self.path(step)
        with storage_errors(path, "pinning", "Check the permissions there."):
            if not (path / PINNED).exists():
                write_file(path / PINNED, b"")
                sync_directory(path)
        self._set_pinned(step, pinned=True)

    def unpin(self, step: int) -> None:
        """Unpin a step; see `CheckpointManager.unpin`."""
        path = self.path(step)
        with storage_errors(path, "unpinning", "Check the permissions there."):
            (path / PINNED).unlink(missing_ok=True)
            sync_directory(path)
        self._set_pinned(step, pinned=False)

    def is_pinned(self, step: int) -> bool:
        """Return whether a step is pinned on disk, by this or another process."""
        pinned = (self.path(step) / PINNED).exists()
        if pinned:
            self._set_pinned(step, pinned=True)
        return pinned

    def _set_pinned(self, step: int, *, pinned: bool) -> None:
        with self._lock:
            entry = self._entries.get(step)
            if entry is not None:
                info = replace(entry.info, pinned=pinned)
                self._entries[step] = replace(entry, info=info)
                self._has_changed()

    def refuse(self, step: int, error: Exception) -> None:
        """Stop listing a step that cannot be restored."""
        with self._lock:
            self._refused[step] = error
            self._infos = None

    @property
    def refused(self) -> Mapping[int, Exception]:
        """Steps that could not be restored, and why."""
        return dict(self._refused)

    def steps(self) -> list[int]:
        """Return the numbers of all steps, ascending."""
        with self._lock:
            return [info.step for info in self._listed()]

    def __contains__(self, step: int) -> bool:
        """Return whether a step is listed."""
        with self._lock:
            return step in self._entries and step not in self._refused

    def latest(self) -> int | None:
        """Return the last step, None if there are none."""
        with self._lock:
            listed = self._listed()
            return listed[-1].step if listed else None

    def best(self, metric: MetricFn, mode: str) -> int | None:
        """Return the step that ranks best among those with metrics, None without any."""
        measured = [info for info in self.infos(with_metrics=True) if info.metrics is not None]
        ranked = rank(measured, metric, mode)
        return measured[ranked[-1]].step if ranked else None

    def _listed(self) -> list[StepInfo]:
        """Return the listed steps, ascending; the caller holds the lock."""
        if self._infos is None:
            entries, refused = self._entries, self._refused
            self._infos = [entries[step].info for step in sorted(entries) if step not in refused]
        return self._infos

    def _has_changed(self) -> None:
        """Drop values derived from the entries; the caller holds the lock."""
        self._infos = None
        self._version += 1

    def path(self, step: int) -> Path:
        """Return the directory of a step.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        entry = self._entries.get(step)
        if entry is None:
            known = ", ".join(map(str, self.steps()[-10:])) or "none"
            unfinished = describe_unfinished(self._root / self._names.build_name(step))
            raise StepNotFoundError(
                f"There is no step {step} in {self._root}"
                + (f": {unfinished}" if unfinished else "")
                + f"; the latest are: {known}. If another process saved it, call reload() first."
            )
        return entry.path

    def infos(self, *, with_metrics: bool = False) -> list[StepInfo]:
        """Return all steps as policies see them, ascending.

        Args:
            with_metrics: Whether to query the metrics source too.
        """
        with self._lock:
            infos = list(self._listed())
        if self._source is None or not with_metrics:
            return infos
        values = self._source.values([info.step for info in infos])
        name = self._source.metric
        return [
            replace(info, metrics={**(info.metrics or {}), name: values[info.step]})
            if info.step in values
            else info
            for info in infos
        ]


def make_entry(record: StepRecord, metrics: Mapping[str, object] | None = None) -> StepEntry:
    """Return the entry of a step.

    Args:
        record: The step on disk.
        metrics: Its metrics, None to read those stored with it.
    """
    if metrics is None and METRICS_ITEM in record.items:
        try:
            metrics = read_metrics(record.place or record.path)
        except CheckpointError as error:
            if directory_of(record.path).is_outage(error):
                raise  # it has metrics, perhaps the best ones
            _logger.warning("Step %d counts as one without metrics: %s", record.step, error)
    info = StepInfo(
        record.step,
        record.commit_time,
        metrics,
        pinned=record.pinned,
        temporary=record.temporary,
        items=record.items,
        foreign=record.foreign,
    )
    return StepEntry(info, record.path)


def read_metrics(path: Path | str) -> Mapping[str, object] | None:
    """Return the metrics stored with a step, None if it has none.

    Raises:
        CheckpointError: They cannot be read.
    """
    directory = path / METRICS_ITEM if isinstance(path, Path) else f"{path}{os.sep}{METRICS_ITEM}"
    try:
        return read_json_item(open_checked(directory), METRICS_ITEM)
    except CheckpointError:
        if os.path.isdir(directory) if isinstance(directory, str) else directory.is_dir():
            raise
        return None  # checked last: nearly every step queried has metrics


def readable_metrics(step: int, path: Path) -> Mapping[str, object]:
    """Return the metrics stored with a step; log unreadable ones and return none.

    Raises:
        StorageError: The step is in a store that cannot be reached.
    """
    try:
        return read_metrics(path) or {}
    except CheckpointError as error:
        if directory_of(path).is_outage(error):
            raise
        _logger.warning("%s: the metrics of step %d cannot be read: %s", path, step, error)
        return {}

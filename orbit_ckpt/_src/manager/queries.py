"""Queries about the steps of a run, which one process may make alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any, overload

from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer
from orbit_ckpt._src.drawing import Drawing, Table
from orbit_ckpt._src.manager.index import METRICS_ITEM, read_metrics, readable_metrics
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.manager.retention import RetentionPlan
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.manager.step_items import DEFAULT_ITEM, StepItems
from orbit_ckpt._src.manager.step_store import StepStore, read_root_metadata
from orbit_ckpt._src.manager.steps import as_step
from orbit_ckpt._src.metadata.values import RootMetadata, StepMetadata
from orbit_ckpt._src.text import shorten


class RunQueries:
    """The steps of a run as this process knows them; its methods wait for no other process."""

    _directory: Path
    _options: CheckpointManagerOptions
    _metadata: Mapping[str, object]
    _store: StepStore
    _items: StepItems
    _checkpointer: Checkpointer

    @property
    def directory(self) -> Path:
        """The run's directory."""
        return self._directory

    @property
    def refused(self) -> Mapping[int, Exception]:
        """Steps that `restore(fallback=True)` could not restore, and why."""
        return self._store.view.refused

    @property
    def _checkpoints(self) -> list[StepInfo]:
        """The listed steps; subclasses written for Orbax read this attribute of its manager."""
        return self._store.view.infos()

    def latest_step(self) -> int | None:
        """Return the newest step, None if there is none; see `all_steps`."""
        return max(self._store.steps(), default=None)

    def steps_with_item(self, item: str) -> list[int]:
        """Return the steps that have an item of this name, ascending.

        A policy for items may have deleted it from other steps.
        """
        return [info.step for info in self._store.view.infos() if item in info.items]

    def best_step(self) -> int | None:
        """Return the best step by `best_fn`, the newest without one, None if there are none."""
        if self._options.best_fn is None:
            return self.latest_step()
        return self._store.view.best(self._options.best_fn, self._options.best_mode)

    def metrics(self, step: int) -> Mapping[str, object] | None:
        """Return the metrics saved with a step, None if it has none; wait if it is being saved."""
        return read_metrics(self._store.durable_path(as_step(step)))

    def item_metadata(self, step: int) -> Any:  # of the item, whatever it is, or a composite
        """Return metadata of a step's item or items, without reading arrays."""
        return self.metadata(as_step(step)).item_metadata

    @overload
    def metadata(self, step: None = None) -> RootMetadata: ...
    @overload
    def metadata(self, step: int) -> StepMetadata: ...
    def metadata(self, step: int | None = None) -> RootMetadata | StepMetadata:
        """Return `StepMetadata` of a step, or `RootMetadata` of the run; log unreadable metrics.

        A step that is being saved is waited for.

        Raises:
            StepNotFoundError: The step does not exist.
        """
        if step is None:
            return read_root_metadata(self._directory, self._metadata)
        path = self._store.durable_path(as_step(step))
        found = self._items.metadata(self._checkpointer, path)
        return replace(found, metrics={**found.metrics, **readable_metrics(step, path)})

    def _draw(self) -> Drawing:
        """Return the listed steps and the one being saved, the newest first.

        Reads nothing and waits for no process: shows what this process knows already.
        """
        infos = self._store.infos()[::-1]
        durable = set(self._store.view.steps())
        rows = [_row(info, is_durable=info.step in durable) for info in infos]
        counts = f"{len(rows)} step{'' if len(rows) == 1 else 's'}"
        refused = f", {len(self.refused)} refused" if self.refused else ""
        title = f"{type(self).__name__}({str(self._directory)!r}): {counts}{refused}"
        header = ("step", "saved (UTC)", "state", "metrics", "items")
        return Drawing(title, [Table(header, rows, ["step"], what="older steps")] if rows else [])

    def __repr__(self) -> str:
        return self._draw().text()

    def _repr_html_(self) -> str:
        return self._draw().html()

    def retention(self) -> RetentionPlan:
        """Return which steps the policies keep and delete now, and why; delete nothing."""
        return self._store.plan()


def _row(info: StepInfo, *, is_durable: bool) -> tuple[str, ...]:
    state = [] if is_durable else ["being saved"]
    state += ["pinned"] if info.pinned else []
    state += ["temporary"] if info.temporary else []
    metrics = ", ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in (info.metrics or {}).items()
    )
    time = f"{info.time.astimezone(UTC):%Y-%m-%d %H:%M:%S}" if is_durable else ""
    items = ", ".join(sorted(info.items - {DEFAULT_ITEM, METRICS_ITEM}))
    return str(info.step), time, ", ".join(state), shorten(metrics), shorten(items)

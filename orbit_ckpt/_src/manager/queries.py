"""Queries about the steps of a run, which one process may make alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from orbit_ckpt._src.checkpointer.checkpointer import Checkpointer
from orbit_ckpt._src.manager.index import read_metrics, readable_metrics
from orbit_ckpt._src.manager.options import CheckpointManagerOptions
from orbit_ckpt._src.manager.retention import RetentionPlan
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.manager.step_items import StepItems
from orbit_ckpt._src.manager.step_store import StepStore, read_root_metadata
from orbit_ckpt._src.manager.steps import as_step


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

    def metadata(self, step: int | None = None) -> Any:  # RootMetadata or StepMetadata
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

    def retention(self) -> RetentionPlan:
        """Return which steps the policies keep and delete now, and why; delete nothing."""
        return self._store.plan()

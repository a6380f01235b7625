"""Orbax's interface of checkpoint managers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class AbstractCheckpointManager(Protocol):
    """Saves and restores the steps of a run; `CheckpointManager` does."""

    @property
    def directory(self) -> Path:
        """The run's directory."""
        ...

    def all_steps(self, read: bool = False) -> Sequence[int]:
        """Return the steps of the run."""
        ...

    def latest_step(self) -> int | None:
        """Return the newest step, None if there is none."""
        ...

    def best_step(self) -> int | None:
        """Return the best step, None if there is none."""
        ...

    def reload(self) -> None:
        """Read the directory again."""
        ...

    def reached_preemption(self, step: int) -> bool:
        """Return whether the job is about to be stopped."""
        ...

    def should_save(self, step: int) -> bool:
        """Return whether `save` would save a step."""
        ...

    def delete(self, step: int) -> None:
        """Delete a step."""
        ...

    def save(self, step: int, *args: Any, **kwargs: Any) -> bool:
        """Save a step; return whether it was saved."""
        ...

    def restore(self, step: int | None, *args: Any, **kwargs: Any) -> Any:
        """Restore a step."""
        ...

    def item_metadata(self, step: int) -> Any:
        """Return metadata of a step's item or items."""
        ...

    def metadata(self, step: int | None = None) -> Any:
        """Return metadata of a step, or of the run."""
        ...

    def metrics(self, step: int) -> Mapping[str, Any] | None:
        """Return the metrics of a step, None if it has none."""
        ...

    def wait_until_finished(self) -> None:
        """Wait until no save is in progress."""
        ...

    def check_for_errors(self) -> None:
        """Raise the error of a failed background save."""
        ...

    def close(self) -> None:
        """Wait for saves in progress and release resources."""
        ...

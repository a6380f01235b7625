"""Metadata of a step in the v1 API."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, final

from typing_extensions import override

from orbit_ckpt._src.v1 import checkpoint_metadata

T = TypeVar("T")


@final
class CheckpointMetadata(checkpoint_metadata.CheckpointMetadata[T], Generic[T]):
    """Metadata of a step."""

    def __init__(
        self,
        step: int,
        path: Path,
        *,
        metadata: T,
        init_timestamp_nsecs: int | None = None,
        commit_timestamp_nsecs: int | None = None,
        custom_metadata: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Make one; see `CheckpointMetadata` of the v1 API.

        Args:
            step: Number of the step.
            path: Where it is.
            metadata: The abstract form of its tree, or of all checkpointables by name.
            init_timestamp_nsecs: Start of the save, in ns since the epoch.
            commit_timestamp_nsecs: Time of the commit, in ns since the epoch.
            custom_metadata: The user's metadata.
            metrics: The metrics saved with it.
        """
        super().__init__(
            path,
            metadata=metadata,
            init_timestamp_nsecs=init_timestamp_nsecs,
            commit_timestamp_nsecs=commit_timestamp_nsecs,
            custom_metadata=custom_metadata,
        )
        self._step = step
        self._metrics = metrics

    @property
    def step(self) -> int:
        """Number of the step."""
        return self._step

    @property
    def metrics(self) -> Mapping[str, Any] | None:
        """The metrics saved with it."""
        return self._metrics

    @property
    def time(self) -> dt.datetime:
        """Time of the commit."""
        return self.commit_timestamp or dt.datetime.fromtimestamp(0, tz=dt.UTC)

    @override
    def _shown(self) -> dict[str, object]:
        return {"step": self._step, **super()._shown(), "metrics": self._metrics}


Step = CheckpointMetadata[None]
"""A step of which only the place, the time and the metrics are read."""

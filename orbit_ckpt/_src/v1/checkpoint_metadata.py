"""The metadata of a checkpoint that the v1 API returns."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from typing_extensions import override

T = TypeVar("T")


class CheckpointMetadata(Generic[T]):
    """Metadata of a checkpoint."""

    def __init__(
        self,
        path: Path,
        *,
        metadata: T,
        init_timestamp_nsecs: int | None = None,
        commit_timestamp_nsecs: int | None = None,
        custom_metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Make one.

        Args:
            path: Where the checkpoint is.
            metadata: The abstract form of its tree, or of all checkpointables by name.
            init_timestamp_nsecs: Start of the save, in ns since the epoch.
            commit_timestamp_nsecs: Time of the commit, in ns since the epoch.
            custom_metadata: The user's metadata.
        """
        self._path = path
        self._metadata = metadata
        self._init_timestamp_nsecs = init_timestamp_nsecs
        self._commit_timestamp_nsecs = commit_timestamp_nsecs
        self._custom_metadata = custom_metadata

    @property
    def path(self) -> Path:
        """Where the checkpoint is."""
        return self._path

    @property
    def metadata(self) -> T:
        """The abstract form of its tree, or of all checkpointables by name."""
        return self._metadata

    @property
    def init_timestamp_nsecs(self) -> int | None:
        """Start of the save, in ns since the epoch."""
        return self._init_timestamp_nsecs

    @property
    def commit_timestamp_nsecs(self) -> int | None:
        """Time of the commit, in ns since the epoch."""
        return self._commit_timestamp_nsecs

    @property
    def init_timestamp(self) -> dt.datetime | None:
        """Start of the save."""
        return _as_time(self._init_timestamp_nsecs)

    @property
    def commit_timestamp(self) -> dt.datetime | None:
        """Time of the commit."""
        return _as_time(self._commit_timestamp_nsecs)

    @property
    def custom_metadata(self) -> Mapping[str, Any] | None:
        """The user's metadata."""
        return self._custom_metadata

    def _shown(self) -> dict[str, object]:
        return {
            "metadata": self._metadata,
            "init_timestamp_nsecs": self._init_timestamp_nsecs,
            "commit_timestamp_nsecs": self._commit_timestamp_nsecs,
            "custom_metadata": self._custom_metadata,
        }

    @override
    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._shown().items())
        return f"{type(self).__name__}({fields})"


def _as_time(nsecs: int | None) -> dt.datetime | None:
    if nsecs is None:
        return None
    return dt.datetime.fromtimestamp(nsecs / 1e9, tz=dt.UTC)

"""The steps of a run as all processes see them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from orbit_ckpt._src.manager.coordinator import RunCoordinator
from orbit_ckpt._src.manager.index import StepEntry, StepIndex
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.storage.path import resolve_path


class StepUpdate(Struct, frozen=True):
    """A new or changed step, as the primary broadcasts it.

    Attributes:
        step: Its number.
        path: Its directory.
        time: When it was committed.
        metrics: Its metrics as JSON, None if it has none.
        pinned: Whether it must not be deleted.
        temporary: Whether it is kept only until the next one is durable.
        items: Names of its items.
        foreign: Whether another program wrote it.
    """

    step: int
    path: str
    time: datetime
    metrics: bytes | None = None
    pinned: bool = False
    temporary: bool = False
    items: list[str] = []
    foreign: bool = False


class IndexUpdate(Struct, frozen=True):
    """Changes that the primary has not broadcast yet.

    Attributes:
        has_ended: Whether the pending save has ended, successfully or not.
        changed: New or changed steps.
        deleted: Deleted steps.
        problem: An error on the primary alone, such as a failed deletion.
        is_storage: Whether the storage caused it.
    """

    has_ended: bool = True
    changed: list[StepUpdate] = []
    deleted: list[int] = []
    problem: str | None = None
    is_storage: bool = False


class SharedIndex:
    """The steps of a run, identical on all processes.

    With one process this is its index. With several, the primary's index changes as background
    saves end; `view` changes only in a round that all processes join, and so is the same on all of
    them between two rounds without communication.
    """

    def __init__(self, coordinator: RunCoordinator, index: StepIndex) -> None:
        """Make one.

        Args:
            coordinator: The processes.
            index: The steps; only the primary's is read.
        """
        self._coordinator = coordinator
        self._index = index
        self.view = index if coordinator.is_alone else index.unread()
        self._sent: dict[int, StepUpdate] = {}
        self._sent_version = -1
        self._sending = self._sent, self._sent_version

    @property
    def own(self) -> StepIndex:
        """The index that receives this process's changes; only the primary makes any."""
        return self._index if self._coordinator.is_primary else self.view

    def pending_update(self) -> IndexUpdate:
        """Return the changes since the last update for which `apply` was called."""
        if self._coordinator.is_alone or self._index.version == self._sent_version:
            return IndexUpdate()
        version = self._index.version
        current = {step: _update_of(entry) for step, entry in self._index.entries().items()}
        changed = [update for step, update in current.items() if self._sent.get(step) != update]
        deleted = [step for step in self._sent if step not in current]
        self._sending = current, version
        return IndexUpdate(changed=changed, deleted=deleted)

    def apply(self, update: IndexUpdate) -> None:
        """Apply the primary's update."""
        if self._coordinator.is_primary:
            self._sent, self._sent_version = self._sending
        if update.changed or update.deleted:
            self.view.change({s.step: _entry_of(s) for s in update.changed}, update.deleted)

    def reload(self) -> None:
        """Read the directory again, on the primary."""
        self._index.reload()

    def refuse(self, step: int, error: Exception) -> None:
        """Stop listing a step that cannot be restored."""
        self.view.refuse(step, error)
        if self._index is not self.view:
            self._index.refuse(step, error)


def _update_of(entry: StepEntry) -> StepUpdate:
    info = entry.info
    metrics = None if info.metrics is None else encode_user_json(dict(info.metrics))
    return StepUpdate(
        info.step,
        str(entry.path),
        info.time,
        metrics,
        info.pinned,
        info.temporary,
        sorted(info.items),
        info.foreign,
    )


def _entry_of(update: StepUpdate) -> StepEntry:
    metrics: dict[str, Any] | None = None
    if update.metrics is not None:
        metrics = decode_json(update.metrics, dict[str, Any], f"metrics of step {update.step}")
    info = StepInfo(
        update.step,
        update.time,
        metrics,
        pinned=update.pinned,
        temporary=update.temporary,
        items=frozenset(update.items),
        foreign=update.foreign,
    )
    return StepEntry(info, resolve_path(update.path))

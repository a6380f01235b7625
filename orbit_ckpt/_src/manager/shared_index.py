"""The steps of a run as all processes see them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from orbit_ckpt._src.errors import CheckpointError, StorageError
from orbit_ckpt._src.manager.council import Council
from orbit_ckpt._src.manager.index import StepEntry, StepIndex
from orbit_ckpt._src.manager.keeper import StepKeeper
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.metadata.codec import decode_json
from orbit_ckpt._src.metadata.user_json import encode_user_json
from orbit_ckpt._src.storage.path import resolve_path


class StepNews(Struct, frozen=True):
    """A step that is new, or has changed, as the primary process tells of it.

    Attributes:
        step: Its number.
        path: Its directory.
        time: When it was committed.
        metrics: Its metrics as JSON, None if it has none.
        pinned: Whether it must not be deleted.
        temporary: Whether it is there only until the next one is durable.
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


class News(Struct, frozen=True):
    """What the primary process knows that the others do not know yet.

    Attributes:
        has_ended: Whether the last save has, well or not.
        changed: Steps that are new or have changed.
        gone: Steps that have been deleted.
        problem: What has gone wrong on the primary process alone: deletions, for example.
        is_storage: Whether it was the storage's fault.
    """

    has_ended: bool = True
    changed: list[StepNews] = []
    gone: list[int] = []
    problem: str | None = None
    is_storage: bool = False

    def error(self) -> CheckpointError | None:
        """Return what to raise because of the problem."""
        if self.problem is None:
            return None
        return StorageError(self.problem) if self.is_storage else CheckpointError(self.problem)


class SharedIndex:
    """What all processes know of the steps of a run.

    With one process this is its index. With several, the index of the primary process changes while
    saves go on in the background; `view` changes only where all processes meet, and so is the same
    on all of them between two meetings, without a word.
    """

    def __init__(self, council: Council, index: StepIndex) -> None:
        """Make one.

        Args:
            council: The processes.
            index: The steps; the primary process's is used, the others' need not be read.
        """
        self._council = council
        self._index = index
        self.view = index if council.is_alone else index.unread()
        self._told: dict[int, StepNews] = {}
        self._told_version = -1
        self._telling = self._told, self._told_version
        self._problems: list[CheckpointError] = []

    @property
    def own(self) -> StepIndex:
        """Where this process enters what it does; of several only the primary one does."""
        return self._index if self._council.is_primary else self.view

    def news(self, keeper: StepKeeper | None = None, *, has_ended: bool = True) -> News:
        """Return what the primary process has to tell, until `follow` says that all know it.

        Args:
            keeper: Whose problems are to be told.
            has_ended: Whether the last save has.
        """
        if self._council.is_alone:
            return News(has_ended)
        error = None if keeper is None else keeper.error()
        if error is not None:
            self._problems.append(error)
        texts = [text for error in self._problems for text in (str(error), *_notes(error))]
        changed, gone = self._changes()
        return News(
            has_ended,
            changed,
            gone,
            "\n".join(texts) or None,
            is_storage=any(isinstance(error, StorageError) for error in self._problems),
        )

    def follow(self, news: News) -> None:
        """Take in what the primary process has told all; nothing if this process is alone."""
        if self._council.is_primary:
            self._told, self._told_version = self._telling
            self._problems = []
        if news.changed or news.gone:
            self.view.change({s.step: _entry(s) for s in news.changed}, news.gone)

    def reload(self) -> None:
        """Read the directory again; for the primary process."""
        self._index.reload()

    def refuse(self, step: int, error: Exception) -> None:
        """List a step no more because it cannot be restored."""
        self.view.refuse(step, error)
        if self._index is not self.view:
            self._index.refuse(step, error)

    def _changes(self) -> tuple[list[StepNews], list[int]]:
        version = self._index.version
        if version == self._told_version:
            return [], []
        found = {step: _news_of(entry) for step, entry in self._index.entries().items()}
        changed = [news for step, news in found.items() if self._told.get(step) != news]
        gone = [step for step in self._told if step not in found]
        self._telling = found, version
        return changed, gone


def _news_of(entry: StepEntry) -> StepNews:
    info = entry.info
    metrics = None if info.metrics is None else encode_user_json(dict(info.metrics))
    return StepNews(
        info.step,
        str(entry.path),
        info.time,
        metrics,
        info.pinned,
        info.temporary,
        sorted(info.items),
        info.foreign,
    )


def _entry(news: StepNews) -> StepEntry:
    metrics: dict[str, Any] | None = None
    if news.metrics is not None:
        metrics = decode_json(news.metrics, dict[str, Any], f"metrics of step {news.step}")
    info = StepInfo(
        news.step,
        news.time,
        metrics,
        pinned=news.pinned,
        temporary=news.temporary,
        items=frozenset(news.items),
        foreign=news.foreign,
    )
    return StepEntry(info, resolve_path(news.path))


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))

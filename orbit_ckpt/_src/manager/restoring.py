"""Restore a step of a run, of this one or of another."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from orbit_ckpt._src.errors import StepNotFoundError
from orbit_ckpt._src.manager.council import Council
from orbit_ckpt._src.manager.fallback import restore_newest_intact, restore_on_all
from orbit_ckpt._src.manager.index import StepIndex
from orbit_ckpt._src.manager.saver import StepSaver
from orbit_ckpt._src.manager.shared_index import News, SharedIndex
from orbit_ckpt._src.manager.steps import StepNames, as_step


class StatisticsLogger(Protocol):
    """Takes what happened, once per save and restore; Orbax's `AbstractLogger`."""

    def log_entry(self, entry: dict[str, Any], /) -> None:
        """Take one event."""
        ...


class EventLog(Struct, frozen=True):
    """Tells a logger of saves and restores.

    Attributes:
        logger: Who is told, None for nobody.
        directory: The run's directory.
    """

    logger: StatisticsLogger | None
    directory: Path

    def add(self, event: str, step: int, duration: timedelta | None) -> None:
        """Tell of one, and how long its caller has waited for it."""
        if self.logger is not None:
            seconds = 0.0 if duration is None else duration.total_seconds()
            entry = {"event_type": event, "step": step, "directory": str(self.directory)}
            self.logger.log_entry({**entry, "duration_secs": seconds})


class Restorer(Struct, frozen=True):
    """Restores steps on all processes of a run.

    Attributes:
        directory: The run's directory.
        names: How its steps are called.
        council: Its processes.
        shared: Its steps.
        saver: What saves steps, for which a restore waits.
        events: Is told of every restore.
    """

    directory: Path
    names: StepNames
    council: Council
    shared: SharedIndex
    saver: StepSaver
    events: EventLog

    def restore(
        self,
        step: int | None,
        read: Callable[[Path], Any],
        *,
        other: Path | None,
        fallback: bool,
    ) -> Any:  # what `read` returns
        """Restore a step.

        Args:
            step: Its number, None for the newest.
            read: Restores what is at a path.
            other: Directory of another run to restore from.
            fallback: Whether to restore an older step if this one is damaged.

        Raises:
            StepNotFoundError: There is no such step, or no step that can be restored.
            CheckpointError: What `read` raises.
        """
        shared = self._look_again(step, other)
        index = shared.view
        steps = index.steps()
        if step is None and not steps:
            raise StepNotFoundError(
                f"No steps found in {other or self.directory}. Check the directory and how its "
                "steps are named, or begin without a checkpoint if latest_step() is None."
            )
        first = steps[-1] if step is None else as_step(step)
        index.path(first)  # says which steps there are

        def restore_one(number: int) -> Any:  # as above
            return restore_on_all(self.council, number, lambda: read_step(number))

        def read_step(number: int) -> Any:  # as above
            began = time.monotonic()
            restored = read(index.path(number))
            self.events.add("restore", number, timedelta(seconds=time.monotonic() - began))
            return restored

        if not fallback:
            return restore_one(first)
        older = [number for number in reversed(steps) if number <= first]
        return restore_newest_intact(older, restore_one, shared.refuse)

    def _look_again(self, step: int | None, other: Path | None) -> SharedIndex:
        """Wait until no save goes on; return the steps of this run, or of another one."""
        if other is None or other == self.directory:
            shared, say, take = self.shared, self.saver.news, self.saver.take
        else:
            index = StepIndex(other, self.names, reads=False)
            shared = SharedIndex(self.council, index)
            take = shared.follow

            def say() -> News:
                index.reload()
                return shared.news()

        with self.council.meeting(f"restore({step})") as meeting:
            self.saver.wait()
            meeting.collect()
            news = meeting.share(say, News)
        take(news)
        return shared

"""Events of a manager: statistics of saves and restores, and the loggers that receive them."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from typing_extensions import override

from orbit_ckpt._src.guards import is_json_object
from orbit_ckpt._src.runtime.checks import check_methods

_logger = logging.getLogger(__name__)


@runtime_checkable
class AbstractLogger(Protocol):
    """Receives the events of a manager: of saves and restores, and of durable steps if it wants.

    A logger with `receives_commits = True` gets the event `"commit"` once a step is durable, on
    another thread; Orbax's loggers do not know it.
    """

    @abstractmethod
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Receive an event: a dict, or a text with its arguments."""
        ...


class StandardLogger(AbstractLogger):
    """Sends events to the standard library's logging, at level INFO."""

    @override
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Log an event; for the arguments see `logging.Logger.info`."""
        _logger.info(msg if args else "%s", *(args or (msg,)), **kwargs)


class CompositeLogger(AbstractLogger):
    """Sends events to several loggers."""

    def __init__(self, *loggers: AbstractLogger) -> None:
        """Make a logger.

        Raises:
            TypeError: One of the loggers has no `log_entry`.
        """
        for logger in loggers:
            example = "Give StandardLogger(), for example."
            check_methods("CompositeLogger: each logger", logger or object, ["log_entry"], example)
        self._loggers = loggers
        self.receives_commits = any(map(_receives_commits, loggers))

    @override
    def log_entry(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        """Send an event to all loggers that receive such."""
        is_commit = is_json_object(msg) and msg.get("event_type") == "commit"
        for logger in self._loggers:
            if not is_commit or _receives_commits(logger):
                logger.log_entry(msg, *args, **kwargs)


def _receives_commits(logger: object) -> bool:
    return bool(getattr(logger, "receives_commits", False))


@dataclass
class SaveStepStatistics:
    """The event of one save. Times are in seconds since 1970, durations in seconds.

    Attributes:
        step: The step.
        event_type: `"save"`.
        directory: The run's directory.
        reached_preemption: Whether the job is about to be stopped.
        preemption_received_at: When the save noticed it.
        synchronous: Whether the save ended before it returned.
        wait_for_prev_start_time: When it began to wait for the previous save.
        wait_for_prev_duration_secs: How long it waited.
        time_between_consecutive_saves_sec: Time since the previous save began to wait.
        checkpointer_blocking_start_time: When it began to copy or write the items.
        checkpointer_blocking_duration_secs: How long that blocked the caller.
        get_old_steps_start_time: Not measured: old steps are deleted once the new one is durable.
        get_old_steps_duration_secs: Not measured.
        checkpoint_manager_blocking_start_time: When `save` was called.
        checkpoint_manager_blocking_duration_secs: How long `save` blocked the caller.
    """

    step: int | None = None
    event_type: str | None = "save"
    directory: str | None = None
    reached_preemption: bool | None = False
    preemption_received_at: float | None = None
    synchronous: bool | None = False
    wait_for_prev_start_time: float | None = None
    wait_for_prev_duration_secs: float | None = None
    time_between_consecutive_saves_sec: float | None = None
    checkpointer_blocking_start_time: float | None = None
    checkpointer_blocking_duration_secs: float | None = None
    get_old_steps_start_time: float | None = None
    get_old_steps_duration_secs: float | None = None
    checkpoint_manager_blocking_start_time: float | None = None
    checkpoint_manager_blocking_duration_secs: float | None = None


@dataclass
class RestoreStepStatistics:
    """The event of one restore. Times are in seconds since 1970, durations in seconds.

    Attributes:
        step: The step.
        event_type: `"restore"`.
        directory: The run's directory.
        checkpointer_start_time: When it began to read the items.
        checkpointer_duration_secs: How long that took.
        checkpoint_manager_start_time: When `restore` was called.
        checkpoint_manager_duration_secs: How long `restore` took.
    """

    step: int | None = None
    event_type: str | None = "restore"
    directory: str | None = None
    checkpointer_start_time: float | None = None
    checkpointer_duration_secs: float | None = None
    checkpoint_manager_start_time: float | None = None
    checkpoint_manager_duration_secs: float | None = None


@dataclass
class CommitStepStatistics:
    """The event of a step that has become durable, perhaps on another thread.

    Attributes:
        step: The step.
        event_type: `"commit"`.
        directory: The run's directory.
        nbytes: Bytes that this process has written, as they are in memory.
        duration_secs: Seconds since the save began.
        metrics: The metrics given to `save`.
    """

    step: int | None = None
    event_type: str | None = "commit"
    directory: str | None = None
    nbytes: int | None = None
    duration_secs: float | None = None
    metrics: Mapping[str, object] | None = None


@dataclass(slots=True)
class SaveTimes:
    """When the phases of a save began, in seconds since 1970.

    Attributes:
        waiting: When it began to wait for the previous save.
        begun: When the save itself began, None if it did not.
    """

    waiting: float
    begun: float | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that the save waited; 0 if it did not begin, or the clock was set back."""
        return 0.0 if self.begun is None else max(0.0, self.begun - self.waiting)


class EventLog:
    """Sends save and restore events of a manager to a logger, if there is one."""

    def __init__(self, logger: AbstractLogger | None, directory: Path) -> None:
        self._logger = logger
        self._directory = str(directory)
        self._last: float | None = None

    def saved(
        self, step: int, called: float, times: SaveTimes, *, is_ending: bool, synchronous: bool
    ) -> None:
        """Send the event of a save that returns to its caller.

        Args:
            step: The step.
            called: When `save` was called.
            times: When its phases began.
            is_ending: Whether the job is about to be stopped.
            synchronous: Whether the save has ended.
        """
        now, waiting, last = time.time(), times.waiting, self._last
        self._last = waiting
        begun = now if times.begun is None else times.begun
        self._send(
            SaveStepStatistics(
                step=step,
                directory=self._directory,
                reached_preemption=is_ending,
                preemption_received_at=called if is_ending else None,
                synchronous=synchronous,
                wait_for_prev_start_time=waiting,
                wait_for_prev_duration_secs=begun - waiting,
                time_between_consecutive_saves_sec=None if last is None else waiting - last,
                checkpointer_blocking_start_time=times.begun,
                checkpointer_blocking_duration_secs=now - begun,
                checkpoint_manager_blocking_start_time=called,
                checkpoint_manager_blocking_duration_secs=now - called,
            ),
            now - waiting,
        )

    def restored(self, step: int, called: float, begun: float) -> None:
        """Send the event of a restore.

        Args:
            step: The step.
            called: When `restore` was called.
            begun: When the items began to be read.
        """
        now = time.time()
        self._send(
            RestoreStepStatistics(
                step=step,
                directory=self._directory,
                checkpointer_start_time=begun,
                checkpointer_duration_secs=now - begun,
                checkpoint_manager_start_time=called,
                checkpoint_manager_duration_secs=now - called,
            ),
            now - begun,
        )

    def committed(
        self, step: int, metrics: Mapping[str, object] | None, nbytes: int, seconds: float
    ) -> None:
        """Send the event of a step that is durable to a logger that receives it."""
        if not _receives_commits(self._logger):
            return
        self._send(
            CommitStepStatistics(
                step=step, directory=self._directory, nbytes=nbytes, metrics=metrics
            ),
            seconds,
        )

    def _send(
        self,
        event: SaveStepStatistics | RestoreStepStatistics | CommitStepStatistics,
        duration: float,
    ) -> None:
        if self._logger is not None:
            self._logger.log_entry({**asdict(event), "duration_secs": duration})

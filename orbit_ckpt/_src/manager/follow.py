"""Follow a run from another process: wait for its checkpoints."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orbit_ckpt._src.manager.steps import StepNameFormat, StepNames, as_step, latest_step
from orbit_ckpt._src.runtime.checks import check_callable, check_number
from orbit_ckpt._src.storage.path import PathLike, resolve_path

TIMED_OUT = -1
"""What `wait_for_new_checkpoint` yields in place of a step."""

_logger = logging.getLogger(__name__)


class Clock(Protocol):
    """A source of time; tests pass a fake."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary moment."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """Sleep for `seconds`."""
        ...


@contextlib.contextmanager
def wait_for_new_checkpoint(  # noqa: PLR0913 - Orbax's signature
    checkpoint_dir: PathLike,
    *,
    until_step: int | None = None,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    step_prefix: str | None = None,
    step_format_fixed_length: int | None = None,
    step_name_format: StepNames | None = None,
    snapshot_dir: PathLike | None = None,
    set_immutable: bool | None = None,
    ignore_snapshot_errors: bool | None = True,  # noqa: ARG001 - there are no snapshots
    _clock: Clock = time,
) -> Generator[int]:
    """Wait until a run has a checkpoint; the context yields its step, or -1 after a timeout.

        with wait_for_new_checkpoint("run", until_step=1000, timeout=3600) as step:
            ...

    Args:
        checkpoint_dir: The run's directory; it need not exist yet.
        until_step: Smallest step to wait for, any step by default. The context yields the latest
            step of the run.
        seconds_to_sleep: Polling interval.
        timeout: Longest wait in seconds, unlimited by default.
        timeout_fn: Called after the timeout and then after each poll that finds nothing; the wait
            ends when it returns True: no further checkpoint will come.
        step_prefix: As in `CheckpointManagerOptions`, like the two below.
        step_format_fixed_length: Least number of digits in step names.
        step_name_format: How steps are named; replaces the two above.
        snapshot_dir: Not supported.
        set_immutable: Not supported.
        ignore_snapshot_errors: Ignored.

    Raises:
        ValueError: A snapshot is requested. Checkpoints in use are not copied: let the run keep a
            few more steps than it saves while you use one.
        StorageError: The run's directory cannot be read.
    """
    _check_no_snapshots(snapshot_dir, set_immutable)
    check_number("seconds_to_sleep", seconds_to_sleep, can_be_zero=True)
    if timeout is not None:
        check_number("timeout", timeout, can_be_zero=True)
    check_callable("timeout_fn", timeout_fn, "Give one that says whether to stop waiting.")
    names = step_name_format or StepNameFormat(step_prefix, step_format_fixed_length)
    waiting = _Waiting(
        resolve_path(checkpoint_dir), names, seconds_to_sleep, timeout, timeout_fn, _clock
    )
    yield waiting.wait(0 if until_step is None else as_step(until_step))


def checkpoints_iterator(  # noqa: PLR0913 - Orbax's signature
    checkpoint_dir: PathLike,
    *,
    min_interval_secs: float = 0,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
    step_prefix: str | None = None,
    step_format_fixed_length: int | None = None,
    step_name_format: StepNames | None = None,
    snapshot_dir: PathLike | None = None,
    set_immutable: bool | None = None,
    ignore_snapshot_errors: bool | None = True,  # noqa: ARG001 - there are no snapshots
    _clock: Clock = time,
) -> Generator[int]:
    """Yield the steps of a run as they are saved, from another process.

    Each poll yields the latest step if it is newer than the previous one; steps saved in between
    are skipped. The run may delete a step after it has been yielded.

        for step in checkpoints_iterator("run", timeout=600, timeout_fn=training_is_over):
            evaluate(load(f"run/{step}"))

    Args:
        checkpoint_dir: The run's directory; it need not exist yet.
        min_interval_secs: Least time between yielding a step and looking for the next.
        seconds_to_sleep: Polling interval.
        timeout: Longest wait for a step in seconds, after which the iterator ends; unlimited by
            default.
        timeout_fn: Called after the timeout and then after each poll that finds nothing; the
            iterator ends when it returns True. A last step that was saved before that is still
            yielded.
        step_prefix: As in `CheckpointManagerOptions`, like the two below.
        step_format_fixed_length: Least number of digits in step names.
        step_name_format: How steps are named; replaces the two above.
        snapshot_dir: Not supported, see `wait_for_new_checkpoint`.
        set_immutable: Not supported.
        ignore_snapshot_errors: Ignored.

    Raises:
        ValueError: A snapshot is requested.
        StorageError: The run's directory cannot be read.
    """
    _check_no_snapshots(snapshot_dir, set_immutable)
    names = step_name_format or StepNameFormat(step_prefix, step_format_fixed_length)
    waiting = _Waiting(
        resolve_path(checkpoint_dir), names, seconds_to_sleep, timeout, timeout_fn, _clock
    )
    return waiting.steps(min_interval_secs)


@dataclass(frozen=True, slots=True)
class _Waiting:
    root: Path
    names: StepNames
    seconds_to_sleep: float
    timeout_s: float | None
    timeout_fn: Callable[[], bool] | None
    clock: Clock

    def steps(self, min_interval_s: float) -> Generator[int]:
        step = TIMED_OUT
        while (step := self.wait(step + 1)) != TIMED_OUT:
            yielded = self.clock.monotonic()
            yield step
            rest = yielded + min_interval_s - self.clock.monotonic()
            if rest > 0:
                self.clock.sleep(rest)

    def wait(self, least: int) -> int:
        """Return the latest step if it is at least `least`, else `TIMED_OUT`."""
        _logger.debug("Waiting for step %d or later in %s", least, self.root)
        end = None if self.timeout_s is None else self.clock.monotonic() + self.timeout_s
        while (step := self._latest(least)) is None:
            left = None if end is None else end - self.clock.monotonic()
            if left is None or left > 0:
                # capped so that the wait uses the whole timeout
                self.clock.sleep(min(self.seconds_to_sleep, left or self.seconds_to_sleep))
            elif self.timeout_fn is None:
                return TIMED_OUT
            elif self.timeout_fn():
                # a save may have committed between the poll and the call
                step = self._latest(least)
                return TIMED_OUT if step is None else step
            else:
                self.clock.sleep(self.seconds_to_sleep)
        return step

    def _latest(self, least: int) -> int | None:
        record = latest_step(self.root, self.names)
        return None if record is None or record.step < least else record.step


def _check_no_snapshots(snapshot_dir: PathLike | None, set_immutable: bool | None) -> None:
    if snapshot_dir is not None or set_immutable:
        raise ValueError(
            f"snapshot_dir={snapshot_dir!r}, set_immutable={set_immutable!r}: snapshots are not "
            "supported. Leave both out, and let the run keep enough steps that none is deleted "
            "while it is used."
        )

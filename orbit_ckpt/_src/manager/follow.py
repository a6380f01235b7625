"""Follow a run from another process: wait for its checkpoints."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orbit_ckpt._src.manager.snapshots import Snapshots
from orbit_ckpt._src.manager.step_names import StepNameFormat
from orbit_ckpt._src.manager.steps import StepNames, StepPath, as_step, latest_step
from orbit_ckpt._src.runtime.checks import check_callable, check_number
from orbit_ckpt._src.storage.path import PathLike, resolve_local, resolve_path
from orbit_ckpt._src.text import warn_set

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
    ignore_snapshot_errors: bool | None = True,
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
        snapshot_dir: Where to keep a copy of the step while the context lasts, at
            `get_snapshot_dir_from_step_dir(path, snapshot_dir)`, in case the run deletes the step.
            Files are linked where possible. Both directories must be local.
        set_immutable: Ignored.
        ignore_snapshot_errors: Whether to continue without a copy if the step is deleted before it
            has been copied.

    Raises:
        StorageError: The run's directory cannot be read, or the copy cannot be written.
    """
    snapshots = _snapshots(
        "wait_for_new_checkpoint", snapshot_dir, set_immutable, ignore_snapshot_errors
    )
    check_number("seconds_to_sleep", seconds_to_sleep, can_be_zero=True)
    if timeout is not None:
        check_number("timeout", timeout, can_be_zero=True)
    check_callable("timeout_fn", timeout_fn, "Give one that says whether to stop waiting.")
    names = step_name_format or StepNameFormat(step_prefix, step_format_fixed_length)
    waiting = _Waiting(
        resolve_path(checkpoint_dir), names, seconds_to_sleep, timeout, timeout_fn, _clock
    )
    found = waiting.wait(0 if until_step is None else as_step(until_step))
    if found is None:
        yield TIMED_OUT
        return
    with snapshots.hold(found.path):
        yield found.step


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
    ignore_snapshot_errors: bool | None = True,
    _clock: Clock = time,
) -> Generator[int]:
    """Yield the steps of a run as they are saved, from another process.

    Each poll yields the latest step if it is newer than the previous one; steps saved in between
    are skipped. The run may delete a step after it has been yielded; `snapshot_dir` keeps
    a copy.

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
        snapshot_dir: Where to keep a copy of the step until the next one is requested; this and the
            next two work as in `wait_for_new_checkpoint`.
        set_immutable: Ignored.
        ignore_snapshot_errors: Whether to continue without a copy of a deleted step.

    Raises:
        StorageError: The run's directory cannot be read, or the copy cannot be written.
    """
    snapshots = _snapshots(
        "checkpoints_iterator", snapshot_dir, set_immutable, ignore_snapshot_errors
    )
    names = step_name_format or StepNameFormat(step_prefix, step_format_fixed_length)
    waiting = _Waiting(
        resolve_path(checkpoint_dir), names, seconds_to_sleep, timeout, timeout_fn, _clock
    )
    return waiting.steps(min_interval_secs, snapshots)


@dataclass(frozen=True, slots=True)
class _Waiting:
    root: Path
    names: StepNames
    seconds_to_sleep: float
    timeout_s: float | None
    timeout_fn: Callable[[], bool] | None
    clock: Clock

    def steps(self, min_interval_s: float, snapshots: Snapshots) -> Generator[int]:
        least = 0
        while (found := self.wait(least)) is not None:
            with snapshots.hold(found.path):
                yielded = self.clock.monotonic()
                yield found.step
            least = found.step + 1
            rest = yielded + min_interval_s - self.clock.monotonic()
            if rest > 0:
                self.clock.sleep(rest)

    def wait(self, least: int) -> StepPath | None:
        """Return the latest step if it is at least `least`, None after the timeout."""
        _logger.debug("Waiting for step %d or later in %s", least, self.root)
        end = None if self.timeout_s is None else self.clock.monotonic() + self.timeout_s
        while (found := self._latest(least)) is None:
            left = None if end is None else end - self.clock.monotonic()
            if left is None or left > 0:
                # capped so that the wait uses the whole timeout
                self.clock.sleep(min(self.seconds_to_sleep, left or self.seconds_to_sleep))
            elif self.timeout_fn is None:
                return None
            elif self.timeout_fn():
                return self._latest(least)  # a save may have committed since the poll
            else:
                self.clock.sleep(self.seconds_to_sleep)
        return found

    def _latest(self, least: int) -> StepPath | None:
        record = latest_step(self.root, self.names)
        return None if record is None or record.step < least else record


def _snapshots(
    owner: str,
    directory: PathLike | None,
    set_immutable: bool | None,
    ignore_errors: bool | None,
) -> Snapshots:
    why = "files of snapshots are never changed"
    warn_set(owner, {"set_immutable": (set_immutable, False, why)})
    return Snapshots(None if directory is None else resolve_local(directory), bool(ignore_errors))

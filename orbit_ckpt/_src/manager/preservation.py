"""Policies that decide which steps to keep.

A policy receives all steps, ascending, and returns for each whether to keep it; steps that no
policy keeps are deleted. Policies written for Orbax work too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct, field

from orbit_ckpt._src.manager.step_info import MetricFn, StepInfo, rank
from orbit_ckpt._src.runtime.checks import (
    check_callable,
    check_duration,
    check_flag_fields,
    check_int,
    check_number,
    check_steps,
)

_GIVE_METRIC = "Give a function of the metrics, such as lambda metrics: metrics['loss']."
GIVE_POLICY = "Give LatestN(3), for example."


class PreservationContext(Struct, frozen=True, kw_only=True):
    """What policies know besides the steps.

    Attributes:
        now: The time, with a time zone.
    """

    now: datetime = field(default_factory=lambda: datetime.now(tz=UTC))


@runtime_checkable
class PreservationPolicy(Protocol):
    """Decides which steps to keep."""

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return for each step, ascending, whether to keep it."""
        ...


class PreserveAll(Struct, frozen=True):
    """Keep every step."""

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for all."""
        del context
        return [True] * len(checkpoints)


class LatestN(Struct, frozen=True):
    """Keep the newest steps.

    Attributes:
        n: How many, None for all.
    """

    n: int | None = None

    def __post_init__(self) -> None:
        check_int("LatestN.n", self.n, least=0, optional=True)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for the last `n`."""
        del context
        dropped = 0 if self.n is None else max(0, len(checkpoints) - self.n)
        return [i >= dropped for i in range(len(checkpoints))]


class LatestDuration(Struct, frozen=True):
    """Keep the steps younger than a duration.

    Attributes:
        duration: The largest age.
    """

    duration: timedelta

    def __post_init__(self) -> None:
        check_duration("LatestDuration.duration", self.duration)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True from the first step that is young enough on."""
        old = [context.now - info.time > self.duration for info in checkpoints]
        first = old.index(False) if False in old else len(old)
        return [i >= first for i in range(len(old))]


class EveryNSeconds(Struct, frozen=True):
    """Keep steps some time apart, starting with the first.

    Attributes:
        interval_secs: Least seconds between two.
    """

    interval_secs: float

    def __post_init__(self) -> None:
        check_number("EveryNSeconds.interval_secs", self.interval_secs, can_be_zero=True)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for each step at least that long after the last one kept."""
        del context
        interval = timedelta(seconds=self.interval_secs)
        return _spaced([info.time for info in checkpoints], lambda a, b: b - a >= interval)


class EveryNSteps(Struct, frozen=True):
    """Keep the multiples of an interval.

    Attributes:
        interval_steps: The interval.
        exact_interval: Whether to keep multiples only; otherwise keep the first step and each that
            is at least the interval after the last one kept.
        max_to_keep: Keep at most this many, the newest; None for all.
    """

    interval_steps: int
    exact_interval: bool = True
    max_to_keep: int | None = None

    def __post_init__(self) -> None:
        check_int("EveryNSteps.interval_steps", self.interval_steps, least=1)
        check_flag_fields(self, "exact_interval")
        check_int("EveryNSteps.max_to_keep", self.max_to_keep, least=0, optional=True)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for the steps to keep."""
        del context
        steps = [info.step for info in checkpoints]
        if self.exact_interval:
            kept = [step % self.interval_steps == 0 for step in steps]
        else:
            kept = _spaced(steps, lambda a, b: b - a >= self.interval_steps)
        return _newest(kept, self.max_to_keep)


class EveryNStepsClosest(Struct, frozen=True):
    """Keep the step next to each multiple of an interval, and the last one.

    Attributes:
        interval_steps: The interval.
        max_to_keep: Keep at most this many, the newest; None for all.
    """

    interval_steps: int
    max_to_keep: int | None = None

    def __post_init__(self) -> None:
        check_int("EveryNStepsClosest.interval_steps", self.interval_steps, least=1)
        check_int("EveryNStepsClosest.max_to_keep", self.max_to_keep, least=0, optional=True)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for the steps to keep; the later one wins a tie."""
        del context
        nearest: dict[int, tuple[int, int]] = {}
        for i, info in enumerate(checkpoints):
            multiple = round(info.step / self.interval_steps)
            distance = abs(info.step - multiple * self.interval_steps)
            if multiple not in nearest or distance <= nearest[multiple][0]:
                nearest[multiple] = (distance, i)
        kept = {i for _, i in nearest.values()} | {len(checkpoints) - 1}
        return _newest([i in kept for i in range(len(checkpoints))], self.max_to_keep)


class CustomSteps(Struct, frozen=True):
    """Keep given steps.

    Attributes:
        steps: Their numbers.
    """

    steps: Collection[int]

    def __post_init__(self) -> None:
        check_steps("CustomSteps.steps", self.steps)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for the given steps."""
        del context
        return [info.step in self.steps for info in checkpoints]


class BestN(Struct, frozen=True, kw_only=True):
    """Keep the steps with the best metric.

    Attributes:
        get_metric_fn: Returns the value to rank by.
        reverse: Whether the lowest is the best.
        n: How many, None for all.
        keep_checkpoints_without_metrics: Whether to keep steps without metrics too.
    """

    get_metric_fn: MetricFn
    reverse: bool = False
    n: int | None = None
    keep_checkpoints_without_metrics: bool = True

    def __post_init__(self) -> None:
        check_int("BestN.n", self.n, least=0, optional=True)
        check_callable("BestN.get_metric_fn", self.get_metric_fn, _GIVE_METRIC)
        check_flag_fields(self, "reverse", "keep_checkpoints_without_metrics")

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for the best steps; ties are broken as in Orbax."""
        del context
        if self.n is None or len(checkpoints) <= self.n:
            return [True] * len(checkpoints)
        if self.n == 0:
            return [False] * len(checkpoints)
        ranked = rank(checkpoints, self.get_metric_fn, "min" if self.reverse else "max")
        best = {*[i for i in ranked if checkpoints[i].metrics is not None][-self.n :]}
        without = self.keep_checkpoints_without_metrics
        return [
            i in best or (without and info.metrics is None) for i, info in enumerate(checkpoints)
        ]


class SaveBest(Struct, frozen=True, kw_only=True):
    """Keep the newest step and the best of the others, as T5X does.

    Attributes:
        get_metric_fn: Returns the value to rank by.
        n: How many besides the newest.
        mode: Whether the highest ("max") or the lowest ("min") is the best.
        keep_checkpoints_without_metrics: Whether to keep steps without metrics too; otherwise they
            rank below all others, the oldest lowest.
    """

    get_metric_fn: MetricFn
    n: int
    mode: Literal["max", "min"] = "max"
    keep_checkpoints_without_metrics: bool = True

    def __post_init__(self) -> None:
        _check_mode(self.mode)
        check_callable("SaveBest.get_metric_fn", self.get_metric_fn, _GIVE_METRIC)
        check_flag_fields(self, "keep_checkpoints_without_metrics")
        check_int("SaveBest.n", self.n, least=0)

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for the steps to keep."""
        del context
        others = checkpoints[:-1]
        is_unlimited = self.keep_checkpoints_without_metrics
        pool = [
            i
            for i in rank(others, self.get_metric_fn, self.mode)
            if others[i].metrics is not None or not is_unlimited
        ]
        dropped = set(pool[: max(0, len(pool) - self.n)])
        return [i not in dropped for i in range(len(checkpoints))]


class Pinned(Struct, frozen=True):
    """Keep pinned steps."""

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for pinned steps."""
        del context
        return [info.pinned for info in checkpoints]


class Foreign(Struct, frozen=True):
    """Keep steps that another program wrote; only `CheckpointManager.delete` deletes them."""

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for another program's steps."""
        del context
        return [info.foreign for info in checkpoints]


class LatestTemporary(Struct, frozen=True):
    """Keep the newest step if it is temporary."""

    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        """Return True for the last step if it is temporary."""
        del context
        kept = [False] * len(checkpoints)
        if checkpoints:
            kept[-1] = checkpoints[-1].temporary
        return kept


def _spaced(values: Sequence[Any], is_apart: Callable[[Any, Any], bool]) -> list[bool]:
    kept: list[bool] = []
    last: Any = None
    for i, value in enumerate(values):
        kept.append(i == 0 or is_apart(last, value))
        last = value if kept[-1] else last
    return kept


def _newest(kept: list[bool], count: int | None) -> list[bool]:
    if count is None:
        return kept
    dropped = sum(kept) - count
    seen = 0
    for i, keep in enumerate(kept):
        seen += keep
        kept[i] = keep and seen > dropped
    return kept


def _check_mode(mode: str) -> None:
    if mode not in ("max", "min"):
        raise ValueError(f"Unsupported `metric_mode`: {mode}; use 'max' or 'min'")

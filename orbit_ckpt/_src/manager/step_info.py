"""A step as policies see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

MetricFn = Callable[[Any], float]
"""Takes the metrics of a step, as they were given to `save`; returns what to rank it by."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step of a run, saved or about to be; Orbax's `PolicyCheckpointInfo`.

    Attributes:
        step: Its number.
        time: When it was committed, with a time zone; the current time if it is not.
        metrics: Its metrics, None if it has none.
        pinned: Whether it must not be deleted.
        temporary: Whether it is kept only until the next step is durable.
        items: Names of its items.
        foreign: Whether another program wrote it; policies do not delete it.
    """

    step: int
    time: datetime
    metrics: Mapping[str, object] | None = None
    pinned: bool = False
    temporary: bool = False
    items: frozenset[str] = field(default=frozenset())
    foreign: bool = False


def rank(checkpoints: Sequence[StepInfo], metric: MetricFn, mode: str) -> list[int]:
    """Return indices of steps, the worst first.

    A step without metrics, or whose metric is not a number, ranks lowest. Ties keep the order of
    the steps.
    """
    sign = -1.0 if mode == "min" else 1.0

    def quality(index: int) -> float:
        metrics = checkpoints[index].metrics
        value = math.nan if metrics is None else sign * float(metric(metrics))
        return -math.inf if math.isnan(value) else value

    return sorted(range(len(checkpoints)), key=quality)

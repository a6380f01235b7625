"""What policies know about a step."""

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
    """One step of a run, saved or about to be; what Orbax calls `PolicyCheckpointInfo`.

    Attributes:
        step: Its number.
        time: When it was committed, with a time zone; for a step that is not, the time now.
        metrics: What was measured of it, None if nothing was.
        pinned: Whether it must not be deleted.
        temporary: Whether it is there only until the next step is durable.
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

    Without metrics, or with one that is not a number, a step ranks lowest. Equal ones are in the
    order of their steps.
    """
    sign = -1.0 if mode == "min" else 1.0

    def quality(index: int) -> float:
        metrics = checkpoints[index].metrics
        value = math.nan if metrics is None else sign * float(metric(metrics))
        return -math.inf if math.isnan(value) else value

    return sorted(range(len(checkpoints)), key=quality)

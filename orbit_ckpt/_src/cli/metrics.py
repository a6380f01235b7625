"""Metrics of steps: their names, and which step is the best."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from orbit_ckpt._src.manager.step_info import StepInfo

LOWER_IS_BETTER = frozenset(
    {
        *("loss", "losses", "error", "errors", "err", "cost", "nll", "ce", "xent", "kl"),
        *("perplexity", "ppl", "bpb", "bpc", "mse", "rmse", "mae", "mape", "wer", "cer", "fid"),
    }
)
"""Words in the names of metrics of which the lowest is the best: `eval/loss`, `val_ppl`."""

_WORDS = re.compile(r"[a-z]+")


def is_lower_better(metric: str) -> bool:
    """Return whether the lowest value of a metric is the best, judged by its name."""
    return not LOWER_IS_BETTER.isdisjoint(_WORDS.findall(metric.lower()))


def metric_names(steps: Sequence[StepInfo]) -> list[str]:
    """Return the names of all metrics, in the order in which steps have them."""
    return list(dict.fromkeys(name for info in steps for name in info.metrics or ()))


def metric_value(info: StepInfo, metric: str) -> float:
    """Return a metric of a step, NaN if it has none or if it is not a number."""
    found = (info.metrics or {}).get(metric)
    return float(found) if isinstance(found, int | float) else math.nan


def has_nan(info: StepInfo) -> bool:
    """Return whether a metric of a step is NaN."""
    return any(isinstance(v, float) and math.isnan(v) for v in (info.metrics or {}).values())


def best_step(steps: Sequence[StepInfo], metric: str, *, lowest: bool) -> StepInfo | None:
    """Return the step with the best metric, the newest of several; None without a number."""
    known = [info for info in steps if not math.isnan(metric_value(info, metric))]
    sign = -1 if lowest else 1
    return max(known, key=lambda i: (sign * metric_value(i, metric), i.step), default=None)

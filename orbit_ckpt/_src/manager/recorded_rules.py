"""Retention rules as steps record them: in words, and so that they can be applied again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TypeAlias

import msgspec
from typing_extensions import override

from orbit_ckpt._src.manager.combined_preservation import (
    AllPreservationPolicy,
    AnyPreservationPolicy,
    InTurn,
    is_unlimited,
)
from orbit_ckpt._src.manager.preservation import (
    BestN,
    CustomSteps,
    EveryNSeconds,
    EveryNSteps,
    EveryNStepsClosest,
    Foreign,
    LatestDuration,
    LatestN,
    LatestTemporary,
    Pinned,
    PreservationPolicy,
    PreserveAll,
    SaveBest,
)
from orbit_ckpt._src.manager.retention import RetentionRules
from orbit_ckpt._src.manager.step_info import MetricFn
from orbit_ckpt._src.metadata.step_details import RecordedRule

_APPLICABLE: Mapping[str, type[PreservationPolicy]] = {
    kind.__name__: kind
    for kind in (LatestN, LatestDuration, EveryNSeconds, EveryNSteps, EveryNStepsClosest)
}

Metrics: TypeAlias = Mapping[str, object] | None


def record_rules(rules: RetentionRules, metrics: Metrics = None) -> Sequence[RecordedRule]:
    """Return the records of the rules of a manager; none if it keeps every step.

    Args:
        rules: The rules.
        metrics: The metrics of a step, with which a function that ranks steps is asked what it
            ranks by.
    """
    if is_unlimited(rules.policy):
        return ()
    return [_record(part, metrics) for part in _parts(rules.policy)]


def apply_again(rule: RecordedRule) -> PreservationPolicy | None:
    """Return the policy of a record; None if it is known in words only."""
    fields = dict(rule.fields)
    try:
        if rule.policy == BestN.__name__:
            rank = by_metric(str(fields.pop("metric")))
            best = msgspec.convert(fields, _BestFields)
            without = best.keep_checkpoints_without_metrics
            return BestN(
                get_metric_fn=rank,
                reverse=best.reverse,
                n=best.n,
                keep_checkpoints_without_metrics=without,
            )
        kind = _APPLICABLE.get(rule.policy)
        return None if kind is None else msgspec.convert(fields, kind)
    except (KeyError, TypeError, ValueError):  # of another release
        return None


def by_metric(name: str) -> MetricFn:
    """Return a function that ranks steps by a metric; steps without a number have NaN."""

    def value(metrics: Mapping[str, object]) -> float:
        found = metrics.get(name)
        return float(found) if isinstance(found, int | float) else float("nan")

    return value


def describe(policy: PreservationPolicy, metrics: Metrics = None) -> str:
    """Return a policy in words, such as "last 3" or "best 1 by loss"."""
    match policy:
        case LatestN(n=int()):
            return f"last {policy.n}"
        case LatestDuration():
            return f"younger than {_age(policy.duration)}"
        case EveryNSeconds() | EveryNSteps() | EveryNStepsClosest():
            return _describe_interval(policy)
        case BestN() | SaveBest():
            metric = _metric_of(policy.get_metric_fn, metrics)
            count = "all with a metric" if policy.n is None else f"best {policy.n}"
            return count if metric is None else f"{count} by {metric}"
        case AllPreservationPolicy() | AnyPreservationPolicy() | InTurn():
            parts = [describe(part, metrics) for part in policy.policies]
            return _BETWEEN[type(policy)].join(parts)
        case _:
            name = type(policy).__name__
            return _NAMES.get(type(policy)) or f"policy {name}"


def _describe_interval(policy: EveryNSeconds | EveryNSteps | EveryNStepsClosest) -> str:
    if isinstance(policy, EveryNSeconds):
        return f"every {_age(timedelta(seconds=policy.interval_secs))}"
    most = "" if policy.max_to_keep is None else f", at most {policy.max_to_keep}"
    closest = "closest to " if isinstance(policy, EveryNStepsClosest) else ""
    return f"{closest}every {policy.interval_steps}{most}"


_NAMES: Mapping[type, str] = {
    LatestN: "all",
    PreserveAll: "all",
    CustomSteps: "listed step",
    Pinned: "pinned",
    Foreign: "another program's",
    LatestTemporary: "temporary",
}
_BETWEEN: Mapping[type, str] = {
    AllPreservationPolicy: " and ",
    AnyPreservationPolicy: " or ",
    InTurn: ", then ",
}


class _BestFields(msgspec.Struct):
    reverse: bool
    n: int | None
    keep_checkpoints_without_metrics: bool


def _parts(policy: PreservationPolicy) -> Iterator[PreservationPolicy]:
    if not isinstance(policy, AnyPreservationPolicy):
        yield policy
        return
    for part in policy.policies:
        yield from _parts(part)


def _record(policy: PreservationPolicy, metrics: Metrics) -> RecordedRule:
    text, name = describe(policy, metrics), type(policy).__name__
    if isinstance(policy, BestN):
        metric = _metric_of(policy.get_metric_fn, metrics)
        if metric is None:
            return RecordedRule(text)
        fields = {f: getattr(policy, f) for f in _BestFields.__struct_fields__}
        return RecordedRule(text, name, {"metric": metric, **fields})
    if _APPLICABLE.get(name) is not type(policy):
        return RecordedRule(text)
    return RecordedRule(text, name, msgspec.to_builtins(policy))


class _Asked(dict[str, object]):
    """Metrics that remember which of them was read."""

    def __init__(self, metrics: Mapping[str, object]) -> None:
        super().__init__(metrics)
        self.names: set[str] = set()

    @override
    def __getitem__(self, key: str) -> object:
        self.names.add(key)
        return super().__getitem__(key)

    @override
    def get(self, key: str, default: object = None) -> object:
        self.names.add(key)
        return super().get(key, default)


def _metric_of(rank: MetricFn, metrics: Metrics) -> str | None:
    """Return the metric that a function ranks by; None if that is not a metric as it stands."""
    if not metrics:
        return None
    asked = _Asked(metrics)
    try:
        value = rank(asked)
    except Exception:  # noqa: BLE001 - a user's function; ranking itself reports the error
        return None
    (name,) = asked.names if len(asked.names) == 1 else (None,)
    return name if name is not None and metrics.get(name) == value else None


def _age(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"

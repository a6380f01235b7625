"""The retention options of commands, and the rules that keep the steps of a run."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from orbit_ckpt._src.cli.metrics import is_lower_better
from orbit_ckpt._src.cli.runs import ListedStep
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.manager.combined_preservation import AnyPreservationPolicy
from orbit_ckpt._src.manager.plugin_policies import find_policy
from orbit_ckpt._src.manager.preservation import (
    BestN,
    EveryNSteps,
    LatestN,
    PreservationContext,
    PreservationPolicy,
)
from orbit_ckpt._src.manager.recorded_rules import apply_again, by_metric, describe
from orbit_ckpt._src.manager.retention import RetentionRules
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.metadata.step_details import RecordedRule, read_rules
from orbit_ckpt._src.storage.layout import RETENTION


class Keeping(Struct, frozen=True):
    """The retention options of a command.

    Attributes:
        last: Number of newest steps to keep.
        every: Keep multiples of this number.
        best: Number of best steps to keep.
        metric: The metric to rank by.
        lowest: Whether the lowest is the best; None to judge by the metric's name.
        policy: Name of a preservation policy of a plug-in.
    """

    last: int | None = None
    every: int | None = None
    best: int | None = None
    metric: str | None = None
    lowest: bool | None = None
    policy: str | None = None

    def __post_init__(self) -> None:
        if (self.best is None) != (self.metric is None):
            raise ValueError("--keep-best and --metric are given together or not at all.")

    @property
    def is_given(self) -> bool:
        """Whether any rule is given."""
        return any(n is not None for n in (self.last, self.every, self.best, self.policy))

    def rules(self, steps: Sequence[StepInfo]) -> dict[int, list[str]]:
        """Return for each step the rules that keep it, as text; none if it is deleted.

        Raises:
            ValueError: No step has the metric.
        """
        return _explain(steps, self._policies(steps))

    def _policies(self, steps: Sequence[StepInfo]) -> list[tuple[PreservationPolicy, str]]:
        found: list[tuple[PreservationPolicy, str]] = []
        if self.last is not None:
            found.append((LatestN(self.last), f"last {self.last}"))
        if self.every is not None:
            found.append((EveryNSteps(self.every), f"every {self.every}"))
        if self.best is not None and self.metric is not None:
            found.append((self._best(steps, self.metric), f"best {self.best} by {self.metric}"))
        if self.policy is not None:
            found.append((_preservation_policy(self.policy), f"policy {self.policy}"))
        return found

    def _best(self, steps: Sequence[StepInfo], metric: str) -> PreservationPolicy:
        known = {name for info in steps for name in info.metrics or ()}
        if steps and metric not in known:
            raise ValueError(
                f"No step has a metric {metric!r}; there are {', '.join(sorted(known)) or 'none'}."
            )

        lowest = is_lower_better(metric) if self.lowest is None else self.lowest
        return BestN(get_metric_fn=by_metric(metric), reverse=lowest, n=self.best)


def _preservation_policy(name: str) -> PreservationPolicy:
    found = find_policy(name)
    if not isinstance(found, PreservationPolicy):
        raise ValueError(
            f"The policy {name!r} decides when to save, not what to keep. Give one that has "
            "should_preserve(); `orbit-ckpt plugins` lists the installed ones."
        )
    return found


def _explain(
    steps: Sequence[StepInfo], policies: Sequence[tuple[PreservationPolicy, str]]
) -> dict[int, list[str]]:
    """Return for each step the texts of the policies that keep it."""
    rules = RetentionRules(AnyPreservationPolicy([policy for policy, _ in policies]))
    plan = rules.plan(steps, PreservationContext())
    texts = {id(policy): text for policy, text in policies}

    def text_of(rule: PreservationPolicy) -> str:
        # the rules keep the newest step in any case
        return texts.get(id(rule)) or ("newest" if rule == LatestN(1) else describe(rule))

    return {step.step: list(dict.fromkeys(map(text_of, step.rules))) for step in plan.steps}


def kept_by(entries: Sequence[ListedStep], keeping: Keeping) -> dict[int, list[str]] | None:
    """Return for each step of a run the rules that keep it, as text; None if no rules are known.

    Args:
        entries: The steps, ascending.
        keeping: The rules to apply; if it has none, those which the newest step recorded.
    """
    infos = [entry.info for entry in entries]
    if keeping.is_given:
        return keeping.rules(infos)
    recorded = _recorded_rules(entries)
    if not recorded:
        return None
    policies = [(policy, rule.text) for rule in recorded if (policy := apply_again(rule))]
    in_words = [rule.text for rule in recorded if apply_again(rule) is None]
    found = _explain(infos, policies)
    return {step: reasons or in_words for step, reasons in found.items()}


def _recorded_rules(entries: Sequence[ListedStep]) -> Sequence[RecordedRule]:
    newest = entries[-1] if entries else None
    if newest is None or newest.info.foreign:
        return ()
    if newest.entries and not any(entry.name == RETENTION for entry in newest.entries):
        return ()
    try:
        return read_rules(newest.path)
    except (CheckpointError, OSError):  # `verify` reports damage
        return ()

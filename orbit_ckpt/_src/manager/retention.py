"""Which steps and items are kept or deleted, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from orbit_ckpt._src.drawing import Drawing, Table
from orbit_ckpt._src.manager.combined_preservation import (
    AmongPermanent,
    AnyPreservationPolicy,
    explain,
    is_unlimited,
)
from orbit_ckpt._src.manager.preservation import (
    CustomSteps,
    Foreign,
    LatestN,
    LatestTemporary,
    Pinned,
    PreservationContext,
    PreservationPolicy,
)
from orbit_ckpt._src.manager.step_info import StepInfo


class StepRetention(Struct, frozen=True, gc=False):
    """The fate of one step.

    Attributes:
        step: Its number.
        rules: The policies that keep it; empty if it is deleted.
        dropped_items: Its items that are deleted although the step is kept.
    """

    step: int
    rules: tuple[PreservationPolicy, ...]
    dropped_items: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether the step is kept."""
        return bool(self.rules)

    def __str__(self) -> str:
        if not self.kept:
            return f"step {self.step}: deleted"
        dropped = f", without {', '.join(self.dropped_items)}" if self.dropped_items else ""
        return f"step {self.step}: kept by {reasons(self)}{dropped}"


def reasons(step: StepRetention) -> str:
    """Return the policies that keep a step, each once."""
    return ", ".join(dict.fromkeys(map(str, step.rules)))


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """The fate of every step; printing it explains it.

    Attributes:
        steps: In ascending order.
    """

    steps: tuple[StepRetention, ...]

    @property
    def kept(self) -> list[int]:
        """The steps kept, ascending."""
        return [step.step for step in self.steps if step.kept]

    @property
    def deleted(self) -> list[int]:
        """The steps deleted, ascending."""
        return [step.step for step in self.steps if not step.kept]

    def _draw(self) -> Drawing:
        """Return the rules that keep each step, newest first."""
        rows = [
            (
                str(step.step),
                reasons(step) if step.kept else "none, deleted",
                ", ".join(step.dropped_items),
            )
            for step in reversed(self.steps)
        ]
        title = f"{type(self).__name__}: {len(self.kept)} kept, {len(self.deleted)} deleted"
        header = ("step", "kept by", "without items")
        return Drawing(title, [Table(header, rows, ["step"], what="older steps")] if rows else [])

    def __repr__(self) -> str:
        return self._draw().text()

    def _repr_html_(self) -> str:
        return self._draw().html()

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """The rules that decide which steps and items to keep.

    Pinned steps and steps that another program wrote are kept regardless of the policy. It does not
    see temporary steps; each is kept until a newer step exists.

    Attributes:
        policy: Decides which steps to keep.
        keep_latest: Whether to keep the newest step regardless of the policy.
        items: By item name, the policy for the steps that keep the item; other items are always
            kept.
    """

    policy: PreservationPolicy
    keep_latest: bool = True
    items: Mapping[str, PreservationPolicy] = field(default_factory=dict[str, PreservationPolicy])
    steps: Collection[int] = ()

    def plan(
        self,
        steps: Sequence[StepInfo],
        context: PreservationContext,
        *,
        just_saved: int | None = None,
    ) -> RetentionPlan:
        """Decide about steps, given in ascending order.

        Args:
            steps: The steps.
            context: What else policies know.
            just_saved: A step to keep for now; its number need not be the highest, since training
                may have been rolled back.

        Raises:
            ValueError: A policy does not answer for every step.
        """
        saved = [] if just_saved is None or not self.keep_latest else [CustomSteps([just_saved])]
        policy = AnyPreservationPolicy([*self._guarded(AmongPermanent(self.policy)), *saved])
        rules = explain(policy, steps, context=context)
        staying = [info for info, kept in zip(steps, rules, strict=True) if kept]
        dropped: defaultdict[int, list[str]] = defaultdict(list)
        for item, policy in self.items.items():
            having = [info for info in staying if item in info.items]
            guarded = AnyPreservationPolicy(self._guarded(policy))
            answers = explain(guarded, having, context=context)
            for info, kept in zip(having, answers, strict=True):
                if not kept:
                    dropped[info.step].append(item)
        plan = [StepRetention(info.step, kept) for info, kept in zip(steps, rules, strict=True)]
        for i, step in enumerate(plan) if dropped else ():
            if step.step in dropped:
                plan[i] = StepRetention(step.step, step.rules, tuple(dropped[step.step]))
        return RetentionPlan(tuple(plan))

    def _guarded(self, policy: PreservationPolicy) -> list[PreservationPolicy]:
        newest = [LatestN(1)] if self.keep_latest else []
        kept = [CustomSteps(self.steps)] if self.steps else []
        return [policy, Pinned(), Foreign(), LatestTemporary(), *newest, *kept]


def keeps_all(rules: RetentionRules, steps: Sequence[StepInfo]) -> bool:
    """Return True if all steps and items are certainly kept; False if only a plan can tell.

    Every save needs this, and it is much faster than a plan.
    """
    is_certain = is_unlimited(rules.policy) and not rules.items
    return is_certain and not any(info.temporary for info in steps)

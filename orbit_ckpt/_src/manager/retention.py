"""Which steps, and which items of them, go and which stay, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from orbit_ckpt._src.manager.preservation import (
    AmongPermanent,
    AnyPreservationPolicy,
    CustomSteps,
    Foreign,
    LatestN,
    LatestTemporary,
    Pinned,
    PreservationContext,
    PreservationPolicy,
    explain,
    is_unlimited,
)
from orbit_ckpt._src.manager.step_info import StepInfo


class StepRetention(Struct, frozen=True, gc=False):
    """What happens to one step.

    Attributes:
        step: Its number.
        rules: The policies that want it kept; none if it goes.
        dropped_items: Items of it that go although it stays.
    """

    step: int
    rules: tuple[PreservationPolicy, ...]
    dropped_items: tuple[str, ...] = ()

    @property
    def kept(self) -> bool:
        """Whether the step stays."""
        return bool(self.rules)

    def __str__(self) -> str:
        if not self.kept:
            return f"step {self.step}: deleted"
        dropped = f", without {', '.join(self.dropped_items)}" if self.dropped_items else ""
        return f"step {self.step}: kept by {', '.join(map(str, self.rules))}{dropped}"


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What happens to every step; printing it explains it.

    Attributes:
        steps: In ascending order.
    """

    steps: tuple[StepRetention, ...]

    @property
    def kept(self) -> list[int]:
        """The steps that stay."""
        return [step.step for step in self.steps if step.kept]

    @property
    def deleted(self) -> list[int]:
        """The steps that go."""
        return [step.step for step in self.steps if not step.kept]

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))


@dataclass(frozen=True, slots=True)
class RetentionRules:
    """What to keep.

    Pinned steps, and those that another program wrote, are kept whatever the policy says. Temporary
    ones are not shown to it; each is kept until there is a newer step.

    Attributes:
        policy: Which steps.
        keep_latest: Whether the newest step is kept whatever the policy says.
        items: In which of these steps an item is kept, by its name; others keep all items.
    """

    policy: PreservationPolicy
    keep_latest: bool = True
    items: Mapping[str, PreservationPolicy] = field(default_factory=dict[str, PreservationPolicy])

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
            just_saved: A step that is kept for now: its training may have gone back, so that its
                number is not the highest.

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
        return [policy, Pinned(), Foreign(), LatestTemporary(), *newest]


def keeps_all(rules: RetentionRules, steps: Sequence[StepInfo]) -> bool:
    """Whether all steps and items stay; much faster than a plan, which every save needs.

    False if only a plan can tell.
    """
    is_certain = is_unlimited(rules.policy) and not rules.items
    return is_certain and not any(info.temporary for info in steps)

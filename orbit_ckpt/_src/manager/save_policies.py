"""Policies that decide when to save.

A policy is called at every step with the steps saved so far. Policies written for Orbax work too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Protocol, runtime_checkable

from msgspec import Struct

from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt._src.runtime.checks import (
    check_callable,
    check_duration,
    check_elements,
    check_int,
    check_methods,
    check_number,
)


class DecisionContext(Struct, frozen=True, kw_only=True):
    """What policies know besides the steps.

    Attributes:
        is_saving_in_progress: Whether a background save is in progress.
        reached_preemption: Whether this job is about to be stopped.
        multiprocessing_options: How the processes of the run save together, for policies of users.
        started: When the run started: the manager was made, or called for step 0. None if unknown.
        blocked: How long the last save blocked its caller, None if there was none.
    """

    is_saving_in_progress: bool = False
    reached_preemption: bool = False
    multiprocessing_options: object = None
    started: datetime | None = None
    blocked: timedelta | None = None


@runtime_checkable
class SaveDecisionPolicy(Protocol):
    """Decides at which steps to save."""

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether to save.

        Args:
            step: The current step of the training.
            previous_steps: Steps saved or being saved, ascending.
            context: What else is known.
        """
        ...


class FixedIntervalPolicy(Struct, frozen=True):
    """Save at every multiple of an interval.

    Attributes:
        interval: Number of steps, at least 1.

    Raises:
        ValueError: It is less than 1.
    """

    interval: int

    def __post_init__(self) -> None:
        check_int("FixedIntervalPolicy.interval", self.interval, least=1)

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether the step is a multiple."""
        del previous_steps, context
        return step.step % self.interval == 0


class SpecificStepsPolicy(Struct, frozen=True):
    """Save at given steps.

    Attributes:
        steps: Their numbers.
    """

    steps: Container[int]

    def __post_init__(self) -> None:
        if isinstance(self.steps, str) or not hasattr(self.steps, "__contains__"):
            raise TypeError(
                f"SpecificStepsPolicy.steps must be a list of steps, found {self.steps!r}."
            )

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether the step is one of the given ones."""
        del previous_steps, context
        return step.step in self.steps


_GIVE_POLICY = "Give FixedIntervalPolicy(100), for example."


class CheckpointInterval(Struct, frozen=True):
    """A part of a run with its own interval, as in eFormer and Levanter.

    Attributes:
        every: Number of steps between saves.
        until: The last step to which it applies, None for the rest of the run.
    """

    every: int
    until: int | None = None

    def __post_init__(self) -> None:
        check_int("CheckpointInterval.every", self.every, least=1)
        check_int("CheckpointInterval.until", self.until, least=0, optional=True)


class IntervalsPolicy(Struct, frozen=True):
    """Save at intervals that change during the run; never at step 0.

    Attributes:
        intervals: Each applies up to its `until`; only the last may have none.

    Raises:
        ValueError: They are not ordered by `until`.
    """

    intervals: Sequence[CheckpointInterval]

    def __post_init__(self) -> None:
        example = "Give CheckpointInterval(100), for example."
        check_elements("IntervalsPolicy.intervals", self.intervals, ["every", "until"], example)
        ends = [interval.until for interval in self.intervals]
        if None in ends[:-1]:
            raise ValueError("Only the last step policy can have an 'until' of None")
        known = [end for end in ends if end is not None]
        if any(a >= b for a, b in itertools.pairwise(known)):
            raise ValueError("Step policies must be sorted by 'until' value")

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether the step is a multiple of the interval that applies to it."""
        del previous_steps, context
        for interval in self.intervals:
            if interval.until is None or step.step <= interval.until:
                return step.step > 0 and step.step % interval.every == 0
        return False


class TimeIntervalPolicy(Struct, frozen=True):
    """Save when the last save, or the start of the run, is some time ago.

    The run starts when the manager is made, and again when it is called for step 0, so that the
    time to compile the first step does not count.

    Attributes:
        interval: The least time between two saves.

    Raises:
        TypeError: It is not a `timedelta`.
        ValueError: It is negative.
    """

    interval: timedelta

    def __post_init__(self) -> None:
        check_duration("TimeIntervalPolicy.interval", self.interval)

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether the interval has passed; never at step 0."""
        began = [previous_steps[-1].time] if previous_steps else []
        began += [context.started] if context.started is not None else []
        return step.step > 0 and (not began or step.time - max(began) >= self.interval)


class ContinuousCheckpointingPolicy(Struct, frozen=True, kw_only=True):
    """Save whenever no other save is in progress.

    Attributes:
        minimum_interval_secs: Least seconds since the last one.
    """

    minimum_interval_secs: float | None = None

    def __post_init__(self) -> None:
        if self.minimum_interval_secs is not None:
            name = "ContinuousCheckpointingPolicy.minimum_interval_secs"
            check_number(name, self.minimum_interval_secs, can_be_zero=True)

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether no save is in progress and the last one is long enough ago."""
        if context.is_saving_in_progress:
            return False
        if not previous_steps or self.minimum_interval_secs is None:
            return True
        since = step.time - previous_steps[-1].time
        return since >= timedelta(seconds=self.minimum_interval_secs)


class BoundedOverheadPolicy(Struct, frozen=True):
    """Save as often as a bound on the blocked time allows.

    Attributes:
        max_fraction: Largest share of the time that saves may block, between 0 and 1. With 0.01 and
            saves that block for 0.3 seconds, saves are at least 30 seconds apart.
    """

    max_fraction: float

    def __post_init__(self) -> None:
        check_number("max_fraction", self.max_fraction, can_be_zero=True)
        if not 0 < self.max_fraction <= 1:
            raise ValueError(f"max_fraction must be in (0, 1], found {self.max_fraction}")

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether the bound allows a save, and none is in progress."""
        if context.is_saving_in_progress:
            return False
        if not previous_steps or context.blocked is None:
            return True
        return step.time - previous_steps[-1].time >= context.blocked / self.max_fraction


class PreemptionCheckpointingPolicy(Struct, frozen=True):
    """Save when the job is about to be stopped."""

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether the job is about to be stopped."""
        del step, previous_steps
        return context.reached_preemption


class InitialSavePolicy(Struct, frozen=True):
    """Save when the run has no step yet."""

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether there are no steps."""
        del step, context
        return not previous_steps


class FunctionPolicy(Struct, frozen=True):
    """Save when a function returns True, as with Orbax's `should_save_fn`.

    Attributes:
        function: Receives the step and the last one saved, None without one.
    """

    function: Callable[[int, int | None], bool]

    def __post_init__(self) -> None:
        advice = "Give a function of the step and the last one saved."
        check_callable("FunctionPolicy.function", self.function, advice, optional=False)

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return the function's result."""
        del context
        return self.function(step.step, previous_steps[-1].step if previous_steps else None)


class TemporaryPolicy(Struct, frozen=True):
    """Save when another policy does, but keep the step only until the next one is durable.

    A step that a permanent policy also asks for is permanent.

    Attributes:
        policy: The other policy.
    """

    policy: SaveDecisionPolicy

    def __post_init__(self) -> None:
        check_methods(
            "TemporaryPolicy.policy", self.policy, ["should_save"], _GIVE_POLICY, optional=False
        )

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return the policy's answer."""
        return self.policy.should_save(step, previous_steps, context=context)


class AnySavePolicy(Struct, frozen=True):
    """Save when at least one of several policies does.

    Attributes:
        policies: The policies.
    """

    policies: Sequence[SaveDecisionPolicy]

    def __post_init__(self) -> None:
        check_elements("AnySavePolicy.policies", self.policies, ["should_save"], _GIVE_POLICY)

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether any policy does; calls all of them."""
        answers = [p.should_save(step, previous_steps, context=context) for p in self.policies]
        return any(answers)


class AllSavePolicy(Struct, frozen=True):
    """Save when all of several policies do.

    Attributes:
        policies: The policies.
    """

    policies: Sequence[SaveDecisionPolicy]

    def __post_init__(self) -> None:
        check_elements("AllSavePolicy.policies", self.policies, ["should_save"], _GIVE_POLICY)

    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        """Return whether all policies do; calls all of them."""
        answers = [p.should_save(step, previous_steps, context=context) for p in self.policies]
        return all(answers)


class SaveDecision(Struct, frozen=True):
    """Whether to save, and why.

    Attributes:
        rules: The policies that asked for the save; empty if there is none.
    """

    rules: tuple[SaveDecisionPolicy, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    @property
    def temporary(self) -> bool:
        """Whether only temporary policies asked for the save."""
        return bool(self.rules) and all(isinstance(rule, TemporaryPolicy) for rule in self.rules)


def decide(
    policy: SaveDecisionPolicy,
    step: StepInfo,
    previous_steps: Sequence[StepInfo],
    *,
    context: DecisionContext,
) -> SaveDecision:
    """Call a policy and find out which of its parts asked for the save."""
    check_methods("policy", policy, ["should_save"], _GIVE_POLICY, optional=False)

    def asking(rule: SaveDecisionPolicy) -> Iterator[SaveDecisionPolicy]:
        if isinstance(rule, AnySavePolicy):
            for part in rule.policies:
                yield from asking(part)
        elif rule.should_save(step, previous_steps, context=context):
            yield rule

    return SaveDecision(tuple(asking(policy)))

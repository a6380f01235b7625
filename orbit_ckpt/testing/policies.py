"""The contracts of policies: those that decide when to save, and those that decide what to keep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Generic, TypeVar, cast

from typing_extensions import override

import orbit_ckpt as ocp
from orbit_ckpt._src.manager.preservation import PreservationContext, PreservationPolicy
from orbit_ckpt._src.manager.save_policies import DecisionContext, SaveDecisionPolicy
from orbit_ckpt._src.manager.step_info import StepInfo
from orbit_ckpt.testing.promises import expect, promised

PolicyT = TypeVar("PolicyT")
AnswerT = TypeVar("AnswerT")

_START = datetime(2026, 1, 1, tzinfo=UTC)
_STEPS = 8


def sample_histories() -> Sequence[list[StepInfo]]:
    """Return runs of different kinds: empty, short, with gaps, and with steps of every kind.

    Their metrics are `loss` and `accuracy`.
    """
    rng = random.Random(0)  # noqa: S311 - not cryptography

    def step(
        number: int,
        minutes: float,
        *,
        pinned: bool = False,
        temporary: bool = False,
        foreign: bool = False,
    ) -> StepInfo:
        metrics = {"loss": rng.random(), "accuracy": rng.random()}
        has_metrics = number % 3 != 1
        time = _START + timedelta(minutes=minutes)
        return StepInfo(
            number, time, metrics if has_metrics else None, pinned, temporary, foreign=foreign
        )

    return [
        [],
        [step(0, 0)],
        [step(number, number) for number in range(12)],
        [step(number * 7 + 3, number**2 * 9) for number in range(9)],
        [step(n, n, pinned=n == 4, temporary=n % 5 == 0) for n in range(0, 40, 2)],
        [step(n, n * 60, foreign=n < 3) for n in range(10)],
    ]


class PolicyContract(Generic[PolicyT, AnswerT]):
    """Tests that the contracts of both kinds of policies share."""

    def policy(self) -> PolicyT:
        """Return a new policy, with the same settings every time."""
        raise NotImplementedError

    def histories(self) -> Sequence[list[StepInfo]]:
        """Return runs to ask the policy about; by default `sample_histories`."""
        return sample_histories()

    def ask(self, policy: PolicyT, steps: Sequence[StepInfo]) -> AnswerT:
        """Ask a policy about a run."""
        raise NotImplementedError

    @promised
    def test_answers_depend_on_the_run_alone(self) -> None:
        """A policy keeps no state: its answers depend on the run alone, not earlier questions."""
        histories, asked = self.histories(), self.policy()
        backwards = [self.ask(asked, steps) for steps in reversed(histories)][::-1]
        for steps, found in zip(histories, backwards, strict=True):
            expected = self.ask(self.policy(), steps)
            expect(found == expected, found=f"{found} for {_show(steps)}", expected=expected)

    @promised
    def test_question_is_left_alone(self) -> None:
        """A policy does not change the list of steps that it is given."""
        policy = self.policy()
        for steps in self.histories():
            given = list(steps)
            self.ask(policy, given)
            expect(given == steps, found=f"{_show(given)} afterwards", expected=_show(steps))


class SavePolicyContract(PolicyContract[SaveDecisionPolicy, bool]):
    """Tests of a policy that decides when to save.

    Example:
        ```python
        class TestPrimes(SavePolicyContract):
            def policy(self):
                return PrimesPolicy()
        ```
    """

    @override
    def ask(self, policy: SaveDecisionPolicy, steps: Sequence[StepInfo]) -> bool:
        *before, last = steps or [StepInfo(0, _START)]
        context = DecisionContext(started=_START, blocked=timedelta(seconds=1))
        return policy.should_save(last, before, context=context)

    @promised
    def test_answers_with_a_bool(self) -> None:
        """A policy answers with True or False."""
        for steps in self.histories():
            found = cast(object, self.ask(self.policy(), steps))
            expect(isinstance(found, bool), found=repr(found), expected="True or False")

    @promised
    def test_manager_saves_what_it_asks_for(self, tmp_path: Path) -> None:
        """A manager saves the steps that the policy asks for, and no others."""
        recorded = _RecordedSaves(self.policy())
        options = ocp.CheckpointManagerOptions(save_decision_policy=recorded)
        with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
            for step in range(_STEPS):
                manager.save(step, {"step": step})
                manager.wait_until_finished()
            found = manager.all_steps()
        expect(found == recorded.wanted, found=f"{found} saved", expected=recorded.wanted)


class PreservationPolicyContract(PolicyContract[PreservationPolicy, Sequence[bool]]):
    """Tests of a policy that decides which steps to keep.

    Example:
        ```python
        class TestPrimes(PreservationPolicyContract):
            def policy(self):
                return KeepPrimes()
        ```
    """

    @override
    def ask(self, policy: PreservationPolicy, steps: Sequence[StepInfo]) -> Sequence[bool]:
        now = _START + timedelta(days=1)
        return list(policy.should_preserve(steps, context=PreservationContext(now=now)))

    @promised
    def test_answers_for_every_step(self) -> None:
        """A policy answers with one bool for each step."""
        for steps in self.histories():
            found = cast(Sequence[object], self.ask(self.policy(), steps))
            right = len(found) == len(steps) and all(isinstance(keep, bool) for keep in found)
            expect(right, found=f"{found} for {len(steps)} steps", expected="a bool for each")

    @promised
    def test_kept_steps_stay(self) -> None:
        """A step that was kept stays when those that were not are gone and no new one has come."""
        for steps in self.histories():
            answers = self.ask(self.policy(), steps)
            kept = [step for step, keep in zip(steps, answers, strict=True) if keep]
            again = self.ask(self.policy(), kept)
            lost = [step.step for step, keep in zip(kept, again, strict=True) if not keep]
            expect(not lost, found=f"no more {lost} of {_show(kept)}", expected="all of them")

    @promised
    def test_manager_deletes_nothing_that_it_keeps(self, tmp_path: Path) -> None:
        """A manager deletes only steps that the policy does not keep."""
        recorded = _RecordedDeletions(self.policy())
        options = ocp.CheckpointManagerOptions(preservation_policy=recorded)
        with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
            for step in range(_STEPS):
                metrics = {"loss": 1 / (step + 1), "accuracy": step % 3}
                manager.save(step, {"step": step}, metrics=metrics)
                manager.wait_until_finished()
            left = set(manager.all_steps())
        lost = sorted(set(range(_STEPS)) - left - recorded.unwanted)
        expect(not lost, found=f"no steps {lost}", expected="all that it keeps")


class _RecordedSaves(SaveDecisionPolicy):
    """A policy that records the steps that another one asks for."""

    def __init__(self, policy: SaveDecisionPolicy) -> None:
        self._policy = policy
        self.wanted: list[int] = []

    @override
    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        answer = self._policy.should_save(step, previous_steps, context=context)
        if answer and step.step not in self.wanted:
            self.wanted.append(step.step)
        return answer


class _RecordedDeletions(PreservationPolicy):
    """A policy that records the steps that another one does not keep."""

    def __init__(self, policy: PreservationPolicy) -> None:
        self._policy = policy
        self.unwanted: set[int] = set()

    @override
    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        answers = self._policy.should_preserve(checkpoints, context=context)
        steps = zip(checkpoints, answers, strict=True)
        self.unwanted |= {info.step for info, keep in steps if not keep}
        return answers


def _show(steps: Sequence[StepInfo]) -> str:
    return f"the steps {[step.step for step in steps]}"

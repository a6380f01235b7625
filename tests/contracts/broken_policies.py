"""Policies with one bug each, and the tests that must find it; see `test_seeded_bugs.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from orbit_ckpt.policies import (
    DecisionContext,
    PreservationContext,
    PreservationPolicy,
    SaveDecisionPolicy,
    StepInfo,
)
from orbit_ckpt.testing import PreservationPolicyContract, SavePolicyContract


class EveryThirdQuestion(SaveDecisionPolicy):
    def __init__(self) -> None:
        self._asked = 0

    @override
    def should_save(
        self, step: StepInfo, previous_steps: Sequence[StepInfo], *, context: DecisionContext
    ) -> bool:
        self._asked += 1
        return self._asked % 3 == 0


class TestCountsQuestions(SavePolicyContract):
    """A policy keeps no state: its answers depend on the run alone, not earlier questions."""

    @override
    def policy(self) -> Any:
        return EveryThirdQuestion()


class OldestPair(PreservationPolicy):
    """Keeps every second step, counted from the oldest that is left."""

    @override
    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        return [i % 2 == 0 for i in range(len(checkpoints))]


class TestForgetsWhatItKept(PreservationPolicyContract):
    """A step that was kept stays when those that were not are gone and no new one has come."""

    @override
    def policy(self) -> Any:
        return OldestPair()


class Popping(PreservationPolicy):
    @override
    def should_preserve(
        self, checkpoints: Sequence[StepInfo], *, context: PreservationContext
    ) -> Sequence[bool]:
        answers = [True] * len(checkpoints)
        if checkpoints:
            checkpoints.pop()  # type: ignore[attr-defined]
        return answers


class TestChangesTheQuestion(PreservationPolicyContract):
    """A policy does not change the list of steps that it is given."""

    @override
    def policy(self) -> Any:
        return Popping()

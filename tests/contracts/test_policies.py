"""The built-in policies keep the contracts of policies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from typing_extensions import override

from orbit_ckpt import policies
from orbit_ckpt.testing import PreservationPolicyContract, SavePolicyContract

MINUTE = timedelta(minutes=1)


def loss(metrics: Any) -> float:
    return metrics["loss"]


def names(chosen: list[Any]) -> list[str]:
    return [f"{number}-{type(policy).__name__}" for number, policy in enumerate(chosen)]


SAVE: list[Any] = [
    policies.FixedIntervalPolicy(3),
    policies.SpecificStepsPolicy([0, 4, 5]),
    policies.IntervalsPolicy(
        [policies.CheckpointInterval(2, until=4), policies.CheckpointInterval(3)]
    ),
    policies.TimeIntervalPolicy(MINUTE),
    policies.ContinuousCheckpointingPolicy(minimum_interval_secs=60),
    policies.BoundedOverheadPolicy(0.5),
    policies.PreemptionCheckpointingPolicy(),
    policies.InitialSavePolicy(),
    policies.FunctionPolicy(lambda step, last: last is None or step > last + 1),
    policies.TemporaryPolicy(policies.FixedIntervalPolicy(2)),
    policies.AnySavePolicy([policies.FixedIntervalPolicy(2), policies.InitialSavePolicy()]),
    policies.AllSavePolicy([policies.FixedIntervalPolicy(2), policies.FixedIntervalPolicy(3)]),
]
KEEP: list[Any] = [
    policies.PreserveAll(),
    policies.LatestN(3),
    policies.LatestDuration(timedelta(hours=20)),
    policies.EveryNSeconds(90),
    policies.EveryNSteps(4),
    policies.EveryNSteps(4, exact_interval=False),
    policies.EveryNStepsClosest(5),
    policies.CustomSteps([0, 3]),
    policies.BestN(get_metric_fn=loss, reverse=True, n=2),
    policies.SaveBest(get_metric_fn=loss, mode="min", n=2),
    policies.Pinned(),
    policies.LatestTemporary(),
    policies.AmongPermanent(policies.LatestN(2)),
    policies.AnyPreservationPolicy([policies.LatestN(2), policies.EveryNSteps(4)]),
    policies.AllPreservationPolicy([policies.LatestN(6), policies.EveryNSteps(4)]),
    policies.InTurn([policies.LatestN(2), policies.EveryNSteps(4)]),
]


@pytest.mark.parametrize("chosen", SAVE, ids=names(SAVE))
class TestSavePolicies(SavePolicyContract):
    @pytest.fixture(autouse=True)
    def choose(self, chosen: Any) -> None:
        self.chosen = chosen

    @override
    def policy(self) -> Any:
        return self.chosen


@pytest.mark.parametrize("chosen", KEEP, ids=names(KEEP))
class TestPreservationPolicies(PreservationPolicyContract):
    @pytest.fixture(autouse=True)
    def choose(self, chosen: Any) -> None:
        self.chosen = chosen

    @override
    def policy(self) -> Any:
        return self.chosen

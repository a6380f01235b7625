"""When to save and what to keep: like Orbax, T5X and eFormer, and what is ours."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orbax.checkpoint.checkpoint_managers import preservation_policy as orbax_keep
from orbax.checkpoint.checkpoint_managers import save_decision_policy as orbax_save

from orbit_ckpt import policies as ours
from orbit_ckpt._src.manager.retention import keeps_all
from orbit_ckpt.policies import (
    AnyPreservationPolicy,
    AnySavePolicy,
    BestN,
    CheckpointInterval,
    DecisionContext,
    EveryNSteps,
    IntervalsPolicy,
    InTurn,
    LatestN,
    PreservationContext,
    RetentionRules,
    SaveBest,
    StepInfo,
    TemporaryPolicy,
    TimeIntervalPolicy,
    decide,
)

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NOW = PreservationContext(now=EPOCH)


def info(step: int, seconds: float = 0, **fields: Any) -> StepInfo:
    return StepInfo(step, EPOCH + timedelta(seconds=seconds), **fields)


def accuracy(metrics: dict[str, float]) -> float:
    return metrics["accuracy"]


def kept(policy: Any, steps: Sequence[StepInfo]) -> list[int]:
    wanted = policy.should_preserve(steps, context=NOW)
    return [step.step for step, keep in zip(steps, wanted, strict=True) if keep]


histories = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(0, 5000),
        st.none() | st.fixed_dictionaries({"accuracy": st.sampled_from([0.1, 0.5, 0.5, 0.9])}),
    ),
    unique_by=lambda row: row[0],
    max_size=12,
).map(
    lambda rows: [
        info(step, seconds, metrics=metrics)
        for (step, _, metrics), seconds in zip(
            sorted(rows, key=lambda row: row[0]), sorted(row[1] for row in rows), strict=True
        )
    ]
)

counts = st.none() | st.integers(0, 5)

PRESERVATION = {
    "PreserveAll": st.just({}),
    "LatestN": st.fixed_dictionaries({"n": counts}),
    "EveryNSeconds": st.fixed_dictionaries({"interval_secs": st.integers(0, 2000)}),
    "EveryNSteps": st.fixed_dictionaries(
        {
            "interval_steps": st.integers(1, 50),
            "exact_interval": st.booleans(),
            "max_to_keep": st.none() | st.integers(1, 4),
        }
    ),
    "EveryNStepsClosest": st.fixed_dictionaries(
        {"interval_steps": st.integers(1, 50), "max_to_keep": st.none() | st.integers(1, 4)}
    ),
    "CustomSteps": st.fixed_dictionaries({"steps": st.lists(st.integers(0, 300))}),
    "BestN": st.fixed_dictionaries(
        {
            "get_metric_fn": st.just(accuracy),
            "reverse": st.booleans(),
            "n": counts,
            "keep_checkpoints_without_metrics": st.booleans(),
        }
    ),
}


@pytest.mark.parametrize("name", PRESERVATION)
@given(data=st.data(), steps=histories)
def test_preservation_policies_keep_what_orbax_keeps(
    name: str, data: st.DataObject, steps: list[StepInfo]
) -> None:
    fields = data.draw(PRESERVATION[name])
    mine = getattr(ours, name)(**fields)
    theirs = getattr(orbax_keep, name)(**fields)
    context = orbax_keep.PreservationContext()
    expected = theirs.should_preserve(steps, context=context)
    assert list(mine.should_preserve(steps, context=NOW)) == list(expected)
    both = AnyPreservationPolicy([theirs, mine])
    assert list(both.should_preserve(steps, context=NOW)) == list(expected)


SAVING: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "FixedIntervalPolicy": st.fixed_dictionaries({"interval": st.integers(1, 9)}),
    "SpecificStepsPolicy": st.fixed_dictionaries({"steps": st.lists(st.integers(0, 9))}),
    "PreemptionCheckpointingPolicy": st.just({}),
    "InitialSavePolicy": st.just({}),
}


@pytest.mark.parametrize("name", SAVING)
@given(data=st.data(), previous=histories, step=st.integers(0, 9), preempted=st.booleans())
def test_save_policies_save_when_orbax_saves(
    name: str, data: st.DataObject, previous: list[StepInfo], step: int, preempted: bool
) -> None:
    fields = data.draw(SAVING[name])
    context = DecisionContext(reached_preemption=preempted)
    theirs = getattr(orbax_save, name)(**fields)
    expected = theirs.should_save(info(step), previous, context=context)
    mine = getattr(ours, name)(**fields)
    assert mine.should_save(info(step), previous, context=context) == expected


@pytest.mark.parametrize(
    ("running", "since", "expected"), [(True, 99, False), (False, 9, False), (False, 10, True)]
)
def test_continuous_saving_waits_for_the_save_before(
    running: bool, since: float, expected: bool
) -> None:
    policy = ours.ContinuousCheckpointingPolicy(minimum_interval_secs=10)
    context = DecisionContext(is_saving_in_progress=running)
    assert policy.should_save(info(2, since), [info(1)], context=context) is expected


@pytest.mark.parametrize(("since", "expected"), [(29.9, False), (30, True)])
def test_overhead_is_bounded(since: float, expected: bool) -> None:
    context = DecisionContext(blocked=timedelta(seconds=0.3))
    policy = ours.BoundedOverheadPolicy(0.01)
    assert policy.should_save(info(2, since), [info(1)], context=context) is expected
    assert policy.should_save(info(2, since), [], context=context)


def history(
    policy: Callable[[], Any], rows: Sequence[tuple[str, Any, Any]]
) -> list[tuple[str, Any, list[int]]]:
    """Replay what happened to a run of T5X; a policy is made anew for every save."""
    steps: list[StepInfo] = []
    seen: list[tuple[str, Any, list[int]]] = []
    measured: dict[int, float] = {}
    for kind, step, value in rows:
        if kind == "metric":
            measured[step] = value
        elif kind == "save":
            steps.append(info(step))
            current = [
                dataclasses.replace(s, metrics={"accuracy": measured[s.step]})
                if s.step in measured
                else s
                for s in steps
            ]
            wanted = kept(policy(), current)
            steps = [s for s in steps if s.step in wanted]
            seen.append((kind, step, wanted))
    return seen


def test_best_steps_and_the_newest_are_kept_like_t5x_does() -> None:
    rows: list[tuple[str, Any, Any]] = [
        ("save", 41, [41]),
        ("save", 42, [41, 42]),
        ("save", 43, [41, 42, 43]),
        ("save", 44, [42, 43, 44]),
        ("metric", 42, 0.9),
        ("metric", 43, 0.8),
        ("metric", 44, 0.7),
        ("save", 45, [42, 43, 45]),
    ]
    best = SaveBest(get_metric_fn=accuracy, n=2, keep_checkpoints_without_metrics=False)
    assert history(lambda: best, rows) == [row for row in rows if row[0] == "save"]
    lowest = msgspec.structs.replace(best, mode="min")
    later = [info(42, metrics={"accuracy": 0.9}), info(43, metrics={"accuracy": 0.8})]
    later.append(info(45, metrics={"accuracy": 0.95}))
    assert kept(lowest, [*later, info(46)]) == [42, 43, 46]
    later[2] = info(46, metrics={"accuracy": 0.99})
    assert kept(lowest, [*later, info(47)]) == [42, 43, 47]


def test_multiples_do_not_count_as_best_steps_like_t5x_does() -> None:
    expected = [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [0, 2, 3, 4, 5],
        [0, 3, 4, 5, 6],
        [0, 3, 4, 5, 6, 7],
        [0, 3, 5, 6, 7, 8],
        [0, 3, 6, 7, 8, 9],
    ]
    rows: list[tuple[str, Any, Any]] = []
    for step, listed in enumerate(expected):
        rows += [("save", step, listed), ("metric", step, step / 100)]
    best = SaveBest(get_metric_fn=accuracy, n=2, keep_checkpoints_without_metrics=False)
    policy = InTurn([EveryNSteps(3), best])
    assert [row[2] for row in history(lambda: policy, rows)] == expected


def test_steps_without_metrics_are_kept_or_go_first_like_t5x_does() -> None:
    rows: list[tuple[str, Any, Any]] = [
        *(("metric", step, value) for step, value in [(43, 0.6), (44, 0.5), (45, 0.4)]),
        ("save", 41, [41]),
        ("save", 42, [41, 42]),
        ("save", 43, [41, 42, 43]),
        ("save", 44, [41, 42, 43, 44]),
        ("save", 45, [41, 42, 43, 45]),
    ]
    best = SaveBest(get_metric_fn=accuracy, n=1)
    assert history(lambda: best, rows) == rows[3:]
    strict = msgspec.structs.replace(best, keep_checkpoints_without_metrics=False)
    last = [info(41), info(42)]
    last += [info(s, metrics={"accuracy": v}) for s, v in [(43, 0.6), (45, 0.4)]]
    assert kept(strict, [*last, info(46)]) == [43, 46]


def test_pinned_steps_stay_and_count_like_t5x_does() -> None:
    rules = RetentionRules(LatestN(2))
    steps: list[StepInfo] = []
    seen: list[list[int]] = []
    for step in range(1, 6):
        steps.append(info(step))
        plan = rules.plan(steps, NOW)
        seen.append(plan.kept)
        steps = [dataclasses.replace(s, pinned=s.step == 2) for s in steps if s.step in plan.kept]
    assert seen == [[1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5]]


def test_items_of_old_steps_go_while_the_steps_stay() -> None:
    steps = [info(s, items=frozenset({"state", "train_ds"})) for s in range(1, 5)]
    steps[1] = dataclasses.replace(steps[1], pinned=True)
    plan = RetentionRules(LatestN(3), items={"train_ds": LatestN(1)}).plan(steps, NOW)
    assert plan.kept == [2, 3, 4]
    assert [step.dropped_items for step in plan.steps] == [(), (), ("train_ds",), ()]


def test_intervals_change_along_the_run_like_eformer() -> None:
    policy = IntervalsPolicy(
        [CheckpointInterval(2, 10), CheckpointInterval(5, 20), CheckpointInterval(10)]
    )
    context = DecisionContext()
    saved = [s for s in range(50) if policy.should_save(info(s), [], context=context)]
    assert saved == [2, 4, 6, 8, 10, 15, 20, 30, 40]
    assert not IntervalsPolicy([]).should_save(info(3), [], context=context)


@pytest.mark.parametrize(
    ("intervals", "message"),
    [
        ([CheckpointInterval(2), CheckpointInterval(5, 20)], "Only the last step policy"),
        ([CheckpointInterval(2, 20), CheckpointInterval(5, 20)], "sorted by 'until'"),
    ],
)
def test_intervals_out_of_order_are_refused(
    intervals: list[CheckpointInterval], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        IntervalsPolicy(intervals)


def test_temporary_steps_bridge_the_time_between_permanent_ones_like_eformer() -> None:
    policy = AnySavePolicy(
        [
            IntervalsPolicy([CheckpointInterval(2)]),
            TemporaryPolicy(TimeIntervalPolicy(timedelta(seconds=10))),
        ]
    )
    rules = RetentionRules(LatestN(None))
    rows: list[tuple[int, int, list[tuple[int, bool]]]] = [
        (0, 0, []),
        (1, 10, [(1, True)]),
        (2, 9, [(2, False)]),
        (3, 1, [(2, False)]),
        (3, 0, [(2, False)]),
        (4, 10, [(2, False), (4, False)]),
        (5, 10, [(2, False), (4, False), (5, True)]),
        (6, 10, [(2, False), (4, False), (6, False)]),
        (7, 10, [(2, False), (4, False), (6, False), (7, True)]),
        (8, 10, [(2, False), (4, False), (6, False), (8, False)]),
    ]
    context = DecisionContext(started=EPOCH)
    steps: list[StepInfo] = []
    seconds = 0
    for step, passed, expected in rows:
        seconds += passed
        decision = decide(policy, info(step, seconds), steps, context=context)
        if decision:
            steps.append(info(step, seconds, temporary=decision.temporary))
            plan = rules.plan(steps, NOW)
            steps = [s for s in steps if s.step in plan.kept]
        assert [(s.step, s.temporary) for s in steps] == expected, step


def test_a_temporary_step_stays_until_a_newer_one_is_there_even_without_the_guard() -> None:
    rules = RetentionRules(LatestN(0), keep_latest=False)
    assert rules.plan([info(1), info(2, temporary=True)], NOW).kept == [2]
    pinned = info(1, temporary=True, pinned=True)
    assert rules.plan([pinned, info(2, temporary=True)], NOW).kept == [1, 2]


@pytest.mark.parametrize(
    "policy", [ours.PreserveAll(), LatestN(), AnyPreservationPolicy([EveryNSteps(7), LatestN()])]
)
def test_a_policy_without_a_limit_needs_no_plan(policy: Any) -> None:
    steps = [info(1), info(2, pinned=True), info(3)]
    assert keeps_all(RetentionRules(policy), steps)
    assert RetentionRules(policy).plan(steps, NOW).deleted == []


@pytest.mark.parametrize("temporary", [False, True])
@pytest.mark.parametrize("policy", [ours.PreserveAll(), LatestN(2), EveryNSteps(1)])
def test_without_a_plan_no_step_stays_that_a_plan_deletes(policy: Any, temporary: bool) -> None:
    steps = [info(1), info(2, temporary=temporary), info(3)]
    rules = RetentionRules(policy)
    assert not (keeps_all(rules, steps) and rules.plan(steps, NOW).deleted)


def test_the_newest_step_is_guarded_and_the_plan_says_why_steps_stay() -> None:
    steps = [info(s, metrics={"accuracy": 1 - s / 1000}) for s in (100, 200, 300, 400)]
    best = BestN(get_metric_fn=accuracy, n=2)
    assert RetentionRules(best, keep_latest=False).plan(steps, NOW).kept == [100, 200]
    policy = AnyPreservationPolicy([best, EveryNSteps(200)])
    plan = RetentionRules(policy).plan(steps, NOW)
    assert plan.kept == [100, 200, 400]
    assert plan.deleted == [300]
    assert [len(step.rules) for step in plan.steps] == [1, 2, 0, 2]
    assert "step 300: deleted" in str(plan)
    assert "step 100: kept by BestN(" in str(plan)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_metric_that_is_no_number_ranks_lowest(reverse: bool) -> None:
    steps = [info(s, metrics={"accuracy": v}) for s, v in [(1, 0.5), (2, math.nan), (3, 0.6)]]
    assert kept(BestN(get_metric_fn=accuracy, n=2, reverse=reverse), steps) == [1, 3]


def test_combinations() -> None:
    steps = [info(s) for s in range(1, 8)]
    both = ours.AllPreservationPolicy([EveryNSteps(2), LatestN(4)])
    assert kept(both, steps) == [4, 6]
    context = DecisionContext()
    every = ours.AllSavePolicy([ours.FixedIntervalPolicy(2), ours.FixedIntervalPolicy(3)])
    saved = [s for s in range(13) if every.should_save(info(s), [], context=context)]
    assert saved == [0, 6, 12]


def test_steps_newer_than_some_time_are_kept() -> None:
    context = PreservationContext(now=EPOCH + timedelta(hours=5))
    steps = [info(s, 3600 * s) for s in range(6)]
    policy = ours.LatestDuration(timedelta(hours=2))
    assert list(policy.should_preserve(steps, context=context)) == [False] * 3 + [True] * 3


def test_a_policy_that_forgets_steps_is_an_error() -> None:
    class Forgetful:
        def should_preserve(self, checkpoints: Any, *, context: Any) -> list[bool]:
            del context
            return [True] * (len(checkpoints) - 1)

    with pytest.raises(ValueError, match="answers for 1 of 2 steps"):
        RetentionRules(Forgetful()).plan([info(1), info(2)], NOW)

"""Time given to a manager, temporary steps of earlier runs, and what is asked about steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import args
from orbit_ckpt.policies import (
    AnySavePolicy,
    CheckpointInterval,
    EveryNSeconds,
    IntervalsPolicy,
    LatestDuration,
    LatestN,
    TemporaryPolicy,
    TimeIntervalPolicy,
)

MINUTE = timedelta(minutes=1)


class Clock:
    """A clock that tests move."""

    def __init__(self, *, zone: bool = True) -> None:
        self.time = datetime(2030, 5, 1, tzinfo=UTC if zone else None)

    def __call__(self) -> datetime:
        return self.time

    def wait(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.mark.parametrize("zone", [True, False])
def test_time_policies_go_by_the_clock(run: Callable[..., Any], *, zone: bool) -> None:
    clock = Clock(zone=zone)
    manager = run(clock=clock, save_decision_policy=TimeIntervalPolicy(MINUTE))
    saved: list[int] = []
    for step in range(1, 10):
        clock.wait(25)
        if manager.save(step, {"w": step}):
            saved.append(step)
        manager.wait_until_finished()
    assert saved == [3, 6, 9]
    times = [manager.metadata(step).commit_timestamp_nsecs for step in saved]
    assert np.diff(times).tolist() == [75 * 10**9] * 2
    assert times[-1] == round(clock.time.timestamp()) * 10**9


def test_a_skipped_step_0_begins_the_interval_anew(run: Callable[..., Any]) -> None:
    clock = Clock()
    manager = run(clock=clock, save_decision_policy=TimeIntervalPolicy(MINUTE))
    clock.wait(100)  # compilation
    assert not manager.save(0, {"w": 0})
    clock.wait(1)
    assert not manager.save(1, {"w": 1})
    clock.wait(59)
    assert manager.save(2, {"w": 2})


def test_retention_goes_by_the_clock_after_a_restart_too(run: Callable[..., Any]) -> None:
    clock = Clock()
    manager = run()
    for _ in range(2):
        manager = run(clock=clock, preservation_policy=LatestDuration(3 * MINUTE))
        for _ in range(3):
            clock.wait(60)
            manager.save((manager.latest_step() or 0) + 1, {"w": 1})
            manager.wait_until_finished()
    assert manager.all_steps() == [3, 4, 5, 6]
    every = run(clock=clock, preservation_policy=EveryNSeconds(120))
    assert every.retention().kept == [3, 5, 6]


def test_a_clock_that_returns_no_time_is_an_error(run: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="clock returned 3, expected a datetime"):
        run(clock=lambda: 3)
    with pytest.raises(TypeError, match="clock must be a function"):
        run(clock=3)


@pytest.mark.parametrize(("keeps", "expected"), [(False, [10, 13]), (True, [10, 12, 13])])
def test_temporary_steps_of_an_earlier_run_are_replaced_or_kept(
    run: Callable[..., Any], *, keeps: bool, expected: list[int]
) -> None:
    policy = AnySavePolicy(
        [
            IntervalsPolicy([CheckpointInterval(10)]),
            TemporaryPolicy(TimeIntervalPolicy(timedelta())),
        ]
    )
    first = run(save_decision_policy=policy)
    for step in (10, 11, 12):
        first.save(step, {"w": step})
    first.close()
    assert run().all_steps() == [10, 12]
    second = run(save_decision_policy=policy, keep_old_temporary_steps=keeps)
    second.save(13, {"w": 13})
    second.wait_until_finished()
    assert second.all_steps() == expected
    second.save(14, {"w": 14})  # those of this run are replaced as ever
    second.wait_until_finished()
    assert second.all_steps() == [*expected[:-1], 14]


def test_the_steps_that_have_an_item_are_listed(run: Callable[..., Any]) -> None:
    manager = run(item_preservation_policies={"data": LatestN(1)}, item_names=("state", "data"))
    for step in (1, 2):
        items = {"state": args.StandardSave({"w": step}), "data": args.JsonSave({"at": step})}
        manager.save(step, args=args.Composite(**items))
    manager.wait_until_finished()
    assert manager.steps_with_item("state") == [1, 2]
    assert manager.steps_with_item("data") == run(item_names=("data",)).steps_with_item("data")
    assert manager.steps_with_item("data") == [2]
    assert manager.steps_with_item("none") == []


def test_a_step_may_be_an_array_of_one_integer_or_lazy(run: Callable[..., Any]) -> None:
    manager = run()
    manager.save(np.array([3]), {"step": jnp.int32(5)})
    manager.wait_until_finished()
    lazy = ocp.load(manager.directory / "3", lazy=True)["step"]
    assert isinstance(lazy, ocp.LazyArray)
    manager.save(lazy, {"step": 5})
    manager.save(jnp.array([7]), {"step": 7})
    manager.wait_until_finished()
    assert manager.all_steps() == [3, 5, 7]
    for wrong in (np.array([1, 2]), np.array([1.0]), np.array([True]), np.zeros((1, 1), int)):
        with pytest.raises(TypeError, match="The step must be an integer"):
            manager.save(wrong, {})

"""Numbers in options and policies that make no sense."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest

import orbit_ckpt as ocp
from orbit_ckpt import policies


def ids(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return what names each case: the class and the option."""
    return [f"{getattr(make, 'func', make).__qualname__}.{name}" for make, name, *_ in cases]


Make = Callable[..., object]

MANAGER = ocp.CheckpointManagerOptions

COUNTS: list[tuple[Make, str, int]] = [
    (MANAGER, "save_interval_steps", 1),
    (MANAGER, "max_to_keep", 0),
    (MANAGER, "keep_period", 1),
    (MANAGER, "step_format_fixed_length", 0),
    (ocp.FileOptions, "path_permission_mode", 0),
    (ocp.MultiprocessingOptions, "primary_host", 0),
    (ocp.MemoryOptions, "write_concurrent_bytes", 1),
    (ocp.MemoryOptions, "transfer_concurrent_bytes", 1),
    (policies.FixedIntervalPolicy, "interval", 1),
    (policies.CheckpointInterval, "every", 1),
    (policies.LatestN, "n", 0),
    (policies.EveryNSteps, "interval_steps", 1),
    (policies.EveryNStepsClosest, "interval_steps", 1),
    (partial(policies.EveryNSteps, 1), "max_to_keep", 0),
    (partial(policies.BestN, get_metric_fn=len), "n", 0),
    (partial(policies.SaveBest, get_metric_fn=len), "n", 0),
]

NUMBERS: list[tuple[Make, str, bool]] = [
    (ocp.AsyncOptions, "timeout_secs", False),
    (ocp.AsyncOptions, "kept_memory_secs", False),
    (ocp.MultiprocessingOptions, "timeout_secs", False),
    (partial(ocp.AsyncCheckpointer, ocp.PyTreeHandler()), "timeout_secs", False),
    (ocp.MemoryOptions.from_gb, "save", False),
    (policies.EveryNSeconds, "interval_secs", True),
    (policies.ContinuousCheckpointingPolicy, "minimum_interval_secs", True),
    (policies.BoundedOverheadPolicy, "max_fraction", False),
]

DURATIONS: list[tuple[Make, str]] = [
    (MANAGER, "keep_time_interval"),
    (policies.TimeIntervalPolicy, "interval"),
    (policies.LatestDuration, "duration"),
]

STEPS: list[tuple[Make, str]] = [
    (MANAGER, "save_on_steps"),
    (policies.CustomSteps, "steps"),
    (policies.SpecificStepsPolicy, "steps"),
]


@pytest.mark.parametrize(("make", "name", "least"), COUNTS, ids=ids(COUNTS))
def test_counts_are_integers_that_are_large_enough(make: Make, name: str, least: int) -> None:
    make(**{name: np.int64(max(least, 1))})
    for wrong in (least - 1, -7):
        with pytest.raises(ValueError, match=rf"{name} must be at least {least}, found {wrong}"):
            make(**{name: wrong})
    for wrong in (True, 2.0, math.nan, "5"):
        with pytest.raises(TypeError, match=rf"{name} must be an integer .*, found {wrong!r}"):
            make(**{name: wrong})


@pytest.mark.parametrize(("make", "name", "can_be_zero"), NUMBERS, ids=ids(NUMBERS))
def test_other_numbers_are_finite_and_not_negative(
    make: Make, name: str, can_be_zero: bool
) -> None:
    make(**{name: np.float32(0.5)})
    wrong_values = [-1, math.nan, math.inf, *([] if can_be_zero else [0])]
    for wrong in wrong_values:
        with pytest.raises(ValueError, match=rf"{name}.* must be .*, found {wrong!r}"):
            make(**{name: wrong})
    for wrong in (True, "5", timedelta(seconds=1)):
        with pytest.raises(TypeError, match=rf"{name}.* must be .*positive number"):
            make(**{name: wrong})


@pytest.mark.parametrize(("make", "name"), DURATIONS, ids=ids(DURATIONS))
def test_durations_are_timedeltas_that_are_not_negative(make: Make, name: str) -> None:
    make(**{name: timedelta(minutes=1)})
    with pytest.raises(TypeError, match=rf"{name} must be a datetime.timedelta, found 60"):
        make(**{name: 60})
    with pytest.raises(ValueError, match=rf"{name} must not be negative"):
        make(**{name: timedelta(seconds=-1)})


@pytest.mark.parametrize(("make", "name"), STEPS, ids=ids(STEPS))
def test_steps_are_given_as_a_list(make: Make, name: str) -> None:
    make(**{name: [1, 2]})
    for wrong in (5, "12"):
        with pytest.raises(TypeError, match=rf"{name} must be a list of steps, found {wrong!r}"):
            make(**{name: wrong})

"""Checks of numbers that users give as options; every error names the option."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from datetime import timedelta
from numbers import Real
from typing import Any, cast


def check_int(name: str, value: object, *, least: int, optional: bool = False) -> None:
    """Check an option that is an integer, a numpy one for example; None too if it is optional.

    Raises:
        TypeError: It is something else, such as a bool.
        ValueError: It is less than `least`.
    """
    if value is None and optional:
        return
    try:
        number = operator.index(value)  # pyright: ignore[reportArgumentType] - to be found out
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer of at least {least}, found {value!r}.")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, found {value!r}.")


def check_number(name: str, value: object, *, can_be_zero: bool) -> None:
    """Check an option that is a finite number, of seconds for example, and not negative.

    Raises:
        TypeError: It is something else, such as a bool.
        ValueError: It is negative, infinite, not a number, or 0 although it cannot be.
    """
    wanted = "0 or a positive number" if can_be_zero else "a positive number"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {wanted}, found {value!r}.")
    number = float(value)
    is_sound = math.isfinite(number) and (number > 0 or (can_be_zero and number == 0))
    if not is_sound:
        adjective = "finite and not negative" if can_be_zero else "positive and finite"
        raise ValueError(f"{name} must be {adjective}, found {value!r}.")


def check_duration(name: str, value: Any) -> None:
    """Check an option that is a time, which may be 0.

    Raises:
        TypeError: It is something else, such as a number of seconds.
        ValueError: It is negative.
    """
    if not isinstance(value, timedelta):
        raise TypeError(
            f"{name} must be a datetime.timedelta, found {value!r}; give timedelta(seconds=...)."
        )
    if value < timedelta():
        raise ValueError(f"{name} must not be negative, found {value!r}.")


def check_steps(name: str, value: object) -> None:
    """Check an option that is a collection of steps.

    Raises:
        TypeError: It is none, such as a single step.
        ValueError: A step is negative.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Collection):
        raise TypeError(f"{name} must be a list of steps, found {value!r}.")
    for step in cast(Collection[object], value):
        check_int(f"{name}: every step", step, least=0)

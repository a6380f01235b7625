"""Check arguments and objects of users; every error names the argument.

Some methods stand in for others of their class: `stage` of an item handler for `save`, `plan_reads`
of a type handler for `deserialize`. A subclass that overrides only the other one inherits a method
that no longer agrees with it. Generic code checks this before it calls such a method.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from datetime import timedelta
from numbers import Number, Real
from typing import Any, SupportsIndex

from orbit_ckpt._src.guards import is_plural

_SHOWN = 80


def show(value: object) -> str:
    """Format a value for a message: as written if short, else its type.

    Arrays and containers may be large, and no array is fetched from a device for a message.
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | bytes | Number | timedelta):
        text = repr(value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
    return f"a value of type {type(value).__name__}"


def check_type(
    name: str,
    value: object,
    kinds: type | tuple[type, ...],
    wanted: str,
    advice: str,
) -> None:
    """Check that an argument is an instance of a class; None passes.

    Args:
        name: Name of the argument.
        value: Its value.
        kinds: The class, or several.
        wanted: What messages call an instance.
        advice: What to do instead, a sentence.

    Raises:
        TypeError: It is something else, such as the class itself.
    """
    if value is not None and not isinstance(value, kinds):
        raise TypeError(f"{name} must be {wanted}, found {show(value)}. {advice}")


def check_callable(name: str, value: object, advice: str, *, optional: bool = True) -> None:
    """Check that an argument is callable.

    Args:
        name: Name of the argument.
        value: Its value.
        advice: What to pass, a sentence.
        optional: Whether None is valid.

    Raises:
        TypeError: It is not callable.
    """
    if not callable(value) and not (optional and value is None):
        raise TypeError(f"{name} must be a function, found {show(value)}. {advice}")


def check_methods(
    name: str, value: object, methods: Collection[str], advice: str, *, optional: bool = True
) -> None:
    """Check that an argument has some methods.

    Args:
        name: Name of the argument.
        value: Its value.
        methods: The methods that are called.
        advice: What to pass, a sentence.
        optional: Whether None is valid.

    Raises:
        TypeError: It lacks one, or is a class.
    """
    lacks = isinstance(value, type) or not all(hasattr(value, method) for method in methods)
    if lacks and not (optional and value is None):
        wanted = ", ".join(f"{method}()" for method in methods)
        raise TypeError(f"{name} must be an object with {wanted}, found {show(value)}. {advice}")


def check_executor(executor: object) -> None:
    """Check that an argument is an executor, or None.

    Raises:
        TypeError: It is something else, such as a class.
    """
    if executor is not None:
        check_methods(
            "executor",
            executor,
            ("submit",),
            "Give a concurrent.futures.Executor: ProcessPoolExecutor(8), or get_executor() of a "
            "dask.distributed.Client.",
        )


def check_elements(name: str, value: object, methods: Collection[str], advice: str) -> None:
    """Check that an argument is a list of objects with some methods.

    Raises:
        TypeError: It is not a list, or an element lacks a method.
    """
    if not is_plural(value):
        raise TypeError(f"{name} must be a list, found {show(value)}. {advice}")
    for element in value:
        if element is None:
            raise TypeError(f"{name} has an element None. {advice}")
        check_methods(f"{name}: every element", element, methods, advice)


def check_mapping(name: str, value: object, advice: str) -> None:
    """Check that an argument is a dict; None passes.

    Raises:
        TypeError: It is something else.
    """
    check_type(name, value, Mapping, "a dict", advice)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Check that an option is one of several strings.

    Raises:
        TypeError: It is no string.
        ValueError: It is another string.
    """
    wanted = ", ".join(map(repr, choices))
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {wanted}, found {show(value)}.")
    if value not in choices:
        raise ValueError(f"{name} must be one of {wanted}, found {show(value)}.")


def check_int(name: str, value: object, *, least: int, optional: bool = False) -> None:
    """Check that an option is an integer, of numpy too; None passes if it is optional.

    Raises:
        TypeError: It is something else, such as a bool.
        ValueError: It is less than `least`.
    """
    if value is None and optional:
        return
    try:
        number = operator.index(value)  # pyright: ignore[reportArgumentType] - the check itself
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer of at least {least}, found {show(value)}.")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, found {show(value)}.")


def check_axis(name: str, value: object) -> None:
    """Check that an argument is an axis, which may be negative.

    Raises:
        TypeError: It is not an integer.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise TypeError(f"{name} must be an integer, found {show(value)}.")


def check_axes(name: str, value: object) -> None:
    """Check that an argument is a list of axes, or a shape.

    Raises:
        TypeError: It is something else, such as a number.
    """
    if not is_plural(value):
        raise TypeError(f"{name} must be a tuple of integers, found {show(value)}.")
    for number in value:
        check_axis(f"{name}: every element", number)


def check_number(name: str, value: object, *, can_be_zero: bool) -> None:
    """Check that an option is a finite number, not negative.

    Raises:
        TypeError: It is something else, such as a bool.
        ValueError: It is negative, infinite, NaN, or 0 where that is not allowed.
    """
    wanted = "0 or a positive number" if can_be_zero else "a positive number"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {wanted}, found {show(value)}.")
    number = float(value)
    is_sound = math.isfinite(number) and (number > 0 or (can_be_zero and number == 0))
    if not is_sound:
        adjective = "finite and not negative" if can_be_zero else "positive and finite"
        raise ValueError(f"{name} must be {adjective}, found {show(value)}.")


def check_duration(name: str, value: Any) -> None:
    """Check that an option is a duration, which may be 0.

    Raises:
        TypeError: It is something else, such as a number of seconds.
        ValueError: It is negative.
    """
    if not isinstance(value, timedelta):
        raise TypeError(
            f"{name} must be a datetime.timedelta, found {show(value)}; give "
            "timedelta(seconds=...)."
        )
    if value < timedelta():
        raise ValueError(f"{name} must not be negative, found {show(value)}.")


def check_steps(name: str, value: object, *, what: str = "steps") -> None:
    """Check that an option is a collection of steps, or of other numbers from 0.

    Raises:
        TypeError: It is not a collection, for example a single step.
        ValueError: A step is negative.
    """
    if not is_plural(value):
        raise TypeError(f"{name} must be a list of {what}, found {show(value)}.")
    for step in value:
        check_int(f"{name}: every element", step, least=0)


def as_flag(name: str, value: object) -> bool:
    """Convert a flag to a Python bool; accepts 0 and 1, and scalars of numpy and JAX.

    Raises:
        TypeError: The value is something else.
    """
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    number: Any = value
    is_scalar = isinstance(value, int) or (hasattr(value, "dtype") and hasattr(value, "shape"))
    if not is_scalar or getattr(value, "shape", ()) or number not in (0, 1):
        raise TypeError(f"{name} is {number!r}, of {type(number).__name__}; give True or False.")
    return bool(number)


def check_flag_fields(owner: object, *names: str) -> None:
    """Check the boolean fields of options, see `as_flag`.

    Raises:
        TypeError: One is something else.
    """
    for name in names:
        as_flag(f"{type(owner).__name__}.{name}", getattr(owner, name))


def is_overridden(owner: object, method: str, *, since: str) -> bool:
    """Return whether a subclass of the class that defines `since` overrides a method.

    Args:
        owner: An object or a class. An attribute of the object itself overrides its class.
        method: The method that may be overridden.
        since: The method that stands in for it.
    """
    return depth_of(owner, method) < depth_of(owner, since)


def depth_of(owner: object, method: str) -> int:
    """Return the MRO index of the class that defines a method.

    -1 for an attribute of the object itself, the length of the MRO if the method does not exist.
    """
    if not isinstance(owner, type) and method in getattr(owner, "__dict__", {}):
        return -1
    classes = (owner if isinstance(owner, type) else type(owner)).__mro__
    found = (depth for depth, cls in enumerate(classes) if method in vars(cls))
    return next(found, len(classes))

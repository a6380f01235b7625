"""Errors for arguments that go by another name in other functions and libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

TARGETS = frozenset({"abstract_pytree", "abstract_state", "item", "items", "like", "target"})
"""What Orbax, Flax and this package call the target of a restore."""


def suggest_target(right: str, **others: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function name its argument for the target where it is given under another name.

    Args:
        right: What the function calls it.
        **others: What it calls further arguments, by the names that others use for them.
    """
    return suggest(**dict.fromkeys(TARGETS - {right}, right), **others)


def suggest(**right: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function name an argument that is given under the name that others use for it.

    Args:
        **right: What the function calls its arguments, by the names that others use for them.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not right.keys().isdisjoint(kwargs):
                wrong = min(right.keys() & kwargs.keys())
                raise TypeError(
                    f"{fn.__name__}() has no argument {wrong!r}; give it as {right[wrong]}=."
                )
            return fn(*args, **kwargs)

        return checked

    return decorate

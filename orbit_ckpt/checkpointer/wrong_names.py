"""Errors for arguments that go by another name in other functions and libraries."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

TARGETS = frozenset({"abstract_pytree", "abstract_state", "item", "items", "like", "target"})
"""What Orbax, Flax and this package call the target of a restore."""


def suggest_target(right: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function name its argument for the target where it is given under another name.

    Args:
        right: What the function calls it.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        wrong_names = TARGETS - {right}

        @functools.wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not wrong_names.isdisjoint(kwargs):
                wrong = min(wrong_names & kwargs.keys())
                raise TypeError(
                    f"{fn.__name__}() has no argument {wrong!r}; give the target as {right}=."
                )
            return fn(*args, **kwargs)

        return checked

    return decorate

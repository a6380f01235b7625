"""Errors for arguments of a wrong type or name, raised before any reading or writing."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Mapping
from typing import ParamSpec, TypeVar, cast

from orbit_ckpt._src.guards import is_plural
from orbit_ckpt._src.items.arguments import args_name, is_args, is_args_class
from orbit_ckpt._src.runtime.checks import check_callable, show
from orbit_ckpt._src.transform.engine import Rule


def check_tree(name: str, value: object, *, instead: str) -> None:
    """Check that a tree argument is not something commonly mistaken for a tree.

    Args:
        name: Name of the argument.
        value: Its value.
        instead: What to pass, as the end of a sentence.

    Raises:
        TypeError: It is a path, or arguments of an item handler.
    """
    is_class = isinstance(value, type) and is_args_class(value)
    if is_class or is_args(value):
        found = f"{args_name(value)}, which is for checkpointers and managers"
    elif isinstance(value, os.PathLike):
        found = f"the path {os.fspath(cast('os.PathLike[str]', value))!r}"
    else:
        return
    raise TypeError(f"{name} must be a pytree, found {found}. Give {instead}.")


def check_patterns(patterns: Mapping[str, object]) -> None:
    """Check arguments that are one pattern or several.

    Raises:
        TypeError: One is something else.
    """
    for name, value in patterns.items():
        several = _elements(value)
        for pattern in [value] if several is None else several:
            if pattern is not None and not isinstance(pattern, str | re.Pattern):
                raise TypeError(
                    f"{name} must be a pattern or several, found {show(pattern)}. Give a string "
                    "such as 'params/**', re.compile(...), or a list of these."
                )


def check_rules(rules: object) -> None:
    """Check the rules of a load.

    Raises:
        TypeError: They are not a list, or one is not a rule.
    """
    if isinstance(rules, Rule):
        raise TypeError(
            f"transforms must be a list of rules, found a single {type(rules).__name__}. Give "
            f"transforms=[{type(rules).__name__}(...)]."
        )
    several = _elements(rules)
    for rule in [rules] if several is None else several:
        if not isinstance(rule, Rule):
            raise TypeError(
                f"transforms must be a list of rules, found {show(rule)}. Give those of "
                "orbit_ckpt.transform, such as [Rename('a', 'b')]. Transforms of Orbax go into "
                "PyTreeRestore(transforms=)."
            )


def _elements(value: object) -> Collection[object] | None:
    """Return the elements of a list or similar; None for anything else, including a dict."""
    return value if is_plural(value) and not isinstance(value, Mapping) else None


def check_state_functions(functions: object) -> None:
    """Check the functions that change a tree before a save.

    Raises:
        TypeError: They are not a list, or one is not a function.
    """
    advice = (
        "Give a list of functions that take the state and a tree of LeafInfo, and return both. "
        "Rules of orbit_ckpt.transform are for load and convert."
    )
    several = _elements(functions)
    if several is None:
        raise TypeError(f"transforms must be a list, found {show(functions)}. {advice}")
    for function in several:
        check_callable("transforms: every one", function, advice)


P = ParamSpec("P")
R = TypeVar("R")

TARGETS = frozenset({"abstract_pytree", "abstract_state", "item", "items", "like", "target"})
"""What Orbax, Flax and this package call the target of a restore."""


def suggest_target(right: str, **others: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to name its target argument in errors about similar names.

    Args:
        right: The function's name for the target.
        **others: As for `suggest`.
    """
    return suggest(**dict.fromkeys(TARGETS - {right}, right), **others)


def suggest(**right: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function to suggest the right name for an argument with another library's name.

    Args:
        **right: The function's argument names, by other libraries' names for them; or what to do
            instead, where there is no such argument.
    """

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fn)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            if not right.keys().isdisjoint(kwargs):
                wrong = min(right.keys() & kwargs.keys())
                advice = right[wrong]
                what = f"give it as {advice}=" if advice.isidentifier() else advice
                raise TypeError(f"{fn.__name__}() has no argument {wrong!r}; {what}.")
            return fn(*args, **kwargs)

        return checked

    return decorate

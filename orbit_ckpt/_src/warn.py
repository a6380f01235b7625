"""Warn callers: of options that have no effect, and at the place of their call."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping

_PACKAGE = f"{__name__.partition('.')[0]}."


def warn_caller(message: str) -> None:
    """Issue a `UserWarning` located at the nearest caller outside this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def warn_unused(owner: str, name: str, value: object, why: str, *, stacklevel: int = 3) -> None:
    """Warn that an option that was set has no effect.

    Args:
        owner: The object or function that received it.
        name: Its name.
        value: Its value.
        why: Why it is not needed, or what to use.
        stacklevel: As for `warnings.warn`; by default the caller of this function's caller.
    """
    warnings.warn(f"{owner}: {name}={value!r} does nothing here: {why}.", stacklevel=stacklevel + 1)


def warn_set(
    owner: str, options: Mapping[str, tuple[object, object, str]], *, stacklevel: int = 3
) -> None:
    """Warn of each option that is neither None nor its default.

    Args:
        owner: The object or function that received them.
        options: By name, the value, the default and the reason.
        stacklevel: As for `warn_unused`.
    """
    for name, (value, default, why) in options.items():
        if value is not None and value is not default and value != default:
            warn_unused(owner, name, value, why, stacklevel=stacklevel + 1)

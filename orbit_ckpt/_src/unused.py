"""Options of Orbax that have no effect here: accepted, but never silently ignored."""

from __future__ import annotations

import warnings
from collections.abc import Mapping


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

"""Options that Orbax has and that do nothing here: accepted, and never silently ignored."""

from __future__ import annotations

import warnings
from collections.abc import Mapping


def warn_unused(owner: str, name: str, value: object, why: str, *, stacklevel: int = 3) -> None:
    """Warn that an option which was set does nothing.

    Args:
        owner: What it was given to.
        name: Its name.
        value: Its value.
        why: Why it is not needed, or what to use.
        stacklevel: As for `warnings.warn`; by default the caller of whoever calls this.
    """
    warnings.warn(f"{owner}: {name}={value!r} does nothing here: {why}.", stacklevel=stacklevel + 1)


def warn_set(
    owner: str, options: Mapping[str, tuple[object, object, str]], *, stacklevel: int = 3
) -> None:
    """Warn of each option that is neither None nor its default.

    Args:
        owner: What they were given to.
        options: The value, the default and the reason of each, by name.
        stacklevel: As for `warn_unused`.
    """
    for name, (value, default, why) in options.items():
        if value is not None and value is not default and value != default:
            warn_unused(owner, name, value, why, stacklevel=stacklevel + 1)

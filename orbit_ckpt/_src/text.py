"""Text for people: names that come from checkpoints, lists, sizes, and warnings at the caller."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence

_PACKAGE = f"{__name__.partition('.')[0]}."


def visible(text: str) -> str:
    r"""Escape unprintable characters other than line breaks.

    Names of leaves and files may hold control characters that drive a terminal, or marks that
    reverse the text shown. They are escaped as in `repr`; letters of all scripts stay.

    Example:
        >>> visible("Größe \x1b[2J")
        'Größe \\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def shorten_list(names: Sequence[object], limit: int = 20, *, separator: str = ", ") -> str:
    """Join names in one line; shorten a long list and say how many more there are.

    Example:
        >>> shorten_list(["a", "b", "c", "d"], 2)
        'a, b and 2 more'
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{separator.join(map(str, names[:limit]))}{more}"


def shorten_lines(lines: Sequence[str], limit: int, *, what: str = "more") -> list[str]:
    """Return the first lines, and one with the number of the remaining ones."""
    more = [f"... and {len(lines) - limit} {what}"] if len(lines) > limit else []
    return [*lines[:limit], *more]


def shorten(text: str, limit: int = 120, *, mark: str = "...") -> str:
    """Return a text without its middle if it is longer than the limit.

    Names of leaves differ in their first and last keys.

    Example:
        >>> shorten("params/layer_0/mlp/kernel", 16, mark="…")
        'params/…p/kernel'
    """
    if len(text) <= limit:
        return text
    head = (limit - len(mark)) // 2
    return f"{text[:head]}{mark}{text[head + len(mark) - limit :]}"


def human_bytes(count: int | None) -> str:
    """Format a size; an unknown one, None, is empty.

    Example:
        >>> human_bytes(12_345_678)
        '12.3 MB'
    """
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def warn_caller(message: str) -> None:
    """Issue a `UserWarning` located at the nearest caller outside this package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def warn_set(owner: str, options: Mapping[str, tuple[object, object, str]]) -> None:
    """Warn of each option that has no effect and is neither None nor its default.

    Args:
        owner: The object or function that received them.
        options: By name, the value, the default, and why it is not needed or what to use.
    """
    for name, (value, default, why) in options.items():
        if value is not None and value is not default and value != default:
            warn_caller(f"{owner}: {name}={value!r} does nothing here: {why}.")

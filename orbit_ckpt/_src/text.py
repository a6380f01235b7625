"""Text for people, with names that come from checkpoints."""

from __future__ import annotations

from collections.abc import Sequence


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

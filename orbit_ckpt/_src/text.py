"""Text that people read, made of names that come from checkpoints."""

from __future__ import annotations


def visible(text: str) -> str:
    r"""Return text with escapes in place of what is not printable, lines apart.

    Names of leaves and files may hold control characters that steer a terminal, or marks that
    reverse what is shown. They are escaped as `repr` does it; letters of all scripts stay.

    Example:
        >>> visible("Größe \x1b[2J")
        'Größe \\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)

"""Text that a terminal can show."""

from __future__ import annotations


def visible(text: str) -> str:
    """Return text with escapes for what is no sign, lest names of leaves steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)

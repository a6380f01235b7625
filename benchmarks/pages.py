"""Replace the tables of the documentation, which stand between comments.

<!-- table: reshard -->
...
<!-- end of table -->
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).parent.parent

PAGES = (_ROOT / "docs/explanation/performance.md", _ROOT / "README.md")
"""The pages with tables."""

PICTURE = _ROOT / "docs/assets/cost_per_leaf.svg"
"""The picture of the cost per leaf."""

_BEGIN = re.compile(r"<!-- table: (\w+) -->\n")
_END = "<!-- end of table -->"


class PageError(Exception):
    """A page has no tables, one that nobody draws, or one without an end."""


def redraw(pages: Sequence[Path], tables: Mapping[str, str]) -> None:
    """Replace the tables of pages; those that are empty in `tables` stay as they are.

    Raises:
        PageError: A page is not as expected; none is changed then.
    """
    texts = {page: _redrawn(page, tables) for page in pages}
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")


def _redrawn(page: Path, tables: Mapping[str, str]) -> str:
    first, *parts = _BEGIN.split(page.read_text(encoding="utf-8"))
    if not parts:
        raise PageError(f"{page} has no tables; they begin with <!-- table: NAME -->.")
    redrawn = [first]
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        old, end, rest = part.partition(_END)
        if not end:
            raise PageError(f"{page}: the table {name!r} has no end, {_END}.")
        if name not in tables:
            raise PageError(f"{page}: no such table: {name!r}; there are {', '.join(tables)}.")
        new = f"\n{tables[name]}\n\n" if tables[name] else old
        redrawn += [f"<!-- table: {name} -->\n", new, end, rest]
    return "".join(redrawn)

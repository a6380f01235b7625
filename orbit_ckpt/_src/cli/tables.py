"""Tables: fitted to a terminal and coloured there, complete and plain in pipes."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Mapping, Sequence

from orbit_ckpt._src.cli.output import echo, is_coloured
from orbit_ckpt._src.text import shorten, visible

_GAP = 2
_LEAST = 12
"""Width below which no column is shortened."""

_FEW = 2_000
"""Rows that `rich` lays out at once; it takes seconds for more."""


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[str] = (),
    styles: Mapping[int, str] | None = None,
) -> None:
    """Print a table.

    On a terminal, columns that do not fit are shortened in the middle of their longest cells.

    Args:
        header: Names of the columns; columns that are empty in all rows are omitted.
        rows: The cells of every row.
        right: Names of the right-aligned columns.
        styles: Colours of rows, by their positions.
    """
    shown = [i for i, _ in enumerate(header) if not rows or any(row[i] for row in rows)]
    titles = [header[i] for i in shown]
    cells = [[_cell(row[i]) for i in shown] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
    is_right = [title in right for title in titles]
    if sys.stdout.isatty():
        widths = fit(widths, [len(title) for title in titles], shutil.get_terminal_size().columns)
        cells = [
            [shorten(cell, width, mark="…") for cell, width in zip(row, widths, strict=True)]
            for row in cells
        ]
    if is_coloured() and len(rows) <= _FEW:
        _print_rich(titles, cells, is_right, widths, styles or {})
        return
    title, *lines = [_line(row, is_right, widths) for row in (titles, *cells)]
    echo(title, style="bold")
    if lines:
        sys.stdout.write("\n".join([*lines, ""]))  # one call: a terminal is slow with 20,000


def _print_rich(
    titles: Sequence[str],
    cells: Sequence[Sequence[str]],
    is_right: Sequence[bool],
    widths: Sequence[int],
    styles: Mapping[int, str],
) -> None:
    from rich.console import Console  # noqa: PLC0415 - an extra that only terminals need
    from rich.table import Table  # noqa: PLC0415 - see above
    from rich.text import Text  # noqa: PLC0415 - see above

    width = sum(widths) + _GAP * len(widths)
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for title, at_right, least in zip(titles, is_right, widths, strict=True):
        justify = "right" if at_right else "left"
        table.add_column(Text(title), justify=justify, no_wrap=True, min_width=least)
    for i, row in enumerate(cells):
        table.add_row(*map(Text, row), style=styles.get(i))
    Console(width=width, highlight=False, emoji=False, markup=False).print(table)


def fit(widths: Sequence[int], least: Sequence[int], available: int) -> list[int]:
    """Return widths of columns that fit; the widest are narrowed first, the first column last.

    Args:
        widths: The widths of their longest cells.
        least: The widths of their titles, which stay whole.
        available: Width of the terminal.
    """
    found = list(widths)
    bounds = [min(width, max(title, _LEAST)) for width, title in zip(widths, least, strict=True)]
    surplus = sum(found) + _GAP * (len(found) - 1) - available
    while surplus > 0:
        wide = [i for i, width in enumerate(found) if width > bounds[i]]
        if not wide:
            break  # the terminal wraps
        found[max(wide, key=lambda i: (i > 0, found[i]))] -= 1
        surplus -= 1
    return found


def _line(row: Sequence[str], is_right: Sequence[bool], widths: Sequence[int]) -> str:
    cells = [
        cell.rjust(width) if at_right else cell.ljust(width)
        for cell, at_right, width in zip(row, is_right, widths, strict=True)
    ]
    return (" " * _GAP).join(cells).rstrip()


def _cell(text: str) -> str:
    return text if text.isprintable() else visible(text).replace("\n", "\\n")

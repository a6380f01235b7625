"""Trees and tables as text, and as HTML for notebooks; both show a bounded number of lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from typing_extensions import override

from orbit_ckpt._src.text import shorten, visible

MOST_LINES = 40
"""Lines of a `repr`."""

_MOST_ROWS = 400
"""Rows in a notebook, whose cells scroll."""

_WIDEST = 200
"""Characters of a cell; a longer one loses its middle."""

_UNBROKEN = 40
"""Characters of a cell in a notebook that are kept on one line."""

_LEFT = ' style="text-align:left"'
_NAME = ' style="font-family:monospace"'
_UNMARKED = ' style="padding-left:1.1em"'  # the width of the mark of what folds


class Block(Protocol):
    """A part of a drawing."""

    def lines(self, most: int) -> list[str]:
        """Return it as text of at most a number of lines."""
        ...

    def html(self, most: int) -> str:
        """Return it as HTML with about a number of rows."""
        ...

    @property
    def size(self) -> int:
        """How many lines it has if nothing is left out."""
        ...


@dataclass(frozen=True, slots=True)
class Drawing:
    """A title, then trees and tables.

    Attributes:
        title: One line or several.
        blocks: What follows.
        footer: Lines at the end.
    """

    title: str
    blocks: Sequence[Block] = ()
    footer: Sequence[str] = ()

    def text(self, most: int | None = MOST_LINES) -> str:
        """Return it as text of at most a number of lines, None for all."""
        title = self.title.splitlines()
        room = 0 if most is None else most - len(title) - len(self.footer)
        lines = list(title)
        for block, share in zip(self.blocks, self._shares(room, most is None), strict=True):
            lines += block.lines(share)
        return "\n".join(visible(line).rstrip() for line in [*lines, *self.footer])

    def html(self, most: int = _MOST_ROWS) -> str:
        """Return it as HTML without colours of its own, for light and dark pages."""
        parts = [f"<div><b>{_html(line)}</b></div>" for line in self.title.splitlines()]
        shares = self._shares(most, False)
        parts += [block.html(share) for block, share in zip(self.blocks, shares, strict=True)]
        parts += [f"<div>{_html(line)}</div>" for line in self.footer]
        return f"<div>{''.join(parts)}</div>"

    def _shares(self, room: int, is_all: bool) -> list[int]:
        """Divide lines among the blocks; small ones are whole, large ones get equal parts."""
        sizes = [block.size for block in self.blocks]
        shares = list(sizes)
        if is_all:
            return shares
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        for done, i in enumerate(order):
            shares[i] = min(sizes[i], room // (len(order) - done))
            room -= shares[i]
        return shares


@dataclass(frozen=True, slots=True)
class Table(Block):
    """A table; columns that are empty in every row are left out.

    Under a title it is a listing, indented and without the names of the columns, except in HTML.

    Attributes:
        header: Names of the columns.
        rows: The cells of every row.
        right: Names of the right-aligned columns.
        title: A line above it.
        what: What the rows are, for the number of those left out.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Collection[str] = ()
    title: str = ""
    what: str = "more"

    @property
    @override
    def size(self) -> int:
        return len(self.rows) + 1

    @override
    def lines(self, most: int) -> list[str]:
        shown, more = self._cut(most - 1)
        columns = self._columns()
        right = [self.header[i] in self.right for i in columns]
        cells = [[row[i] for i in columns] for row in shown]
        if not self.title:
            return [*_aligned([[self.header[i] for i in columns], *cells], right), *more]
        return [self.title, *(f"  {line}" for line in [*_aligned(cells, right), *more])]

    @override
    def html(self, most: int) -> str:
        shown, more = self._cut(most)
        columns = self._columns()
        parts = [f"<div>{_html(self.title)}</div>"] if self.title else []
        names = "".join(f"<th{_LEFT}>{_html(self.header[i])}</th>" for i in columns)
        parts += [f"<table><thead><tr>{names}</tr></thead><tbody>"]
        for row in shown:
            cells = (_cell(row[i], self.header[i] in self.right) for i in columns)
            parts.append(f"<tr>{''.join(cells)}</tr>")
        parts.append("</tbody></table>")
        parts += [f"<div>{_html(line)}</div>" for line in more]
        return "".join(parts)

    def _columns(self) -> list[int]:
        return [i for i in range(len(self.header)) if any(row[i] for row in self.rows)]

    def _cut(self, most: int) -> tuple[Sequence[Sequence[str]], list[str]]:
        if len(self.rows) <= most:
            return self.rows, []
        count = max(0, most - 1)
        return self.rows[:count], [f"... and {len(self.rows) - count} {self.what}"]


@dataclass(frozen=True, slots=True)
class Branch:
    """A node of a tree.

    Attributes:
        label: Its name.
        cells: What to show beside it, in columns that all nodes share.
        children: The nodes below it.
    """

    label: str
    cells: Sequence[str] = ()
    children: Sequence[Branch] = ()


@dataclass(frozen=True, slots=True)
class Tree(Block):
    """A tree; what does not fit is closed, deepest nodes first, and counted.

    Attributes:
        children: The outermost nodes.
        right: Positions of the right-aligned cells.
    """

    children: Sequence[Branch]
    right: Collection[int] = ()
    _root: Branch = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_root", Branch("", (), self.children))

    @property
    @override
    def size(self) -> int:
        pending, count = [self._root], 0
        while pending:
            children = pending.pop().children
            count += len(children)
            pending += children
        return count

    @override
    def lines(self, most: int) -> list[str]:
        rows = list(_rows(self._root, _opened(self._root, most), ""))
        width = max((len(row) for row in rows), default=0)
        rows = [[*row, *[""] * (width - len(row))] for row in rows]
        return _aligned(rows, [False, *(i in self.right for i in range(width - 1))])

    @override
    def html(self, most: int) -> str:
        shown = _opened(self._root, most)
        return _nested(self._root, shown, _opened(self._root, MOST_LINES))


def _opened(root: Branch, most: int) -> dict[int, int]:
    """Return how many children to show, by the `id` of every node that is open.

    Nodes are opened level by level while their children fit. Of a node with too many, such as the
    layers of a model, a few are shown, so that one of them can be opened too.
    """
    shown: dict[int, int] = {}
    pending = deque([root])
    while pending and most > 0:
        node = pending.popleft()
        count = len(node.children)
        if count > most:
            if node is not root and most < 6:
                continue
            count = most - 1 if node is root else max(3, most // 3)
            most -= 1  # for the line that says how many there are
        shown[id(node)] = count
        most -= count
        pending += [child for child in node.children[:count] if child.children]
    return shown


def _rows(node: Branch, shown: dict[int, int], indent: str) -> list[list[str]]:
    """Return the cells of all lines below a node."""
    count = shown.get(id(node), 0)
    left = len(node.children) - count
    rows: list[list[str]] = []
    for i, child in enumerate(node.children[:count]):
        is_last = i == count - 1 and not left
        corner, below = ("└── ", "    ") if is_last else ("├── ", "│   ")
        rows.append([f"{indent}{corner}{child.label}", *child.cells])
        rows += _rows(child, shown, indent + below)
    if left and count:
        rows.append([f"{indent}└── ... and {left} more"])
    return rows


def _nested(node: Branch, shown: dict[int, int], unfolded: dict[int, int]) -> str:
    """Return the lines below a node; they fold, and those of `repr` are unfolded at first."""
    count = shown.get(id(node), 0)
    left = len(node.children) - count
    parts: list[str] = []
    for child in node.children[:count]:
        cells = "".join(f" &ensp;{_html(cell)}" for cell in child.cells if cell)
        line = f"<span{_NAME}>{_html(child.label)}</span><small>{cells}</small>"
        if id(child) in shown:
            is_open = " open" if unfolded.get(id(child)) == len(child.children) else ""
            below = _nested(child, shown, unfolded)
            parts.append(f"<li><details{is_open}><summary>{line}</summary>{below}</details></li>")
        else:
            parts.append(f"<li{_UNMARKED}>{line}</li>")
    if left and count:
        parts.append(f"<li{_UNMARKED}>... and {left} more</li>")
    return f'<ul style="list-style:none;margin:0;padding-left:1.2em">{"".join(parts)}</ul>'


def _aligned(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """Return rows as lines with cells of one width per column."""
    cells = [[shorten(_one_line(cell), _WIDEST) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]


def _one_line(text: str) -> str:
    return text if text.isprintable() else visible(text).replace("\n", "\\n")


def _cell(text: str, is_right: bool) -> str:
    """Return a cell of a table; numbers and shapes stay on one line."""
    align = "" if is_right else "text-align:left;"
    wrap = "" if len(text) > _UNBROKEN else "white-space:nowrap"
    return f'<td style="{align}{wrap}">{_html(text)}</td>'


def _html(text: str) -> str:
    from html import escape  # noqa: PLC0415 - for notebooks only

    return escape(_one_line(text))

"""The differences between two stored trees, as printable values."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orbit_ckpt._src.arrays.compare import ValueChange, format_value
from orbit_ckpt._src.drawing import Drawing, Table
from orbit_ckpt._src.errors import CheckpointError
from orbit_ckpt._src.text import visible

Aspect = Literal[
    "container", "kind", "shape", "dtype", "values", "chunks", "type", "sharding", "bits", "layout"
]
"""What differs. The last four are notes: the trees are equal all the same.

- `container`: a dict in one tree is a list, a tuple or a namedtuple in the other.
- `kind`: an array in one tree is a scalar, a string or an empty container in the other.
- `chunks`: the digests of chunks tell that values differ, or their bits.
- `type`: JAX's array in one tree is numpy's in the other, Python's scalar is numpy's.
- `bits`: equal values have different bits: -0.0 and 0.0, or two kinds of NaN.
- `layout`: one tree is nested, the other is one dict whose keys are the nested ones joined.
"""

_SHOWN = 20

_CONTEXT = 20
"""Characters of a string to show before the first difference."""


@dataclass(frozen=True, slots=True)
class LeafChange:
    """One difference of a leaf, or of a container.

    Attributes:
        path: Name of the leaf, `params/dense/kernel`.
        what: The aspect that differs.
        a: Its state in the first checkpoint: a shape, a dtype, a sharding, a value (of an array the
            element at `values.index`), else a text.
        b: Its state in the second checkpoint.
        values: The difference of the values, if they differ.
    """

    path: str
    what: Aspect
    a: object
    b: object
    values: ValueChange | None = None

    @property
    def detail(self) -> str:
        """The change as text."""
        if self.what == "chunks":
            return str(self.b)
        if self.values is None:
            return f"{self.a} -> {self.b}"
        if self.values.size == 1 and self.a is not None:
            return _describe_change(self.a, self.b)
        return self.values.describe()

    def __str__(self) -> str:
        return f"{self.path}: {self.what} {self.detail}"


@dataclass(frozen=True, slots=True)
class UnmatchedLeaf:
    """A leaf, or an empty container, that only one of the checkpoints has.

    Attributes:
        path: Name of the leaf, `params/dense/kernel`.
        leaf: Its type, `float32[4, 8]`.
        renamed: Path of the likely counterpart: a leaf that only the other checkpoint has, of the
            same kind, shape and dtype, and of a similar name.
    """

    path: str
    leaf: str
    renamed: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class CheckpointDiff:
    """The differences of two checkpoints; true if there are any. Prints as a listing.

    Attributes:
        a: The first checkpoint.
        b: The second.
        only_in_a: Leaves that the second lacks.
        only_in_b: Leaves that the first lacks.
        changed: Differences of leaves and containers that both have, in the order of the first.
        notes: Differences although the trees are equal: shardings, for example.
        common: Number of leaves that both have.
        has_values: Whether values were compared.
        by_digest: Of how many leaves the values were compared although the others were not: by the
            digests that both checkpoints have, or because they are tiny.
    """

    a: Path
    b: Path
    only_in_a: Sequence[UnmatchedLeaf]
    only_in_b: Sequence[UnmatchedLeaf]
    changed: Sequence[LeafChange]
    notes: Sequence[LeafChange]
    common: int
    has_values: bool
    by_digest: int = 0

    @property
    def is_same(self) -> bool:
        """Whether no difference was found; of values only if they were compared."""
        return not (self.only_in_a or self.only_in_b or self.changed)

    def __bool__(self) -> bool:
        return not self.is_same

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, most: int | None = _SHOWN) -> str:
        """Return a listing.

        Args:
            most: Maximum number of lines of every sort, None for all.
        """
        drawing = self._draw()
        lines = drawing.title.splitlines()
        for table in drawing.blocks:
            lines += table.lines(table.size if most is None else min(table.size, most + 2))
        return visible("\n".join(lines))

    def _draw(self) -> Drawing:
        """Return the counts, and a table for each sort of difference."""
        changed = {change.path for change in self.changed if change.what != "container"}
        counts = f"{self.common} leaves in both, {self.common - len(changed)} of them the same"
        values = "" if self.has_values else "; values not compared (values=True)"
        title = f"a: {self.a}\nb: {self.b}\n{counts}{values}"
        only, both = ("leaf", "type", "likely the same"), ("leaf", "what", "change")
        tables = (
            ("only in a", only, [_unmatched_row(leaf, "b") for leaf in self.only_in_a]),
            ("only in b", only, [_unmatched_row(leaf, "a") for leaf in self.only_in_b]),
            ("changed from a to b", both, [_changed_row(change) for change in self.changed]),
            ("noted, but no difference", both, [_changed_row(note) for note in self.notes]),
        )
        return Drawing(
            title,
            [
                Table(header, rows, title=f"{what}: {len(rows)}")
                for what, header, rows in tables
                if rows
            ],
        )

    def __repr__(self) -> str:
        return self._draw().text()

    def _repr_html_(self) -> str:
        return self._draw().html()


def _describe_change(a: object, b: object) -> str:
    start = 0
    if isinstance(a, str) and isinstance(b, str):
        pairs = enumerate(zip(a, b, strict=False))
        first = next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
        start = max(0, first - _CONTEXT)
        a, b = a[start:], b[start:]
    where = f"from character {start}: " if start else ""
    return f"{where}{format_value(a)} -> {format_value(b)}"


_Row = tuple[str, str, str]
"""Path, description, and the rest of the line."""


def _unmatched_row(leaf: UnmatchedLeaf, other: str) -> _Row:
    return leaf.path, leaf.leaf, f"likely {leaf.renamed} in {other}" if leaf.renamed else ""


def _changed_row(change: LeafChange) -> _Row:
    return change.path, change.what, change.detail


@contextlib.contextmanager
def naming_checkpoint(path: Path) -> Generator[None]:
    """Add the checkpoint to errors raised in the block."""
    try:
        yield
    except CheckpointError as error:
        error.add_note(f"This is about the checkpoint at {path}.")
        raise

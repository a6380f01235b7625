"""The command that prints leaves: metadata, statistics, and the values in their corners."""

from __future__ import annotations

from collections.abc import Callable

import click
import numpy as np
from msgspec import Struct

from orbit_ckpt._src.arrays.dtypes import HostArray
from orbit_ckpt._src.arrays.statistics import ArrayStatistics
from orbit_ckpt._src.checkpointer.statistics import COPIES, as_host, open_leaves, statistics_of
from orbit_ckpt._src.cli.inspect import Leaf, choose_leaves, list_leaves
from orbit_ckpt._src.cli.output import echo, human_number, print_json
from orbit_ckpt._src.cli.readers import parse_reader
from orbit_ckpt._src.cli.targets import find_checkpoint
from orbit_ckpt._src.cli.values import print_damage, statistics_fields
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.text import human_bytes
from orbit_ckpt._src.transform.patterns import is_exact
from orbit_ckpt._src.type_handlers.lazy import LazyArray

_SHOWN = 200
_WIDTH = 110


def show(path: str, leaf: str, memory: int, reader: str | None, as_json: bool) -> None:
    """Print leaves: metadata, statistics, and the values in the corners.

    Exit with 1 if a chunk is damaged; the statistics leave it out.
    """
    form = parse_reader(reader)
    root = find_checkpoint(path, reader=form)
    known = choose_leaves(list_leaves(root, reader=form), leaf)
    values = open_leaves(root, reader=form)
    with progress_bar("Reading") as progress:
        done, total = 0, sum(one.nbytes for one in known)

        def advance(nbytes: int) -> None:
            nonlocal done
            done += nbytes
            progress(done, total)

        limit = memory * 10**6 // COPIES
        shown = [_Shown.of(one, values[one.keys], limit, advance) for one in known]
    if as_json:
        leaves = [one.fields for one in shown]
        print_json("show", path=root, **(leaves[0] if is_exact(leaf) else {"leaves": leaves}))
    else:
        for i, one in enumerate(shown):
            if i:
                echo()
            _print_leaf(one)
    if any(one.damage for one in shown):
        raise click.exceptions.Exit(1)


class _Shown(Struct, frozen=True):
    """What `show` prints of a leaf.

    Attributes:
        leaf: Its metadata.
        text: Its value if that is a text.
        statistics: Its statistics, without damaged chunks.
        corners: The values in its corners; None if they are damaged, or if it is no array.
        indices: Their indices along every dimension.
        damage: What is damaged.
    """

    leaf: Leaf
    text: str | bytes | None
    statistics: ArrayStatistics | None
    corners: HostArray | None
    indices: list[list[int]] | None
    damage: list[CorruptionError]

    @classmethod
    def of(
        cls, leaf: Leaf, value: object, max_bytes: int, advance: Callable[[int], object]
    ) -> _Shown:
        damage: list[CorruptionError] = []
        found = statistics_of(value, max_bytes, advance, damage)
        corners = indices = None
        try:
            indices, corners = _corners(value) or (None, None)
        except CorruptionError as error:
            if not damage:  # of a leaf without statistics
                damage.append(error)
        text = value if isinstance(value, str | bytes) else None
        if damage and found is not None and not found.size:
            found = None
        return cls(leaf, text, found, corners, indices, damage)

    @property
    def fields(self) -> dict[str, object]:
        """Its JSON form."""
        return {
            "leaf": self.leaf.fields,
            "statistics": statistics_fields(self.statistics),
            "corners": self.corners,
            "indices": self.indices,
            "value": self.text if isinstance(self.text, str) else None,
            "damage": [str(error) for error in self.damage],
        }


def _print_leaf(shown: _Shown) -> None:
    leaf, found, value = shown.leaf, shown.statistics, shown.text
    echo(leaf.name, style="bold")
    rows = [("type", leaf.description)]
    if leaf.shape is not None:
        rows.append(("size", human_bytes(leaf.nbytes)))
    rows += [("sharding", leaf.sharding or ""), ("compression", leaf.compression or "")]
    if leaf.chunk_shape is not None:
        rows.append(("chunks", str(list(leaf.chunk_shape))))
    if found is not None:
        numbers = (("min", found.min), ("max", found.max), ("mean", found.mean), ("l2", found.l2))
        rows += [(name, human_number(number)) for name, number in numbers]
        rows += [("nan", str(found.nans)), ("inf", str(found.infs))]
    if value is not None:
        rows.append(("value", f"{value[:_SHOWN]!r}{' ...' if len(value) > _SHOWN else ''}"))
    for name, text in rows:
        if text:
            is_bad = name in ("nan", "inf") and text != "0"
            echo(f"  {name:13}{text}", style="yellow" if is_bad else None)
    print_damage(shown.damage)
    if shown.corners is not None:
        echo()
        echo(_array_text(shown.corners, _edge(shown.corners.ndim)))


def _array_text(corners: HostArray, edge: int) -> str:
    return np.array2string(corners, max_line_width=_WIDTH, precision=5, threshold=0, edgeitems=edge)


def _edge(rank: int) -> int:
    """Return the number of values shown at each end of a dimension."""
    return 3 if rank < 3 else 2 if rank == 3 else 1


def _corners(value: object) -> tuple[list[list[int]], HostArray] | None:
    """Return the values in the corners of an array, and their indices along every dimension.

    A long dimension yields one value more than is shown, so that the gap is visible.
    """
    if isinstance(value, LazyArray):
        if value.leaf.key_impl is not None:
            return None
        shape = value.shape
    else:
        host = as_host(value)
        if host is None:
            return None
        value, shape = host, host.shape
    edge = _edge(len(shape))
    indices = [
        list(range(n)) if n <= 2 * edge + 1 else [*range(edge + 1), *range(n - edge, n)]
        for n in shape
    ]
    return indices, np.asarray(value[np.ix_(*indices)] if shape else value[...])

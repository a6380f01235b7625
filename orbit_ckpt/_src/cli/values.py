"""Commands that print statistics, and what other commands print of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from orbit_ckpt._src.arrays.statistics import ArrayStatistics
from orbit_ckpt._src.checkpointer.statistics import measure_leaves, open_leaves
from orbit_ckpt._src.cli.executors import open_executor
from orbit_ckpt._src.cli.health import record_not_finite
from orbit_ckpt._src.cli.inspect import Leaf, list_leaves
from orbit_ckpt._src.cli.output import echo, human_number, print_json
from orbit_ckpt._src.cli.readers import parse_reader
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import find_checkpoint
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.text import shorten_list
from orbit_ckpt._src.tree.keypath import NamePath

_DAMAGE = 8
"""Maximum number of damaged chunks to list."""


def stats(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    only: Sequence[str],
    fail_on_nan: bool,
    memory: int,
    workers: int | None,
    dask: str | None,
    reader: str | None,
    as_json: bool,
) -> None:
    """Print minimum, maximum, mean, L2 norm and counts of NaN and Inf of every leaf.

    Exit with 1 if a chunk is damaged; the statistics leave it out.
    """
    known = parse_reader(reader)
    root = find_checkpoint(path, reader=known)
    leaves = list_leaves(root, only, known)
    damage: dict[NamePath, list[CorruptionError]] = {}
    with open_executor(workers, dask) as executor, progress_bar("Reading") as progress:
        values = open_leaves(root, reader=known)
        found = measure_leaves(
            {leaf.keys: values[leaf.keys] for leaf in leaves},
            memory * 10**6,
            progress,
            damage=damage,
            executor=executor,
        )
    bad = [leaf.name for leaf in leaves if (s := found[leaf.keys]) and s.nans + s.infs]
    if bad or not (only or damage):
        record_not_finite(root, len(bad))
    if as_json:
        rows = [
            {
                "name": leaf.name,
                **statistics_fields(found[leaf.keys]),
                "damage": [str(error) for error in damage.get(leaf.keys, ())],
            }
            for leaf in leaves
        ]
        print_json("stats", path=root, leaves=rows, not_finite=bad)
    else:
        _print_statistics(leaves, found, damage)
        if bad:
            echo(f"not finite: {shorten_list(bad, 8)}", style="yellow")
        print_damage([error for errors in damage.values() for error in errors])
    if damage or (fail_on_nan and bad):
        raise click.exceptions.Exit(1)


def _print_statistics(
    leaves: Sequence[Leaf],
    found: Mapping[NamePath, ArrayStatistics | None],
    damage: Mapping[NamePath, Sequence[CorruptionError]],
) -> None:
    header = ["leaf", "type", "min", "max", "mean", "l2", "nan", "inf", "problem"]
    cells: list[list[str]] = []
    styles: dict[int, str] = {}
    for i, leaf in enumerate(leaves):
        statistics, problem = found[leaf.keys], ""
        if statistics is not None and statistics.nans + statistics.infs:
            problem, styles[i] = "not finite", "yellow"
        if leaf.keys in damage:
            problem, styles[i] = "damaged", "red"
            statistics = statistics if statistics is not None and statistics.size else None
        cells.append([leaf.name, leaf.description, *_cells(statistics), problem])
    print_table(header, cells, right=set(header[2:-1]), styles=styles)


def print_damage(errors: Sequence[CorruptionError]) -> None:
    """Print what is damaged, and that the rest is complete."""
    for error in errors[:_DAMAGE]:
        echo(f"damaged: {error}", style="red")
    if len(errors) > _DAMAGE:
        echo(f"... and {len(errors) - _DAMAGE} more; `verify` lists all", style="red")


def statistics_fields(found: ArrayStatistics | None) -> dict[str, object]:
    """Return statistics as JSON fields; all null for a leaf without numbers."""
    names = ("size", "min", "max", "mean", "l2", "nans", "infs")
    return {name: None if found is None else getattr(found, name) for name in names}


def _cells(found: ArrayStatistics | None) -> list[str]:
    if found is None:
        return [""] * 6
    numbers = [human_number(n) for n in (found.min, found.max, found.mean, found.l2)]
    return [*numbers, str(found.nans), str(found.infs)]

"""The command that compares two checkpoints."""

from __future__ import annotations

import typer

from orbit_ckpt._src.checkpointer.inspect import diff as compare
from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.readers import parse_reader
from orbit_ckpt._src.cli.targets import find_checkpoint
from orbit_ckpt._src.pytree.compare.report import LeafChange


def diff(a: str, b: str, values: bool, everything: bool, reader: str | None, as_json: bool) -> None:
    """Compare two checkpoints; exit with 1 if they differ."""
    known = parse_reader(reader)
    first, second = (find_checkpoint(path, reader=known) for path in (a, b))
    found = compare(first, second, values=values, reader=known)
    if as_json:
        print_json(
            "diff",
            a=found.a,
            b=found.b,
            same=found.is_same,
            values_compared=found.has_values,
            common=found.common,
            only_in_a=[_fields(leaf) for leaf in found.only_in_a],
            only_in_b=[_fields(leaf) for leaf in found.only_in_b],
            changed=[_change(change) for change in found.changed],
            notes=[_change(change) for change in found.notes],
        )
    else:
        echo(found.describe(most=None) if everything else str(found))
    if found:
        raise typer.Exit(1)


def _fields(leaf: object) -> dict[str, object]:
    return {name: getattr(leaf, name) for name in ("path", "leaf", "renamed")}


def _change(change: LeafChange) -> dict[str, object]:
    return {"path": change.path, "what": change.what, "detail": change.detail}

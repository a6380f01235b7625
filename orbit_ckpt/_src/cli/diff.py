"""The command that compares two checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import click

from orbit_ckpt._src.arrays.compare import Comparison
from orbit_ckpt._src.cli.executors import open_executor
from orbit_ckpt._src.cli.output import echo, human_number, print_json
from orbit_ckpt._src.cli.readers import parse_reader
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import find_checkpoint
from orbit_ckpt._src.errors import CorruptionError
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.pytree.compare.report import CheckpointDiff, LeafChange, UnmatchedLeaf
from orbit_ckpt._src.pytree.compare.trees import compare_checkpoints
from orbit_ckpt._src.storage.consistent_read import read_consistently
from orbit_ckpt._src.tree.keypath import NamePath
from orbit_ckpt._src.type_handlers.registry import GLOBAL_TYPE_HANDLER_REGISTRY

_SHOWN = 20
_MAX_BYTES = 1 << 28


def diff(  # noqa: PLR0913, PLR0917 - options of a command
    a: str,
    b: str,
    values: bool,
    only: Sequence[str],
    rtol: float,
    atol: float,
    everything: bool,
    workers: int | None,
    dask: str | None,
    reader: str | None,
    as_json: bool,
) -> None:
    """Compare two checkpoints; exit with 1 if they differ, or if one is damaged."""
    known = parse_reader(reader)
    first, second = (find_checkpoint(path, reader=known) for path in (a, b))
    damage: dict[NamePath, CorruptionError] = {}
    bar = progress_bar("Comparing") if values or rtol or atol else nullcontext()
    with open_executor(workers, dask) as executor, bar as progress:
        compare = partial(
            compare_checkpoints,
            registry=GLOBAL_TYPE_HANDLER_REGISTRY,
            values=values or bool(rtol or atol),
            max_bytes=_MAX_BYTES,
            readers=(known, known),
            only=only,
            how=Comparison(rtol, atol, measures=True),
            progress=progress,
            digests=True,
            damage=damage,
            executor=executor,
        )
        found = read_consistently([first, second], compare)
    errors = list(damage.values())
    changed = sorted(found.changed, key=_rank)
    if as_json:
        _print_json(found, changed, errors)
    else:
        _print(found, changed, len(errors), None if everything else _SHOWN)
        for error in errors:
            echo(f"damaged: {error}", style="red")
    if found or damage:
        raise click.exceptions.Exit(1)


def _rank(change: LeafChange) -> tuple[bool, float]:
    """Return a sort key: what is no number first, then the largest relative change."""
    moments = None if change.values is None else change.values.moments
    return (moments is not None, 0.0 if moments is None else -moments.relative)


def _print_json(
    found: CheckpointDiff, changed: Sequence[LeafChange], errors: Sequence[CorruptionError]
) -> None:
    print_json(
        "diff",
        a=found.a,
        b=found.b,
        same=found.is_same and not errors,
        values_compared=found.has_values,
        compared_by_digest=found.by_digest,
        common=found.common,
        only_in_a=[_fields(leaf) for leaf in found.only_in_a],
        only_in_b=[_fields(leaf) for leaf in found.only_in_b],
        changed=[_change(change) for change in changed],
        notes=[_change(change) for change in found.notes],
        damage=[str(error) for error in errors],
    )


def _fields(leaf: UnmatchedLeaf) -> dict[str, object]:
    return {"path": leaf.path, "leaf": leaf.leaf, "renamed": leaf.renamed}


def _change(change: LeafChange) -> dict[str, object]:
    fields: dict[str, object] = {
        "path": change.path,
        "what": change.what,
        "detail": change.detail,
    }
    values = change.values
    if values is not None:
        fields |= {
            "size": values.size,
            "differing": values.differing,
            "max_abs": values.max_abs_difference,
        }
        if (moments := values.moments) is not None:
            measured = (moments.relative, moments.rms, moments.cosine)
            fields |= zip(("relative", "rms", "cosine"), measured, strict=True)
    return fields


def _print(
    found: CheckpointDiff, changed: Sequence[LeafChange], damaged: int, most: int | None
) -> None:
    echo(f"a: {found.a}")
    echo(f"b: {found.b}")
    differing = {change.path for change in changed if change.what != "container"}
    alike = found.common - len(differing) - damaged
    same = f"{found.common} leaves in both, {alike} of them the same"
    if damaged:
        same = f"{same}, {damaged} damaged"
    if not found.has_values and found.by_digest < found.common:
        known = f" ({found.by_digest} by the digests of values)" if found.by_digest else ""
        same = f"{same} in type and shape{known}; --values compares values too"
    elif not found.has_values:
        same = f"{same} by the digests of their values; --values measures the changes"
    echo(same)
    for side, leaves, other in (("a", found.only_in_a, "b"), ("b", found.only_in_b, "a")):
        rows = [
            [leaf.path, leaf.leaf, f"likely {leaf.renamed} in {other}" if leaf.renamed else ""]
            for leaf in leaves
        ]
        _print_section(f"only in {side}", ["leaf", "type", "renamed"], rows, most)
    header = ["leaf", "what", "relative", "rms", "cosine", "change"]
    _print_section("changed from a to b", header, [_row(change) for change in changed], most)
    notes = [[note.path, note.what, note.detail] for note in found.notes]
    _print_section("noted, but no difference", ["leaf", "what", "note"], notes, most)


def _row(change: LeafChange) -> list[str]:
    moments = None if change.values is None else change.values.moments
    numbers = ["", "", ""]
    if moments is not None:
        relative = "from 0" if math.isinf(moments.relative) else f"{100 * moments.relative:.3g} %"
        cosine = "" if moments.cosine is None else f"{moments.cosine:.5f}"
        numbers = [relative, human_number(float(f"{moments.rms:.3g}")), cosine]
    return [change.path, change.what, *numbers, change.detail]


def _print_section(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], most: int | None
) -> None:
    if not rows:
        return
    echo()
    echo(f"{title}: {len(rows)}", style="bold")
    print_table(header, rows[:most], right={"relative", "rms", "cosine"})
    if most is not None and len(rows) > most:
        echo(f"... and {len(rows) - most} more; --all prints them")

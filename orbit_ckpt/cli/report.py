"""A page about a checkpoint or a run, in one file that needs nothing else."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Annotated

import typer

from orbit_ckpt.cli.inspect import step_fields
from orbit_ckpt.cli.leaves import Leaf, list_leaves
from orbit_ckpt.cli.output import (
    JSON_OPTION,
    directory_bytes,
    echo,
    human_bytes,
    plain,
    print_json,
    progress_bar,
)
from orbit_ckpt.cli.runs import AnyStepName, is_run
from orbit_ckpt.cli.values import MEMORY_OPTION, measure_all, statistics_fields
from orbit_ckpt.manager.index import StepIndex
from orbit_ckpt.storage.path import resolve_path

_TEMPLATE = "report.html"
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def report(
    path: str,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page.", metavar="FILE")],
    stats: Annotated[
        bool, typer.Option("--stats/--no-stats", help="Whether to read all values.")
    ] = True,
    memory: Annotated[int, MEMORY_OPTION] = 256,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write a page about a checkpoint, or about a run and its newest step.

    It has a treemap of bytes, a table of leaves with statistics, and the history of a run. All of
    it is in one file, which fetches nothing.
    """
    root = resolve_path(path)
    steps: list[dict[str, object]] | None = None
    checkpoint = root
    if is_run(root):
        index = StepIndex(root, AnyStepName())
        steps = [step_fields(index, info) for info in index.infos()]
        checkpoint = index.path(index.steps()[-1])
    leaves = list_leaves(str(checkpoint))
    rows = _rows(checkpoint, leaves, memory if stats else None)
    nbytes = sum(leaf.nbytes for leaf in leaves)
    what = f"{checkpoint.name}, the newest of {len(steps)} steps: " if steps is not None else ""
    summary = (
        f"{what}{len(leaves)} leaves, {human_bytes(nbytes)} in memory, "
        f"{human_bytes(directory_bytes(checkpoint))} on disk"
    )
    page = make_page({"path": root, "summary": summary, "leaves": rows, "steps": steps})
    output.write_text(page, encoding="utf-8")
    if as_json:
        print_json("report", path=root, output=output, bytes=len(page.encode()), leaves=len(leaves))
    else:
        echo(f"{output}: {human_bytes(len(page.encode()))}")


def _rows(checkpoint: Path, leaves: list[Leaf], memory: int | None) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [
        {
            "name": leaf.name,
            "type": leaf.description,
            "nbytes": leaf.nbytes,
            "sharding": leaf.sharding,
        }
        for leaf in leaves
    ]
    if memory is None:
        return rows
    with progress_bar("Reading") as told:
        found = measure_all(str(checkpoint), leaves, memory * 10**6, told)
    return [
        row | statistics_fields(found[leaf.name]) for row, leaf in zip(rows, leaves, strict=True)
    ]


def make_page(data: dict[str, object]) -> str:
    """Return the page with its data, in which nothing ends the element that holds it."""
    template = importlib.resources.files("orbit_ckpt.cli").joinpath(_TEMPLATE).read_text("utf-8")
    text = json.dumps(plain(data), ensure_ascii=False).translate(_ESCAPES)
    return template.replace("@DATA@", text)

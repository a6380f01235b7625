"""The command that writes a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from orbit_ckpt._src.cli.keeping import Keeping
from orbit_ckpt._src.cli.output import echo, print_json
from orbit_ckpt._src.cli.report.document import PageSource, ReportOptions
from orbit_ckpt._src.cli.report.page import check_output, write_page
from orbit_ckpt._src.cli.targets import select_step
from orbit_ckpt._src.progress import progress_bar
from orbit_ckpt._src.text import human_bytes


def report(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    output: Path,
    stats: bool,
    steps: int,
    verify: bool,
    memory: int,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: int | None,
    metric: str | None,
    lowest: bool | None,
    policy: str | None,
    as_json: bool,
) -> None:
    """Write a page about a checkpoint or a run; exit with 1 if something is damaged."""
    keeping = Keeping(keep_last, keep_every, keep_best, metric, lowest, policy)
    options = ReportOptions(stats, steps, verify, memory, keeping)
    root, file = select_step(path), check_output(output)
    with progress_bar("Reading") as progress:
        data = PageSource(str(root), options).collect(progress)
    nbytes = write_page(data, file)
    damaged = damaged_steps(data)
    if as_json:
        print_json("report", path=root, output=output, bytes=nbytes, damaged=damaged)
    else:
        echo(f"{output}: {human_bytes(nbytes)}")
        for name in damaged:
            echo(f"damaged: {name}", style="red")
    if damaged:
        raise click.exceptions.Exit(1)


def damaged_steps(data: dict[str, object]) -> list[str]:
    """Return the names of the damaged steps of a page; of one checkpoint, its title."""
    steps = cast("list[dict[str, Any]]", data["history"])
    if not steps:
        state = cast("dict[str, object]", data["state"])
        return [str(data["title"])] if state["state"] == "damaged" else []
    return [str(step["name"]) for step in steps if step["state"] == "damaged"]

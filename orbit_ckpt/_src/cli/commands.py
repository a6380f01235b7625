"""What the commands are called with.

A command imports its implementation when it runs: most need JAX, whose import takes a second, and
the help, the version and completion do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orbit_ckpt._src.cli.options import (
    FILTER_OPTION,
    JSON_OPTION,
    KEEP_BEST,
    KEEP_EVERY,
    KEEP_LAST,
    LOWEST,
    MEMORY_OPTION,
    METRIC,
    READER_OPTION,
    RULES_OPTION,
    YES,
    Order,
    Written,
)


def ls(
    path: str,
    keep_last: Annotated[int | None, KEEP_LAST] = None,
    keep_every: Annotated[int | None, KEEP_EVERY] = None,
    keep_best: Annotated[int | None, KEEP_BEST] = None,
    metric: Annotated[str | None, METRIC] = None,
    lowest: Annotated[bool, LOWEST] = False,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """List the steps of a run, or the items of a checkpoint.

    What a run keeps is not recorded in it: with the options of `prune`, a column tells which rule
    would keep each step.
    """
    from orbit_ckpt._src.cli import listing  # noqa: PLC0415 - see above

    listing.ls(path, keep_last, keep_every, keep_best, metric, lowest, as_json)


def tree(
    path: str,
    patterns: Annotated[list[str], FILTER_OPTION] = [],  # noqa: B006 - Typer copies it
    depth: Annotated[
        int | None, typer.Option(min=1, help="Sum up what is below N keys.", metavar="N")
    ] = None,
    sort: Annotated[Order, typer.Option(help="In which order.")] = Order.TREE,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """List the leaves of a checkpoint: names, shapes, dtypes, sizes, shardings."""
    from orbit_ckpt._src.cli import inspect  # noqa: PLC0415 - see above

    inspect.tree(path, patterns, depth, sort, reader, as_json)


def show(
    path: str,
    leaf: str,
    memory: Annotated[int, MEMORY_OPTION] = 256,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Print one leaf: what it is, its statistics, and the values in its corners.

    LEAF is its keys joined by slashes, as `tree` prints it.
    """
    from orbit_ckpt._src.cli import values  # noqa: PLC0415 - see above

    values.show(path, leaf, memory, reader, as_json)


def stats(
    path: str,
    patterns: Annotated[list[str], FILTER_OPTION] = [],  # noqa: B006 - Typer copies it
    fail_on_nan: Annotated[
        bool, typer.Option("--fail-on-nan", help="Exit with 1 if there is a NaN or an infinity.")
    ] = False,
    memory: Annotated[int, MEMORY_OPTION] = 256,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Print least, greatest and mean value, L2 norm, and counts of NaN and Inf, of every leaf.

    NaN and infinite values are left out of all but their counts.
    """
    from orbit_ckpt._src.cli import values  # noqa: PLC0415 - see above

    values.stats(path, patterns, fail_on_nan, memory, reader, as_json)


def diff(
    a: str,
    b: str,
    values: Annotated[bool, typer.Option("--values", help="Compare values too.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all lines, not twenty of every sort.")
    ] = False,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Compare two checkpoints; exits with 1 if they differ."""
    from orbit_ckpt._src.cli import diff as command  # noqa: PLC0415 - see above

    command.diff(a, b, values, everything, reader, as_json)


def verify(
    path: str,
    memory: Annotated[
        int, typer.Option("--memory", min=1, help="About how many MB to hold.", metavar="MB")
    ] = 256,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Read every byte of a checkpoint or a run again; exits with 1 if something is damaged.

    If nothing is, but something is of a version that cannot be verified, it exits with 2.
    """
    from orbit_ckpt._src.cli import check  # noqa: PLC0415 - see above

    check.verify(path, memory, reader, as_json)


def plan(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    rules: Annotated[Path | None, RULES_OPTION] = None,
    like: Annotated[
        str | None, typer.Option(help="Restore what this checkpoint has.", metavar="CHECKPOINT")
    ] = None,
    only: Annotated[list[str], typer.Option(help="Only leaves that match.")] = [],  # noqa: B006 - copied
    skip: Annotated[list[str], typer.Option(help="No leaves that match.")] = [],  # noqa: B006 - copied
    missing: Annotated[
        str, typer.Option(help="Leaves of --like that there are not: error or skip.")
    ] = "error",
    unexpected: Annotated[
        str, typer.Option(help="Leaves that --like does not have: error or ignore.")
    ] = "error",
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Say what a restore would do, leaf by leaf; exits with 1 if it would fail."""
    from orbit_ckpt._src.cli import check  # noqa: PLC0415 - see above

    check.plan(path, rules, like, only, skip, missing, unexpected, as_json)


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
    from orbit_ckpt._src.cli import report  # noqa: PLC0415 - see above

    report.report(path, output, stats, memory, as_json)


def convert(  # noqa: PLR0913, PLR0917 - options of a command
    source: str,
    destination: str,
    to: Annotated[Written, typer.Option(help="The format to write.")],
    rules: Annotated[Path | None, RULES_OPTION] = None,
    cast: Annotated[
        list[str],
        typer.Option(
            help="Dtype for numbers of its kind: 'bfloat16', or 'params/**=bfloat16' for leaves "
            "that match; may be repeated, the first that matches counts.",
            metavar="[PATTERN=]DTYPE",
        ),
    ] = [],  # noqa: B006 - Typer copies it
    only: Annotated[list[str], typer.Option(help="Only leaves that match.")] = [],  # noqa: B006 - copied
    skip: Annotated[list[str], typer.Option(help="No leaves that match.")] = [],  # noqa: B006 - copied
    max_shard_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For a directory of safetensors: begin a new file above N bytes.",
            metavar="N",
        ),
    ] = None,
    memory: Annotated[int, MEMORY_OPTION] = 256,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file or a checkpoint that is there.")
    ] = False,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write a checkpoint anew in another format, whatever format it is in.

    Arrays pass through in parts. What is written appears under its name when it is complete; if it
    cannot be completed nothing is left.
    """
    from orbit_ckpt._src.cli import convert  # noqa: PLC0415 - see above

    convert.convert(
        source,
        destination,
        to,
        rules,
        cast,
        only,
        skip,
        max_shard_bytes,
        memory,
        overwrite,
        reader,
        as_json,
    )


def cp(
    source: str,
    destination: str,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a checkpoint that is there.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Whether to verify the copy.")
    ] = True,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Copy a checkpoint.

    The copy is compared with what was read and verified before it appears under its name; if it
    cannot be completed nothing is left.
    """
    from orbit_ckpt._src.cli import convert  # noqa: PLC0415 - see above

    convert.cp(source, destination, overwrite, check, as_json)


def rm(
    path: str,
    yes: Annotated[bool, YES] = False,
    force: Annotated[bool, typer.Option("--force", help="Pinned checkpoints too.")] = False,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Delete one checkpoint, or what a save or conversion that died has left.

    It is renamed first, so that nobody finds half of it.
    """
    from orbit_ckpt._src.cli import manage  # noqa: PLC0415 - see above

    manage.rm(path, yes, force, as_json)


def prune(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    keep_last: Annotated[int | None, KEEP_LAST] = None,
    keep_every: Annotated[int | None, KEEP_EVERY] = None,
    keep_best: Annotated[int | None, KEEP_BEST] = None,
    metric: Annotated[str | None, METRIC] = None,
    lowest: Annotated[bool, LOWEST] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only say what would be deleted.")
    ] = False,
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Delete the steps of a run that no rule keeps.

    A step stays if one of the options wants it. Pinned steps and the newest one always stay.
    """
    from orbit_ckpt._src.cli import manage  # noqa: PLC0415 - see above

    manage.prune(path, keep_last, keep_every, keep_best, metric, lowest, dry_run, yes, as_json)


def plugins(as_json: Annotated[bool, JSON_OPTION] = False) -> None:
    """List the formats of other programs, and plug-ins; exits with 1 if one cannot be used."""
    from orbit_ckpt._src.cli import plugins  # noqa: PLC0415 - see above

    plugins.plugins(as_json)

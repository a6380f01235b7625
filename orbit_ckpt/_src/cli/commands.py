"""The commands and their options.

A command imports its implementation when it runs: most need JAX, whose import takes a second, while
help, version and completion do not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orbit_ckpt._src.cli.options import (
    CHECKPOINT,
    DESTINATION,
    FILTER_OPTION,
    FIRST,
    JSON_OPTION,
    KEEP_BEST,
    KEEP_EVERY,
    KEEP_LAST,
    LEAF,
    LOWEST,
    MEMORY_OPTION,
    METRIC,
    ONLY_OPTION,
    OUTPUT,
    POLICY,
    READER_OPTION,
    RULES_OPTION,
    RUN,
    RUN_OR_STEP,
    SECOND,
    SKIP_OPTION,
    STEP,
    STEPS,
    STEPS_OPTION,
    VERIFY_OPTION,
    YES,
    Order,
)


def ls(  # noqa: PLR0913, PLR0917 - options of a command
    path: Annotated[str, RUN_OR_STEP],
    keep_last: Annotated[int | None, KEEP_LAST] = None,
    keep_every: Annotated[int | None, KEEP_EVERY] = None,
    keep_best: Annotated[int | None, KEEP_BEST] = None,
    metric: Annotated[str | None, METRIC] = None,
    lowest: Annotated[bool | None, LOWEST] = None,
    policy: Annotated[str | None, POLICY] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """List the steps of a run, or the items of a checkpoint.

    A column shows which of the run's retention rules keeps each step, or, with the options of
    `prune`, which of those would.
    """
    from orbit_ckpt._src.cli import listing  # noqa: PLC0415 - see above

    listing.ls(path, keep_last, keep_every, keep_best, metric, lowest, policy, as_json)


def tree(  # noqa: PLR0913, PLR0917 - options of a command
    path: Annotated[str, CHECKPOINT],
    patterns: Annotated[list[str], FILTER_OPTION] = [],  # noqa: B006 - Typer copies it
    depth: Annotated[
        int | None, typer.Option(min=1, help="Group leaves by their first N keys.", metavar="N")
    ] = None,
    sort: Annotated[Order, typer.Option(help="Sort order.")] = Order.TREE,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns, separated by commas: type, size, share, sharding, chunks, compression, "
            "dtype, shape, bytes.",
            metavar="NAMES",
        ),
    ] = None,
    flat: Annotated[
        bool, typer.Option("--flat", help="List leaves by their whole names instead.")
    ] = False,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Draw a checkpoint's tree: shape, dtype, size and sharding of every leaf."""
    from orbit_ckpt._src.cli import draw  # noqa: PLC0415 - see above

    draw.tree(path, patterns, depth, sort, columns, flat, reader, as_json)


def show(
    path: Annotated[str, CHECKPOINT],
    leaf: Annotated[str, LEAF],
    memory: Annotated[int, MEMORY_OPTION] = 256,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Print one leaf: metadata, statistics and corner values.

    Of several leaves, all that match the pattern.
    """
    from orbit_ckpt._src.cli import show  # noqa: PLC0415 - see above

    show.show(path, leaf, memory, reader, as_json)


def stats(
    path: Annotated[str, CHECKPOINT],
    patterns: Annotated[list[str], FILTER_OPTION] = [],  # noqa: B006 - Typer copies it
    fail_on_nan: Annotated[
        bool, typer.Option("--fail-on-nan", help="Exit with 1 if there is a NaN or an infinity.")
    ] = False,
    memory: Annotated[int, MEMORY_OPTION] = 256,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Print statistics of every leaf.

    These are minimum, maximum, mean, L2 norm, and counts of NaN and infinite values, which are
    excluded from the other statistics.
    """
    from orbit_ckpt._src.cli import values  # noqa: PLC0415 - see above

    values.stats(path, patterns, fail_on_nan, memory, reader, as_json)


def diff(  # noqa: PLR0913, PLR0917 - options of a command
    a: Annotated[str, FIRST],
    b: Annotated[str, SECOND],
    values: Annotated[bool, typer.Option("--values", help="Compare values too.")] = False,
    only: Annotated[list[str], FILTER_OPTION] = [],  # noqa: B006 - Typer copies it
    rtol: Annotated[
        float,
        typer.Option(
            min=0, help="With --values, accept |a - b| <= atol + rtol * |b|.", metavar="X"
        ),
    ] = 0.0,
    atol: Annotated[float, typer.Option(min=0, help="See --rtol.", metavar="X")] = 0.0,
    everything: Annotated[
        bool, typer.Option("--all", help="Print all lines instead of twenty per section.")
    ] = False,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Compare two checkpoints; exit with 1 if they differ.

    Changed values are sorted by their relative change, |a - b| / |a|. Checkpoints of different
    formats compare leaf by leaf, even if one is nested and the other flat.
    """
    from orbit_ckpt._src.cli import diff as command  # noqa: PLC0415 - see above

    command.diff(a, b, values, only, rtol, atol, everything, reader, as_json)


def du(
    path: Annotated[str, RUN_OR_STEP],
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Show what takes the disk space of a run or a checkpoint.

    Bytes that steps share by hard links are counted once in the total.
    """
    from orbit_ckpt._src.cli import usage  # noqa: PLC0415 - see above

    usage.du(path, as_json)


def watch(
    path: Annotated[str, RUN],
    interval: Annotated[
        float, typer.Option(min=0.05, help="Seconds between two looks.", metavar="SECONDS")
    ] = 2.0,
    until: Annotated[
        int | None, typer.Option(help="End when this step exists.", metavar="STEP")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON for every step.")
    ] = False,
) -> None:
    """Follow a run: print steps as they appear, with sizes and metrics.

    On a terminal, the last line shows saves in progress and the time left.
    """
    from orbit_ckpt._src.cli import watch as command  # noqa: PLC0415 - see above

    command.watch(path, interval, until, as_json)


def export(
    path: Annotated[str, CHECKPOINT],
    leaf: Annotated[str, LEAF],
    output: Annotated[Path, OUTPUT],
    cast: Annotated[
        str | None, typer.Option(help="Convert to this dtype, such as float32.", metavar="DTYPE")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file.")
    ] = False,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write a leaf to a .npy file, or several to a .npz file."""
    from orbit_ckpt._src.cli import export as command  # noqa: PLC0415 - see above

    command.export(path, leaf, output, cast, overwrite, reader, as_json)


def pin(paths: Annotated[list[str], STEPS], as_json: Annotated[bool, JSON_OPTION] = False) -> None:
    """Protect steps from deletion."""
    from orbit_ckpt._src.cli import pins  # noqa: PLC0415 - see above

    pins.pin(paths, as_json)


def unpin(
    paths: Annotated[list[str], STEPS], as_json: Annotated[bool, JSON_OPTION] = False
) -> None:
    """Stop protecting steps from deletion."""
    from orbit_ckpt._src.cli import pins  # noqa: PLC0415 - see above

    pins.unpin(paths, as_json)


def verify(
    path: Annotated[str, RUN_OR_STEP],
    memory: Annotated[
        int, typer.Option("--memory", min=1, help="Memory limit, approximate.", metavar="MB")
    ] = 256,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Check every byte of a checkpoint or a run.

    Exit with 1 if any is damaged; with 2 if nothing is damaged but a checkpoint has a version that
    cannot be verified.
    """
    from orbit_ckpt._src.cli import check  # noqa: PLC0415 - see above

    check.verify(path, memory, reader, as_json)


def plan(  # noqa: PLR0913, PLR0917 - options of a command
    path: Annotated[str, CHECKPOINT],
    rules: Annotated[Path | None, RULES_OPTION] = None,
    like: Annotated[
        str | None,
        typer.Option(help="Restore into this checkpoint's structure.", metavar="CHECKPOINT"),
    ] = None,
    only: Annotated[list[str], ONLY_OPTION] = [],  # noqa: B006 - copied
    skip: Annotated[list[str], SKIP_OPTION] = [],  # noqa: B006 - copied
    missing: Annotated[
        str,
        typer.Option(help="For leaves that only --like has: error or skip.", metavar="error|skip"),
    ] = "error",
    unexpected: Annotated[
        str,
        typer.Option(help="For leaves that --like lacks: error or ignore.", metavar="error|ignore"),
    ] = "error",
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Show what a restore would do, leaf by leaf.

    Exit with 1 if it would fail.
    """
    from orbit_ckpt._src.cli import check  # noqa: PLC0415 - see above

    check.plan(path, rules, like, only, skip, missing, unexpected, as_json)


def report(  # noqa: PLR0913, PLR0917 - options of a command
    path: Annotated[str, RUN_OR_STEP],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write.", metavar="FILE")
    ] = Path("report.html"),
    stats: Annotated[
        bool, typer.Option("--stats/--no-stats", help="Read values for statistics.")
    ] = True,
    steps: Annotated[int, STEPS_OPTION] = 10,
    verify: Annotated[bool, VERIFY_OPTION] = False,
    memory: Annotated[int, MEMORY_OPTION] = 256,
    keep_last: Annotated[int | None, KEEP_LAST] = None,
    keep_every: Annotated[int | None, KEEP_EVERY] = None,
    keep_best: Annotated[int | None, KEEP_BEST] = None,
    metric: Annotated[str | None, METRIC] = None,
    lowest: Annotated[bool | None, LOWEST] = None,
    policy: Annotated[str | None, POLICY] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Write an HTML page about a checkpoint or a run.

    The page shows the state of every step, what changes from step to step, and every leaf: size,
    statistics, histogram, sharding. It is one self-contained file. Damage is shown, and makes the
    exit code 1.
    """
    from orbit_ckpt._src.cli import targets  # noqa: PLC0415 - see above
    from orbit_ckpt._src.cli.report import command, document  # noqa: PLC0415 - see above
    from orbit_ckpt._src.cli.runs import Keeping  # noqa: PLC0415 - see above

    keeping = Keeping(keep_last, keep_every, keep_best, metric, lowest, policy)
    options = document.ReportOptions(stats, steps, verify, memory, keeping)
    command.report(str(targets.select_step(path)), output, options, as_json)


def serve(  # noqa: PLR0913, PLR0917 - options of a command
    path: Annotated[str, RUN_OR_STEP],
    host: Annotated[str, typer.Option(help="Address to listen on.", metavar="ADDRESS")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any.")] = 8321,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Look for new steps every S seconds.", metavar="S")
    ] = 10.0,
    stats: Annotated[
        bool, typer.Option("--stats/--no-stats", help="Read values for statistics.")
    ] = True,
    steps: Annotated[int, STEPS_OPTION] = 10,
    verify: Annotated[bool, VERIFY_OPTION] = False,
    memory: Annotated[int, MEMORY_OPTION] = 256,
) -> None:
    """Serve the page of `report` and update it while the run is trained.

    Each new step is read once. By default only programs on this machine can open the page. Ctrl+C
    ends it.
    """
    from orbit_ckpt._src.cli.report import document, serve  # noqa: PLC0415 - see above

    options = document.ReportOptions(stats, steps, verify, memory)
    serve.serve(path, options, host, port, interval)


def convert(  # noqa: PLR0913, PLR0917 - options of a command
    source: Annotated[str, CHECKPOINT],
    destination: Annotated[str, DESTINATION],
    to: Annotated[
        str | None,
        typer.Option(
            help="The format to write: orbit, safetensors, flax, t5x, or a plug-in's. Not needed "
            "for a destination that ends in .safetensors.",
            metavar="FORMAT",
        ),
    ] = None,
    rules: Annotated[Path | None, RULES_OPTION] = None,
    cast: Annotated[
        list[str],
        typer.Option(
            help="Cast numbers of the dtype's kind: 'bfloat16' for all leaves, "
            "'params/**=bfloat16' for matching leaves. May be repeated; the first match counts.",
            metavar="[PATTERN=]DTYPE",
        ),
    ] = [],  # noqa: B006 - Typer copies it
    only: Annotated[list[str], ONLY_OPTION] = [],  # noqa: B006 - copied
    skip: Annotated[list[str], SKIP_OPTION] = [],  # noqa: B006 - copied
    max_shard_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="In a directory of safetensors files, start a new file above N bytes.",
            metavar="N",
        ),
    ] = None,
    inline: Annotated[
        list[str],
        typer.Option(
            help="For t5x: write matching arrays into its file 'checkpoint'.", metavar="PATTERN"
        ),
    ] = [],  # noqa: B006 - copied
    memory: Annotated[int, MEMORY_OPTION] = 256,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing file or checkpoint.")
    ] = False,
    reader: Annotated[str | None, READER_OPTION] = None,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Convert a checkpoint of any format to another format.

    Arrays are copied in parts. The result appears under its name when it is complete; a failed
    conversion leaves nothing behind.
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
        inline,
        memory,
        overwrite,
        reader,
        as_json,
    )


def cp(
    source: Annotated[str, STEP],
    destination: Annotated[str, DESTINATION],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing checkpoint.")
    ] = False,
    check: Annotated[bool, typer.Option("--verify/--no-verify", help="Verify the copy.")] = True,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Copy a checkpoint.

    The copy is compared with the source and verified before it appears under its name; a failed
    copy leaves nothing behind.
    """
    from orbit_ckpt._src.cli import convert  # noqa: PLC0415 - see above

    convert.cp(source, destination, overwrite, check, as_json)


def rm(
    path: Annotated[str, STEP],
    yes: Annotated[bool, YES] = False,
    force: Annotated[bool, typer.Option("--force", help="Delete a pinned checkpoint too.")] = False,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Delete one checkpoint, abandoned save or conversion.

    The directory is renamed first, so that no reader finds half a checkpoint.
    """
    from orbit_ckpt._src.cli import manage  # noqa: PLC0415 - see above

    manage.rm(path, yes, force, as_json)


def prune(  # noqa: PLR0913, PLR0917 - options of a command
    path: Annotated[str, RUN],
    keep_last: Annotated[int | None, KEEP_LAST] = None,
    keep_every: Annotated[int | None, KEEP_EVERY] = None,
    keep_best: Annotated[int | None, KEEP_BEST] = None,
    metric: Annotated[str | None, METRIC] = None,
    lowest: Annotated[bool | None, LOWEST] = None,
    policy: Annotated[str | None, POLICY] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show which steps would be deleted.")
    ] = False,
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON_OPTION] = False,
) -> None:
    """Delete the steps of a run that no rule keeps.

    A step is kept if one of the options keeps it. Pinned steps and the newest step are always kept.
    """
    from orbit_ckpt._src.cli import manage  # noqa: PLC0415 - see above

    manage.prune(
        path, keep_last, keep_every, keep_best, metric, lowest, policy, dry_run, yes, as_json
    )


def plugins(as_json: Annotated[bool, JSON_OPTION] = False) -> None:
    """List supported formats and installed plug-ins.

    Exit with 1 if a plug-in cannot be used.
    """
    from orbit_ckpt._src.cli import plugins  # noqa: PLC0415 - see above

    plugins.plugins(as_json)


COMMANDS = (
    *(ls, tree, show, stats, diff, verify, du, watch, report, serve),
    *(plan, convert, export, cp),
    *(pin, unpin, rm, prune),
    plugins,
)
"""The commands in the order of the help."""

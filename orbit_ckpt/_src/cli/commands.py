"""The commands: arguments, options and help."""

from __future__ import annotations

from pathlib import Path

from click import Argument, Choice, FloatRange, IntRange, Option
from click import Path as FilePath

from orbit_ckpt._src.cli.command import LazyCommand
from orbit_ckpt._src.cli.parameters import (
    CHECKPOINT,
    DESTINATION,
    FIRST,
    JSON,
    KEEPING,
    LEAF,
    MEMORY,
    ONLY,
    ONLY_PART,
    READER,
    READING,
    RULES,
    RUN,
    RUN_OR_STEP,
    SECOND,
    SKIP,
    SOURCE,
    STEP,
    STEP_SOURCE,
    STEPS,
    WORKERS,
    YES,
    flag,
    pattern_option,
    whole_number,
)

LS = LazyCommand(
    "listing:ls",
    RUN_OR_STEP,
    *KEEPING,
    JSON,
    text="""List the steps of a run, or the items of a checkpoint.

    A column shows which of the run's retention rules keeps each step, or, with the options of
    `prune`, which of those would.
    """,
    example="orbit-ckpt ls runs/a --keep-last 3 --keep-best 1 --metric loss",
)

TREE = LazyCommand(
    "draw:tree",
    CHECKPOINT,
    ONLY,
    whole_number("--depth", "Group leaves by their first N keys.", "N"),
    Option(["--sort"], type=Choice(["tree", "name", "size"]), default="tree", help="Sort order."),
    Option(
        ["--columns"],
        help="Columns, separated by commas: type, size, share, sharding, chunks, compression, "
        "dtype, shape, bytes.",
        metavar="NAMES",
    ),
    flag("--flat", "List leaves by their whole names instead."),
    READER,
    JSON,
    text="Draw a checkpoint's tree: shape, dtype, size and sharding of every leaf.",
    example="orbit-ckpt tree runs/a --depth 2 --sort size --columns size,share",
)

SHOW = LazyCommand(
    "show:show",
    CHECKPOINT,
    LEAF,
    MEMORY,
    READER,
    JSON,
    text="""Print one leaf: metadata, statistics and corner values.

    Of several leaves, all that match the pattern.
    """,
    example="orbit-ckpt show runs/a@best:loss 'params/*/kernel'",
)

STATS = LazyCommand(
    "values:stats",
    CHECKPOINT,
    ONLY,
    flag("--fail-on-nan", "Exit with 1 if there is a NaN or an infinity."),
    MEMORY,
    READER,
    JSON,
    text="""Print statistics of every leaf.

    These are minimum, maximum, mean, L2 norm, and counts of NaN and infinite values, which are
    excluded from the other statistics.
    """,
    example="orbit-ckpt stats runs/a --only 'params/**' --fail-on-nan",
)

DIFF = LazyCommand(
    "diff:diff",
    FIRST,
    SECOND,
    flag("--values", "Compare values too."),
    ONLY,
    Option(
        ["--rtol"],
        type=FloatRange(min=0),
        default=0.0,
        help="With --values, accept |a - b| <= atol + rtol * |b|.",
        metavar="X",
    ),
    Option(["--atol"], type=FloatRange(min=0), default=0.0, help="See --rtol.", metavar="X"),
    flag("everything --all", "Print all lines instead of twenty per section."),
    READER,
    JSON,
    text="""Compare two checkpoints; exit with 1 if they differ.

    Changed values are sorted by their relative change, |a - b| / |a|. Checkpoints of different
    formats compare leaf by leaf, even if one is nested and the other flat.
    """,
    example="orbit-ckpt diff runs/a@1000 runs/a --values --rtol 1e-3",
)

VERIFY = LazyCommand(
    "check:verify",
    RUN_OR_STEP,
    whole_number("--memory", "Memory limit, approximate.", "MB", default=256),
    *WORKERS,
    READER,
    JSON,
    text="""Check every byte of a checkpoint or a run.

    Exit with 1 if any is damaged; with 2 if nothing is damaged but a checkpoint has a version that
    cannot be verified.
    """,
    example="orbit-ckpt verify runs/a@latest",
)

DU = LazyCommand(
    "usage:du",
    RUN_OR_STEP,
    JSON,
    text="""Show what takes the disk space of a run or a checkpoint.

    Bytes that steps share by hard links are counted once in the total.
    """,
    example="orbit-ckpt du runs/a",
)

WATCH = LazyCommand(
    "watch:watch",
    RUN,
    Option(
        ["--interval"],
        type=FloatRange(min=0.05),
        default=2.0,
        help="Seconds between two looks.",
        metavar="SECONDS",
    ),
    Option(["--until"], type=int, help="End when this step exists.", metavar="STEP"),
    flag("as_json --json", "Print one line of JSON for every step."),
    text="""Follow a run: print steps as they appear, with sizes and metrics.

    On a terminal, the last line shows saves in progress and the time left.
    """,
    example="orbit-ckpt watch runs/a --until 10000",
)

REPORT = LazyCommand(
    "report.command:report",
    RUN_OR_STEP,
    Option(
        ["--output", "-o"],
        type=FilePath(path_type=Path),
        default=Path("report.html"),
        help="File to write.",
        metavar="FILE",
    ),
    *READING,
    *KEEPING,
    JSON,
    text="""Write an HTML page about a checkpoint or a run.

    The page shows the state of every step, what changes from step to step, and every leaf: size,
    statistics, histogram, sharding. It is one self-contained file. Damage is shown, and makes the
    exit code 1.
    """,
    example="orbit-ckpt report runs/a --output report.html",
)

SERVE = LazyCommand(
    "report.serve:serve",
    RUN_OR_STEP,
    Option(["--host"], default="127.0.0.1", help="Address to listen on.", metavar="ADDRESS"),
    Option(["--port"], type=IntRange(0, 65535), default=8321, help="Port; 0 for any."),
    Option(
        ["interval_s", "--interval"],
        type=FloatRange(min=0.1),
        default=10.0,
        help="Look for new steps every S seconds.",
        metavar="S",
    ),
    *READING,
    text="""Serve the page of `report` and update it while the run is trained.

    Each new step is read once. By default only programs on this machine can open the page. Ctrl+C
    ends it.
    """,
    example="orbit-ckpt serve runs/a --port 8080",
)

PLAN = LazyCommand(
    "check:plan",
    CHECKPOINT,
    RULES,
    Option(
        ["--like"],
        help="Restore into this checkpoint's structure.",
        metavar="CHECKPOINT",
    ),
    ONLY_PART,
    SKIP,
    Option(
        ["--missing"],
        type=Choice(["error", "skip"]),
        default="error",
        help="For leaves that only --like has.",
    ),
    Option(
        ["--unexpected"],
        type=Choice(["error", "ignore"]),
        default="error",
        help="For leaves that --like lacks.",
    ),
    JSON,
    text="""Show what a restore would do, leaf by leaf.

    Exit with 1 if it would fail.
    """,
    example="orbit-ckpt plan runs/a --rules rules.toml --like runs/b",
)

CONVERT = LazyCommand(
    "convert:convert",
    SOURCE,
    DESTINATION,
    Option(
        ["--to"],
        help="The format to write: orbit, safetensors, flax, t5x, or a plug-in's. Not needed for a "
        "destination that ends in .safetensors.",
        metavar="FORMAT",
    ),
    RULES,
    Option(
        ["--cast"],
        multiple=True,
        help="Cast numbers of the dtype's kind: 'bfloat16' for all leaves, 'params/**=bfloat16' "
        "for matching leaves. May be repeated; the first match counts.",
        metavar="[PATTERN=]DTYPE",
    ),
    ONLY_PART,
    SKIP,
    whole_number(
        "--max-shard-bytes",
        "In a directory of safetensors files, start a new file above N bytes.",
        "N",
    ),
    pattern_option("--inline", "For t5x: write matching arrays into its file 'checkpoint'."),
    MEMORY,
    flag("--overwrite", "Replace an existing file or checkpoint."),
    READER,
    JSON,
    text="""Convert a checkpoint of any format to another format.

    Arrays are copied in parts. The result appears under its name when it is complete; a failed
    conversion leaves nothing behind.
    """,
    example="orbit-ckpt convert runs/a@best:loss model.safetensors --to safetensors "
    "--only 'params/**'",
)

EXPORT = LazyCommand(
    "export:export",
    CHECKPOINT,
    LEAF,
    Argument(
        ["output"],
        type=FilePath(path_type=Path),
        help="The file to write: .npy or .npz.",
        metavar="FILE",
    ),
    Option(
        ["cast_to", "--cast"],
        help="Convert to this dtype, such as float32.",
        metavar="DTYPE",
    ),
    flag("--overwrite", "Replace an existing file."),
    READER,
    JSON,
    text="Write a leaf to a .npy file, or several to a .npz file.",
    example="orbit-ckpt export runs/a params/embed/kernel embed.npy --cast float32",
)

CP = LazyCommand(
    "convert:cp",
    STEP_SOURCE,
    DESTINATION,
    flag("--overwrite", "Replace an existing checkpoint."),
    Option(["check", "--verify/--no-verify"], default=True, help="Verify the copy."),
    JSON,
    text="""Copy a checkpoint.

    The copy is compared with the source and verified before it appears under its name; a failed
    copy leaves nothing behind.
    """,
    example="orbit-ckpt cp runs/a@best:loss backup/best",
)

PIN = LazyCommand(
    "pins:pin",
    STEPS,
    JSON,
    text="Protect steps from deletion.",
    example="orbit-ckpt pin runs/a@best:loss",
)

UNPIN = LazyCommand(
    "pins:unpin",
    STEPS,
    JSON,
    text="Stop protecting steps from deletion.",
    example="orbit-ckpt unpin runs/a@1000",
)

RM = LazyCommand(
    "manage:rm",
    STEP,
    YES,
    flag("--force", "Delete a pinned checkpoint too."),
    JSON,
    text="""Delete one checkpoint, abandoned save or conversion.

    The directory is renamed first, so that no reader finds half a checkpoint.
    """,
    example="orbit-ckpt rm runs/a@1000",
)

PRUNE = LazyCommand(
    "manage:prune",
    RUN,
    *KEEPING,
    flag("--dry-run -n", "Only show which steps would be deleted."),
    YES,
    JSON,
    text="""Delete the steps of a run that no rule keeps.

    A step is kept if one of the options keeps it. Pinned steps and the newest step are always kept.
    """,
    example="orbit-ckpt prune runs/a --keep-last 3 --keep-every 1000 --dry-run",
)

PLUGINS = LazyCommand(
    "plugins:plugins",
    JSON,
    text="""List supported formats and installed plug-ins.

    Exit with 1 if a plug-in cannot be used.
    """,
    example="orbit-ckpt plugins",
)

COMMANDS = (
    *(LS, TREE, SHOW, STATS, DIFF, VERIFY, DU, WATCH, REPORT, SERVE),
    *(PLAN, CONVERT, EXPORT, CP),
    *(PIN, UNPIN, RM, PRUNE),
    PLUGINS,
)
"""The commands in the order of the help."""

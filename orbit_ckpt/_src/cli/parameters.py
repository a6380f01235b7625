"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path

from click import Argument, IntRange, Option
from click import Path as FilePath

from orbit_ckpt._src.cli.completion import complete_file, complete_leaf, complete_path

_STEP_OF_RUN = "RUN@STEP, RUN@latest or RUN@best:METRIC."


def path_argument(name: str, metavar: str, text: str, *, many: bool = False) -> Argument:
    """Return an argument that names checkpoints or a run."""
    return Argument(
        [name],
        metavar=metavar,
        help=text,
        nargs=-1 if many else 1,
        required=True,
        shell_complete=complete_path,
    )


def flag(declaration: str, text: str) -> Option:
    """Return an option without a value, from its name and the options, separated by spaces."""
    return Option(declaration.split(), is_flag=True, help=text)


def whole_number(
    declaration: str, text: str, metavar: str, *, least: int = 1, default: int | None = None
) -> Option:
    """Return an option that takes an integer, from its options, separated by spaces."""
    kind = IntRange(min=least)
    return Option(declaration.split(), type=kind, default=default, help=text, metavar=metavar)


def pattern_option(declaration: str, text: str) -> Option:
    """Return an option that takes patterns of leaves, from its options, separated by spaces."""
    return Option(
        declaration.split(),
        multiple=True,
        help=f"{text} May be repeated.",
        metavar="PATTERN",
        shell_complete=complete_leaf,
    )


_WHOLE = f"A checkpoint; a run means its newest step. Or {_STEP_OF_RUN}"
CHECKPOINT = path_argument("path", "PATH", _WHOLE)
SOURCE = path_argument("source", "PATH", _WHOLE)
FIRST = path_argument("a", "A", _WHOLE)
SECOND = path_argument("b", "B", "Another.")
RUN_OR_STEP = path_argument("path", "PATH", f"A run or a checkpoint. Or {_STEP_OF_RUN}")
STEP = path_argument("path", "STEP", f"A checkpoint. Or {_STEP_OF_RUN}")
STEP_SOURCE = path_argument("source", "STEP", f"A checkpoint. Or {_STEP_OF_RUN}")
STEPS = path_argument("paths", "STEP...", f"Steps of runs. Each may be {_STEP_OF_RUN}", many=True)
RUN = path_argument("path", "RUN", "The directory with the steps of a run.")
LEAF = Argument(
    ["leaf"],
    help="A leaf's keys joined by slashes, or a pattern such as 'params/**'.",
    metavar="LEAF",
    shell_complete=complete_leaf,
)
DESTINATION = Argument(
    ["destination"],
    help="The path to write.",
    metavar="DESTINATION",
    shell_complete=complete_file,
)

JSON = flag("as_json --json", "Print JSON; the reference lists the fields.")
YES = flag("--yes -y", "Do not ask for confirmation.")
ONLY = pattern_option("--only --filter -f", "Select leaves that match, such as 'params/**'.")
ONLY_PART = pattern_option("--only", "Select leaves that match, such as 'params/**'.")
SKIP = pattern_option("--skip", "Omit leaves that match.")
MEMORY = whole_number("--memory", "Memory limit for values, approximate.", "MB", default=256)
READER = Option(
    ["--reader"],
    help="Read as T5X or TensorFlow with options, such as t5x:step=5,uint16=as_bfloat16.",
    metavar="FORMAT[:OPTION=VALUE,...]",
)
RULES = Option(
    ["--rules"],
    type=FilePath(path_type=Path),
    help="Rule file, TOML or JSON; see the reference.",
    metavar="FILE",
)
WORKERS = (
    whole_number("--workers", "Work in N processes.", "N"),
    Option(
        ["--dask"],
        help="Work in a Dask cluster, whose workers see the same paths; its scheduler's address.",
        metavar="ADDRESS",
    ),
)
"""Where the work is done."""

KEEPING = (
    whole_number("--keep-last", "Keep the newest N steps.", "N", least=0),
    whole_number("--keep-every", "Keep the multiples of K.", "K"),
    whole_number("--keep-best", "Keep the N steps with the best --metric.", "N", least=0),
    Option(["--metric"], help="Metric that --keep-best ranks by.", metavar="NAME"),
    Option(
        ["--lowest/--highest"],
        default=None,
        help="Which value of the metric is the best; judged by its name if not given, as for "
        "@best.",
    ),
    Option(["--policy"], help="Keep what a policy of an installed package keeps.", metavar="NAME"),
)
"""The rules that keep steps of a run."""

READING = (
    Option(["--stats/--no-stats"], default=True, help="Read values for statistics."),
    whole_number("--steps", "Read the values of the newest N steps.", "N", default=10),
    flag("--verify", "Verify every byte of these steps too."),
    MEMORY,
)
"""What the report page is about."""

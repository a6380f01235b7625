"""Options shared by several commands, and their choices."""

from __future__ import annotations

from enum import StrEnum

import typer

from orbit_ckpt._src.cli.completion import complete_leaf, complete_path

_STEP_OF_RUN = "RUN@STEP, RUN@latest or RUN@best:METRIC."

CHECKPOINT = typer.Argument(
    help=f"A checkpoint; a run means its newest step. Or {_STEP_OF_RUN}",
    metavar="PATH",
    autocompletion=complete_path,
)
FIRST = typer.Argument(
    help=f"A checkpoint; a run means its newest step. Or {_STEP_OF_RUN}",
    metavar="A",
    autocompletion=complete_path,
)
SECOND = typer.Argument(help="Another.", metavar="B", autocompletion=complete_path)
RUN_OR_STEP = typer.Argument(
    help=f"A run or a checkpoint. Or {_STEP_OF_RUN}", metavar="PATH", autocompletion=complete_path
)
STEP = typer.Argument(
    help=f"A checkpoint. Or {_STEP_OF_RUN}", metavar="STEP", autocompletion=complete_path
)
STEPS = typer.Argument(
    help=f"Steps of runs. Each may be {_STEP_OF_RUN}",
    metavar="STEP...",
    autocompletion=complete_path,
)
RUN = typer.Argument(help="The directory with the steps of a run.", metavar="RUN")
LEAF = typer.Argument(
    help="A leaf's keys joined by slashes, or a pattern such as 'params/**'.",
    metavar="LEAF",
    autocompletion=complete_leaf,
)
DESTINATION = typer.Argument(help="The path to write.", metavar="DESTINATION")
OUTPUT = typer.Argument(help="The file to write: .npy or .npz.", metavar="FILE")

JSON_OPTION = typer.Option("--json", help="Print JSON; the reference lists the fields.")
FILTER_OPTION = typer.Option(
    "--only",
    "--filter",
    "-f",
    help="Select leaves that match, such as 'params/**'; may be repeated.",
    metavar="PATTERN",
    autocompletion=complete_leaf,
)
ONLY_OPTION = typer.Option(
    help="Select leaves that match, such as 'params/**'; may be repeated.",
    metavar="PATTERN",
    autocompletion=complete_leaf,
)
SKIP_OPTION = typer.Option(
    help="Omit leaves that match; may be repeated.",
    metavar="PATTERN",
    autocompletion=complete_leaf,
)
KEEP_LAST = typer.Option("--keep-last", min=0, help="Keep the newest N steps.", metavar="N")
KEEP_EVERY = typer.Option("--keep-every", min=1, help="Keep the multiples of K.", metavar="K")
KEEP_BEST = typer.Option(
    "--keep-best", min=0, help="Keep the N steps with the best --metric.", metavar="N"
)
METRIC = typer.Option("--metric", help="Metric that --keep-best ranks by.", metavar="NAME")
LOWEST = typer.Option(
    "--lowest/--highest",
    help="Which value of the metric is the best; judged by its name if not given, as for @best.",
)
POLICY = typer.Option(help="Keep what a policy of an installed package keeps.", metavar="NAME")
MEMORY_OPTION = typer.Option(
    "--memory", min=1, help="Memory limit for values, approximate.", metavar="MB"
)
READER_OPTION = typer.Option(
    help="Read as T5X or TensorFlow with options, such as t5x:step=5,uint16=as_bfloat16.",
    metavar="FORMAT[:OPTION=VALUE,...]",
)
RULES_OPTION = typer.Option(help="Rule file, TOML or JSON; see the reference.", metavar="FILE")
STEPS_OPTION = typer.Option(
    "--steps", min=1, help="Read the values of the newest N steps.", metavar="N"
)
VERIFY_OPTION = typer.Option("--verify", help="Verify every byte of these steps too.")
YES = typer.Option("--yes", "-y", help="Do not ask for confirmation.")


class Order(StrEnum):
    """Orders of leaves."""

    TREE = "tree"
    NAME = "name"
    SIZE = "size"

"""Options shared by several commands, and their choices."""

from __future__ import annotations

from enum import StrEnum

import typer

JSON_OPTION = typer.Option("--json", help="Print JSON; the reference lists the fields.")
FILTER_OPTION = typer.Option(
    "--filter", "-f", help="Select leaves that match, such as 'params/**'; may be repeated."
)
KEEP_LAST = typer.Option("--keep-last", min=0, help="Keep the newest N steps.", metavar="N")
KEEP_EVERY = typer.Option("--keep-every", min=1, help="Keep the multiples of K.", metavar="K")
KEEP_BEST = typer.Option(
    "--keep-best", min=0, help="Keep the N steps with the best --metric.", metavar="N"
)
METRIC = typer.Option("--metric", help="Metric that --keep-best ranks by.", metavar="NAME")
LOWEST = typer.Option("--lowest", help="Treat the lowest metric as the best.")
POLICY = typer.Option(help="Keep what a policy of an installed package keeps.", metavar="NAME")
MEMORY_OPTION = typer.Option(
    "--memory", min=1, help="Memory limit for values, approximate.", metavar="MB"
)
READER_OPTION = typer.Option(
    help="Read as T5X or TensorFlow with options, such as t5x:step=5,uint16=as_bfloat16.",
    metavar="FORMAT[:OPTION=VALUE,...]",
)
RULES_OPTION = typer.Option(help="Rule file, TOML or JSON; see the reference.", metavar="FILE")
YES = typer.Option("--yes", "-y", help="Do not ask for confirmation.")


class Order(StrEnum):
    """Orders of leaves."""

    TREE = "tree"
    NAME = "name"
    SIZE = "size"

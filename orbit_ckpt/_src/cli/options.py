"""Options that several commands have, and their choices."""

from __future__ import annotations

from enum import StrEnum

import typer

JSON_OPTION = typer.Option("--json", help="Print JSON, see the reference.")
FILTER_OPTION = typer.Option(
    "--filter", "-f", help="Only leaves that match, such as 'params/**'; may be repeated."
)
KEEP_LAST = typer.Option("--keep-last", min=0, help="Keep the newest N steps.")
KEEP_EVERY = typer.Option("--keep-every", min=1, help="Keep the multiples of K.")
KEEP_BEST = typer.Option("--keep-best", min=0, help="Keep the N steps of the best --metric.")
METRIC = typer.Option("--metric", help="Name of the metric that --keep-best ranks by.")
LOWEST = typer.Option("--lowest", help="The lowest metric is the best, not the highest.")
MEMORY_OPTION = typer.Option(
    "--memory", min=1, help="About how many MB of values to hold at once.", metavar="MB"
)
READER_OPTION = typer.Option(
    help="Read as T5X's or TensorFlow's with options, such as t5x:step=5,uint16=as_bfloat16.",
    metavar="FORMAT[:OPTION=VALUE,...]",
)
RULES_OPTION = typer.Option(help="Rules, TOML or JSON; see the reference.", metavar="FILE")
YES = typer.Option("--yes", "-y", help="Do not ask.")


class Order(StrEnum):
    """How leaves are sorted."""

    TREE = "tree"
    NAME = "name"
    SIZE = "size"


class Written(StrEnum):
    """The formats that can be written."""

    ORBIT = "orbit"
    T5X = "t5x"
    SAFETENSORS = "safetensors"
    FLAX = "flax"

"""Output of commands: lines, numbers, JSON, questions."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from orbit_ckpt._src.guards import is_list_or_tuple, is_mapping
from orbit_ckpt._src.storage.directories import directory_of
from orbit_ckpt._src.text import visible

SCHEMA = 1
"""Version of the JSON that commands print; fields are added without changing it."""


def is_coloured() -> bool:
    """Return whether output goes to a terminal, or is to be coloured all the same."""
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def echo(text: str = "", *, style: str | None = None) -> None:
    """Print lines, in colour on a terminal."""
    text = visible(text)
    if not is_coloured():
        sys.stdout.write(f"{text}\n")
        return
    from rich.console import Console  # noqa: PLC0415 - an extra that only terminals need
    from rich.text import Text  # noqa: PLC0415 - see above

    console = Console(highlight=False, soft_wrap=True, emoji=False, markup=False)
    console.print(Text(text, style=style or ""), soft_wrap=True)


def print_json(command: str, **fields: object) -> None:
    """Print a command's result as one JSON object."""
    document = {"schema": SCHEMA, "command": command, **fields}
    sys.stdout.write(json.dumps(plain(document), indent=2, ensure_ascii=False) + "\n")


def plain(value: object) -> object:
    """Convert a value for JSON; numbers that are not finite become strings."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _name_of(value)
    if is_mapping(value):
        return {str(k): plain(v) for k, v in value.items()}
    if is_list_or_tuple(value):
        return list(map(plain, value))
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return _plain_array(value)
    return str(value)


def _plain_array(value: Any) -> object:  # of numpy, whose import takes longer than most commands
    if value.dtype.kind in "biuf":
        return plain(value.tolist())
    if value.dtype.kind in "cmMSU" or value.ndim:
        return plain([str(v) for v in value]) if value.ndim == 1 else str(value)
    return plain(float(value))


def _name_of(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def human_number(value: object) -> str:
    """Format a number for a table."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def stored_bytes(path: Path) -> int | None:
    """Return the size of a file, or of all files below a directory; None in a store."""
    return directory_of(path).nbytes()


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation of a deletion.

    Raises:
        click.exceptions.Exit: The answer is no.
        ValueError: There is no terminal to ask on.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise ValueError(f"{question} Nobody can be asked here; pass --yes.")
    try:
        if click.confirm(question):
            return
    except click.Abort:
        echo()
    raise click.exceptions.Exit(2)


def print_unfinished(names: Sequence[str]) -> None:
    """Print the remains of unfinished saves."""
    for name in names:
        echo(f"unfinished: {name}", style="yellow")


def format_time(time: datetime) -> str:
    """Format a time in UTC."""
    return time.astimezone(UTC).isoformat(" ", "seconds").removesuffix("+00:00")

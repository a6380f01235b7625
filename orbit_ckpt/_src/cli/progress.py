"""How far long work has come, for a person at a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


@contextlib.contextmanager
def progress_bar(title: str) -> Generator[Callable[[int, int], None]]:
    """Show bytes, rate and time left if standard error is a terminal.

    What is yielded takes the bytes done and the bytes there are.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None  # noqa: ARG005 - nobody is looking
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)

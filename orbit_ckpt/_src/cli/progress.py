"""Progress of long work on a terminal."""

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

    The context yields a function of the bytes done and the total bytes.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda done, total: None  # noqa: ARG005 - no terminal
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

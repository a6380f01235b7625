"""One HTML file about a checkpoint or a run, which fetches nothing."""

from __future__ import annotations

import html
import json
from functools import cache
from pathlib import Path
from typing import cast

from orbit_ckpt._src.cli.output import plain
from orbit_ckpt._src.cli.report.document import PageSource, ReportOptions
from orbit_ckpt._src.cli.report.measure import Progress, no_progress
from orbit_ckpt._src.errors import StorageError
from orbit_ckpt._src.storage.path import PathLike, resolve_path, storage_errors

_ASSETS = Path(__file__).with_name("assets")
_SCRIPTS = (
    *("base", "data", "state", "tip", "summary", "charts", "steps", "timeline", "heatmap"),
    *("treemap", "table", "leaf", "compare", "main"),
)
"""The page's scripts, in the order in which they use each other."""


def write_report(
    path: PathLike,
    output: PathLike,
    *,
    statistics: bool = True,
    steps: int = 10,
    verify: bool = False,
    memory_mb: int = 256,
    progress: Progress = no_progress,
) -> int:
    """Write a page about a checkpoint or a run; return its size in bytes.

    Damage is shown on the page, not raised.

    Args:
        path: The checkpoint or run.
        output: The file to write; an existing one is replaced.
        statistics: Whether to read values.
        steps: Number of newest steps of a run whose values are read.
        verify: Whether to verify every byte of these steps too.
        memory_mb: Approximate number of MB of values to hold at once.
        progress: Called with the bytes of values read so far and their total.

    Raises:
        CheckpointNotFoundError: There is no checkpoint.
        StorageError: The page cannot be written.
    """
    file = check_output(output)
    options = ReportOptions(statistics, steps, verify, memory_mb)
    return write_page(PageSource(path, options).collect(progress), file)


def check_output(output: PathLike) -> Path:
    """Return the file to write, checked before anything is read.

    Raises:
        StorageError: No file can be written there.
    """
    file = resolve_path(output)
    if file.is_dir() or not file.parent.is_dir():
        raise StorageError(f"{file}: no file can be written there. Give one in a directory.")
    return file


def write_page(data: dict[str, object], file: Path) -> int:
    """Write the page; return its size in bytes."""
    page = render(data)
    with storage_errors(file, "writing the report", "Check that its directory may be written."):
        file.write_bytes(page)
    return len(page)


def render(data: dict[str, object], *, version: str | None = None) -> bytes:
    """Return the page that shows the result of `PageSource.collect`.

    Args:
        data: The result.
        version: For a live page what the server gives until the page changes, None for a file.
    """
    data = dict(data)
    blobs = {
        f"matrix-{name}": text
        for name, text in cast("dict[str, str]", data.pop("matrices")).items()
    }
    for step, (edges, counts) in cast("dict[int, tuple[str, str]]", data.pop("histograms")).items():
        blobs |= {f"edges-{step}": edges, f"counts-{step}": counts}
    text = json.dumps(plain(data | {"live": version}), separators=(",", ":"))
    for character in "<>&":  # so that no name closes the element that holds the JSON
        text = text.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "title": html.escape(str(data["title"]).encode("utf-8", "replace").decode()),
        "policy": "" if version is None else "; connect-src 'self'",
        "style": _asset("page.css"),
        "data": text,
        "blobs": "\n".join(
            f'<script type="text/plain" id="{name}">{blob}</script>' for name, blob in blobs.items()
        ),
        "script": _script(is_live=version is not None),
    }
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(_template())).encode()


@cache
def _template() -> list[str]:
    """Return the texts of the page and, between them, the names of what comes there."""
    return [part for text in _asset("page.html").split("{{") for part in text.split("}}")]


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _script(*, is_live: bool) -> str:
    names = (*_SCRIPTS, "live") if is_live else _SCRIPTS
    return "\n".join(_asset(f"{name}.js") for name in names)

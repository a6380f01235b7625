"""One HTML page about a checkpoint or a run: a treemap, a table of leaves, charts.

The page is a single file that fetches nothing. Its data is JSON in the page, see `report_data`; the
template is `report.html`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from orbit_ckpt._src.arrays.statistics import ArrayStatistics
from orbit_ckpt._src.checkpointer.inspect import metadata
from orbit_ckpt._src.cli.inspect import Leaf, list_leaves
from orbit_ckpt._src.cli.listing import step_fields
from orbit_ckpt._src.cli.output import (
    echo,
    human_bytes,
    plain,
    print_json,
    progress_bar,
    stored_bytes,
)
from orbit_ckpt._src.cli.runs import list_run
from orbit_ckpt._src.cli.values import measure_all
from orbit_ckpt._src.errors import CheckpointNotFoundError, StorageError
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt._src.storage.path import PathLike, resolve_local, resolve_path, storage_errors
from orbit_ckpt._src.version import __version__

COLUMNS = (
    *("name", "kind", "dtype", "shape", "nbytes", "sharding"),
    *("min", "max", "mean", "l2", "nans", "infs"),
)
"""Fields of a leaf, in the order of its row in the page."""

_TEMPLATE = Path(__file__).with_suffix(".html")
_EXACT = 2**53
"""Integers beyond this are not exact in a browser, so that they are texts there."""


def report(path: str, output: Path, stats: bool, memory: int, as_json: bool) -> None:
    """Write a page about a checkpoint, or about a run and its newest step."""
    with progress_bar("Reading") as progress:
        nbytes = write_report(path, output, statistics=stats, memory_mb=memory, progress=progress)
    if as_json:
        print_json("report", path=resolve_path(path), output=output, bytes=nbytes)
    else:
        echo(f"{output}: {human_bytes(nbytes)}")


def write_report(
    path: PathLike,
    output: PathLike,
    *,
    statistics: bool = True,
    memory_mb: int = 256,
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005 - shows nothing
) -> int:
    """Write a page about a checkpoint or a run; return its size in bytes.

    Args:
        path: The checkpoint or run.
        output: The file to write; an existing one is replaced.
        statistics: Whether to read the values.
        memory_mb: Approximate number of MB of values to hold at once.
        progress: Called with the bytes of values read so far and their total.

    Raises:
        CheckpointNotFoundError: There is no checkpoint.
        CorruptionError: A leaf is damaged; the message names it.
        StorageError: The page cannot be written.
    """
    file = resolve_path(output)
    if file.is_dir() or not file.parent.is_dir():  # else reported only after reading everything
        raise StorageError(f"{file}: no file can be written there. Give one in a directory.")
    data = report_data(path, statistics=statistics, memory_mb=memory_mb, progress=progress)
    page = render(data)
    with storage_errors(file, "writing the report", "Check that its directory may be written."):
        file.write_bytes(page)
    return len(page)


def render(data: dict[str, object]) -> bytes:
    """Return the page that shows the result of `report_data`."""
    text = json.dumps(plain(data), separators=(",", ":"))
    for character in "<>&":  # so that no name closes the element that holds the JSON
        text = text.replace(character, f"\\u{ord(character):04x}")
    title = html.escape(str(data["title"]).encode("utf-8", "replace").decode())
    before, after = _TEMPLATE.read_text(encoding="utf-8").split("{{data}}")
    return (before.replace("{{title}}", title) + text + after).encode()


def report_data(
    path: PathLike,
    *,
    statistics: bool = True,
    memory_mb: int = 256,
    progress: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005 - shows nothing
) -> dict[str, object]:
    """Return the data of a page; see `write_report` for the arguments.

    Returns:
        `columns` and `leaves`, a row for each; `history` of a run, an object for each step; and
        the facts shown at the top.
    """
    root = resolve_local(path)
    history = _history(root)
    shown = Path(str(history[-1]["path"])) if history else root
    leaves = list_leaves(str(shown))
    found = measure_all(str(shown), leaves, memory_mb * 10**6, progress) if statistics else {}
    document = metadata(shown)
    return {
        "title": f"{root.parent.name}/{root.name}" if root.name.isdecimal() else root.name,
        "path": str(root),
        "shown": shown.name if history else None,
        "version": __version__,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "stored_bytes": stored_bytes(shown),
        "custom_metadata": document.custom_metadata,
        "has_statistics": statistics,
        "columns": COLUMNS,
        "leaves": [_row(leaf, found.get(leaf.keys)) for leaf in leaves],
        "history": history,
    }


def _history(root: Path) -> list[dict[str, object]]:
    try:
        entries = list_run(locate(root))
    except CheckpointNotFoundError:
        return []  # reported when it is opened
    steps = [step_fields(entry) for entry in entries or ()]
    return [step | {"metrics": step["metrics"] or {}} for step in steps]


def _row(leaf: Leaf, found: ArrayStatistics | None) -> list[object]:
    numbers = (found.min, found.max, found.mean, found.l2) if found else (None,) * 4
    counts = (found.nans, found.infs) if found else (None, None)
    return [
        *(leaf.name, leaf.kind, leaf.dtype, leaf.shape, leaf.nbytes, leaf.sharding),
        *map(_exact, numbers),
        *counts,
    ]


def _exact(number: object) -> object:
    return str(number) if isinstance(number, int) and abs(number) > _EXACT else number

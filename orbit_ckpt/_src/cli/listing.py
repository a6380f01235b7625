"""The steps of a run as `ls` and `report` show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orbit_ckpt._src.cli.output import (
    format_time,
    human_bytes,
    human_number,
    print_json,
    print_unfinished,
)
from orbit_ckpt._src.cli.runs import (
    UNKNOWN_TIME,
    Keeping,
    ListedStep,
    list_run,
    unfinished_saves,
)
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import select_step
from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt._src.formats.locate import locate


def ls(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: int | None,
    metric: str | None,
    lowest: bool,
    policy: str | None,
    as_json: bool,
) -> None:
    """List the steps of a run, or the items of a checkpoint."""
    root = select_step(path, quiet=True)
    located = locate(root)
    try:
        entries = list_run(located)
    except CheckpointNotFoundError:
        if not root.is_dir() or not unfinished_saves(root, []):
            raise
        entries = []  # nothing else yet
    unfinished = unfinished_saves(root, entries or []) if root.is_dir() else []
    if entries is not None:
        keeping = Keeping(keep_last, keep_every, keep_best, metric, lowest, policy)
        _list_run(root, entries, keeping, unfinished, as_json)
        return
    from orbit_ckpt._src.cli import inspect  # noqa: PLC0415 - imports JAX, which a run does not need

    if located.reader is not None:
        inspect.list_foreign(root, located.reader.name, unfinished, as_json)
    else:
        inspect.list_checkpoint(located, unfinished, as_json)


def _list_run(
    root: Path,
    entries: Sequence[ListedStep],
    keeping: Keeping,
    unfinished: list[str],
    as_json: bool,
) -> None:
    infos = [entry.info for entry in entries]
    kept = keeping.rules(infos) if keeping.is_given else None
    if as_json:
        steps = [
            step_fields(entry) | {"kept_by": None if kept is None else kept[entry.info.step]}
            for entry in entries
        ]
        print_json("ls", kind="run", path=root, steps=steps, unfinished=unfinished)
        return
    names = list(dict.fromkeys(name for info in infos for name in info.metrics or ()))
    header = ["step", "size", "time", *names, "marks", "kept by", "name"]
    rows: list[list[str]] = []
    for entry in entries:
        info, number = entry.info, str(entry.info.step)
        marks = [name for name in ("pinned", "temporary") if getattr(info, name)]
        metrics = info.metrics or {}
        rows.append(
            [
                number,
                human_bytes(entry.stored_bytes()),
                "" if info.time is UNKNOWN_TIME else format_time(info.time),
                *(human_number(metrics.get(name)) for name in names),
                ", ".join(marks),
                "" if kept is None else ", ".join(kept[info.step]) or "-",
                "" if entry.name == number else entry.name,
            ]
        )
    print_table(header, rows, right={"step", "size", *names})
    print_unfinished(unfinished)


def step_fields(entry: ListedStep) -> dict[str, object]:
    """Return the description of a step as JSON fields."""
    info = entry.info
    return {
        "step": info.step,
        "path": entry.path,
        "bytes": entry.stored_bytes(),
        "time": None if info.time is UNKNOWN_TIME else info.time.isoformat(timespec="seconds"),
        "metrics": info.metrics,
        "pinned": info.pinned,
        "temporary": info.temporary,
    }

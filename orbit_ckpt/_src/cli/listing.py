"""The steps of a run as `ls` and `report` show them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orbit_ckpt._src.cli.health import StepHealth, read_health
from orbit_ckpt._src.cli.keeping import Keeping, kept_by
from orbit_ckpt._src.cli.metrics import best_step, has_nan, is_lower_better, metric_names
from orbit_ckpt._src.cli.output import echo, format_time, human_number, print_json, print_unfinished
from orbit_ckpt._src.cli.runs import UNKNOWN_TIME, ListedStep, list_run, unfinished_saves
from orbit_ckpt._src.cli.sharing import Share, shares_of
from orbit_ckpt._src.cli.tables import print_table
from orbit_ckpt._src.cli.targets import select_step
from orbit_ckpt._src.errors import CheckpointNotFoundError
from orbit_ckpt._src.formats.locate import locate
from orbit_ckpt._src.text import human_bytes


def ls(  # noqa: PLR0913, PLR0917 - options of a command
    path: str,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: int | None,
    metric: str | None,
    lowest: bool | None,
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
    shares = shares_of(entries)
    kept = kept_by(entries, keeping)
    if as_json:
        marks = _marks(root, entries, metric_names(infos))
        steps = [
            step_fields(entry)
            | {
                "new_bytes": None if share is None else share.new,
                "shared_bytes": None if share is None else share.shared,
                "kept_by": None if kept is None else kept[entry.info.step],
                "marks": marks[entry.info.step],
            }
            for entry, share in zip(entries, shares or [None] * len(entries), strict=True)
        ]
        print_json("ls", kind="run", path=root, steps=steps, unfinished=unfinished)
        return
    names = metric_names(infos)
    marks = _marks(root, entries, names)
    header = ["step", "size", "new", "shared", "time", *names, "marks", "kept by", "name"]
    rows: list[list[str]] = []
    has_shared = any(share.shared for share in shares or ())
    styles: dict[int, str] = {}
    for i, entry in enumerate(entries):
        info, number = entry.info, str(entry.info.step)
        if color := next((_COLOURS[m] for m in marks[info.step] if m in _COLOURS), None):
            styles[i] = color
        metrics = info.metrics or {}
        rows.append(
            [
                number,
                *_sizes(shares[i] if shares else None, has_shared=has_shared),
                "" if info.time is UNKNOWN_TIME else format_time(info.time),
                *(human_number(metrics.get(name)) for name in names),
                ", ".join(marks[info.step]),
                "" if kept is None else ", ".join(kept[info.step]) or "-",
                "" if entry.name == number else entry.name,
            ]
        )
    print_table(header, rows, right={"step", "size", "new", "shared", *names}, styles=styles)
    if has_shared:
        echo(f"{human_bytes(sum(share.new for share in shares or ()))} on the disk")
    print_unfinished(unfinished)


def _sizes(share: Share | None, *, has_shared: bool) -> list[str]:
    if share is None:
        return ["", "", ""]
    parts = (share.new, share.shared) if has_shared else (None, None)
    return [human_bytes(share.nbytes), *map(human_bytes, parts)]


_COLOURS = {"damaged": "red", "NaN": "yellow"}


def _marks(
    root: Path, entries: Sequence[ListedStep], metrics: Sequence[str]
) -> dict[int, list[str]]:
    """Return the marks of steps: what protects them, what is best, what is wrong with them."""
    infos = [entry.info for entry in entries]
    best: dict[int, list[str]] = {}
    for metric in metrics if len(infos) > 1 else ():
        found = best_step(infos, metric, lowest=is_lower_better(metric))
        if found is not None:
            best.setdefault(found.step, []).append(f"best {metric}")
    known = read_health(root)
    marks: dict[int, list[str]] = {}
    for entry in entries:
        info, health = entry.info, known.get(entry.name, StepHealth())
        flags = {
            "damaged": health.state == "damaged",
            "NaN": has_nan(info) or bool(health.not_finite),
            "pinned": info.pinned,
            "temporary": info.temporary,
            "verified": health.state == "verified",
        }
        shown = [name for name, is_set in flags.items() if is_set]
        marks[info.step] = [*shown, *best.get(info.step, ())]
    return marks


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
